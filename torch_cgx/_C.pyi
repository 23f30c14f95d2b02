"""The part of the extension module (csrc/bindings/) that the Python side uses."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store

__version__: str
DTYPES: tuple[dict[str, Any], ...]

# begin: made by tools/generate.py
class CgxError(RuntimeError):
    """Something failed while ranks talked to each other; the group is broken."""

class TimeoutError(CgxError, TimeoutError):  # type: ignore[misc]
    """A wait passed its deadline."""

class PeerLostError(CgxError):
    """A peer has ended or cannot be reached."""

class AbortedError(CgxError):
    """The group was aborted, on this or another rank."""

class MismatchError(CgxError):
    """Ranks disagree on what they are doing."""

class NonFiniteError(CgxError):
    """A NaN or an Inf under nonfinite="raise"."""

class ResourceError(CgxError):
    """The machine lacks something, e.g. room in /dev/shm."""

# end
class Codec:
    def __init__(self, codec: str = "maxmin", **parameters: Any) -> None: ...
    @property
    def codec(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def parameters(self) -> dict[str, Any]: ...
    @property
    def bits(self) -> int: ...
    @property
    def granule(self) -> int: ...
    @property
    def block(self) -> int: ...
    def describe(self) -> str: ...
    def __getattr__(self, name: str) -> Any: ...  # parameters of its family
    def encoded_bytes(self, numel: int, dtype: torch.dtype) -> int: ...
    def encode(
        self,
        tensor: torch.Tensor,
        sequence: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
        number: int = 0,
    ) -> torch.Tensor: ...
    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        numel: int | None = None,
        dtype: torch.dtype | None = None,
        add: bool = False,
    ) -> torch.Tensor: ...
    def roundtrip(
        self,
        tensor: torch.Tensor,
        sequence: int = 0,
        rank: int = 0,
        index: int = 0,
        out: torch.Tensor | None = None,
        number: int = 0,
    ) -> torch.Tensor: ...

EXACT_BITS: int
HALF_BITS: int
MAX_BITS: int

def is_exact(bits: int) -> bool: ...
def families() -> list[dict[str, Any]]: ...
def codec_names() -> str: ...
def payload_size(codec: str, dtype: torch.dtype) -> list[int]: ...
def codec_settings() -> list[str]: ...
def check_feedback(codec: Codec) -> None: ...
def host_identity(host_id: str) -> str: ...
def choose_codec(values: dict[str, Any]) -> Codec | None: ...
def codec_of(where: str, name: str, parameters: dict[str, Any]) -> Codec: ...
def check_setting(name: str, value: Any, where: str) -> Any: ...
def setting_from_environment(name: str) -> Any: ...
def process_variables() -> list[dict[str, Any]]: ...
def process_variable(name: str) -> Any: ...
def cpu_level() -> str: ...
def set_cpu_level(name: str) -> None: ...
def cpu_levels() -> str: ...

class Options(Backend.Options):
    # begin: made by tools/generate.py
    """Settings of a cgx group: `pg_options` of init_process_group and new_group.

        Options(bits=4, bucket_size=1024)

    All arguments are keywords. None counts as absent: the environment variable applies, else the
    default. Settings that are read at each call may change between calls, on all ranks at the same
    call. ValueError and TypeError name a bad value and what is allowed. Immutable and hashable.

    Args:
        bits: Bits per value. 1 to 8 compress; 16 sends fp32 as bf16 or fp16; all others are exact.
            Allowed: integers from 1 to 32; default 32. CGX_COMPRESSION_QUANTIZATION_BITS, read at
            each call.
        codec: Codec; bf16 and fp16 need `bits` 16, which selects one of them anyway. Allowed: one
            of bf16, block, float, fp16, maxmin, rotated, trellis; default maxmin.
            CGX_COMPRESSION_TYPE, read when the group is made.
        bucket_size: Number of values that share a minimum and a step (8 bytes on the wire).
            Allowed: integers from 1 to 1099511627776; default 512. CGX_COMPRESSION_BUCKET_SIZE,
            read at each call.
        rounding: Rounding of values to levels. Allowed: one of nearest, stochastic, zero; default
            nearest. CGX_COMPRESSION_ROUNDING, read when the group is made.
        seed: Seed of random numbers: of stochastic rounding, and of the signs of a rotation.
            Allowed: integers from 0 to 9223372036854775807; default 0. CGX_COMPRESSION_SEED, read
            when the group is made.
        skip_incomplete_buckets: 1: the last numel mod bucket_size values are sent exactly. Allowed:
            0 or 1; default False. CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS, read at each call.
        exact_zeros: 1: `maxmin` keeps exact zeros zero (2 bits or more). Allowed: 0 or 1; default
            False. CGX_COMPRESSION_EXACT_ZEROS, read at each call.
        block_size: Number of values that are rotated together and share a scale (4 bytes on the
            wire). Allowed: powers of two from 256 to 4096; default 1024.
            CGX_COMPRESSION_BLOCK_SIZE, read at each call.
        scale: Scale of a block: mse has the least error, unbiased the right mean over ranks and
            steps. Allowed: one of mse, unbiased; default mse. CGX_COMPRESSION_SCALE, read at each
            call.
        half: Format at 16 bits: bf16 has the range of fp32; fp16 is finer, but values from 65520 on
            become infinite. Allowed: one of bf16, fp16; default bf16. CGX_HALF, read at each call.
        exponent: `float`: Bits of a number's exponent. Allowed: integers from 1 to 8; default 4.
            CGX_FORMAT_EXPONENT, read at each call.
        mantissa: `float`: Bits of a number's mantissa, without the leading one. Allowed: integers
            from 0 to 14; default 3. CGX_FORMAT_MANTISSA, read at each call.
        random_bits: `float` and `block`: Random bits of a value, of stochastic rounding. Allowed:
            integers from 1 to 24; default 24. CGX_FORMAT_RANDOM_BITS, read at each call.
        subnormals: `float`: Numbers below the least normal one; without them such results become 0.
            Allowed: 0 or 1; default True. CGX_FORMAT_SUBNORMALS, read at each call.
        overflow: `float`: What values beyond the largest number become, infinite ones included; by
            default an infinity, without one the largest number (fn) or NaN (fnuz). Allowed: one of
            default, saturate, inf, nan; default default. CGX_FORMAT_OVERFLOW, read at each call.
        variant: `float`: Which codes are infinite or NaN. Allowed: one of ieee, fn, fnuz, p3109;
            default ieee. CGX_FORMAT_VARIANT, read at each call.
        format: `block`: format of a block's values and of the scale that they share. Allowed: one
            of mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4, mxint8, fp8_block128; default
            mxfp8_e4m3. CGX_FORMAT_FORMAT, read at each call.
        scale_rounding: `block`: How an e8m0 scale follows from the greatest magnitude: the power of
            two below or above it, of its rounded value, or the least without saturation. Allowed:
            one of floor, ceil, even, rceil; default floor. CGX_FORMAT_SCALE_ROUNDING, read at each
            call.
        min_size: Tensors and layers with fewer values are exact; at least 16. Allowed: integers
            from 0 to 9223372036854775807; default 16. CGX_COMPRESSION_MINIMAL_SIZE, read when the
            group is made.
        nonfinite: NaN and Inf: propagate makes their bucket NaN on all ranks; raise is an error on
            all ranks. Allowed: one of propagate, raise; default propagate. CGX_NONFINITE, read when
            the group is made.
        collectives: Collectives that the group's `bits` apply to. Allowed: a comma-separated list
            (or 'none') of all_reduce, reduce_scatter, all_gather; default all_reduce,
            reduce_scatter. CGX_COMPRESS_COLLECTIVES, read when the group is made.
        inner_communicator: Communicator inside a host; NCCL applies to CUDA tensors only. Allowed:
            one of SHM, MPI, NCCL, GLOO; default SHM. CGX_INNER_COMMUNICATOR_TYPE, read when the
            group is made.
        cross_communicator: Communicator between hosts. AUTO: Gloo; for CUDA tensors NCCL if torch
            has it. Allowed: one of AUTO, MPI, NCCL, GLOO; default AUTO.
            CGX_CROSS_COMMUNICATOR_TYPE, read when the group is made.
        cuda_backend: Backend of CUDA collectives that the engine does not run. AUTO: NCCL if torch
            has it, else Gloo. Allowed: one of AUTO, NCCL, GLOO; default AUTO. CGX_CUDA_BACKEND,
            read when the group is made.
        inner_reduction: Algorithm of a group on one host. Allowed: one of AUTO, SRA, ONESHOT, RING;
            default AUTO. CGX_INNER_REDUCTION_TYPE, read when the group is made.
        cross_reduction: Algorithm between hosts. Allowed: one of AUTO, SRA, ONESHOT, RING; default
            AUTO. CGX_CROSS_REDUCTION_TYPE, read when the group is made.
        intra_broadcast: 1: one rank of each host communicates with other hosts; 0: as many ranks as
            the smallest host has. Allowed: 0 or 1; default False. CGX_INTRA_BROADCAST, read when
            the group is made.
        intra_compress: Whether to compress inside hosts. AUTO compresses if the whole group is on
            one host, or if the ranks of a host do not share memory. Allowed: 0, 1 or AUTO; default
            AUTO. CGX_INTRA_COMPRESS, read when the group is made.
        fusion_buffer_mb: Largest size of one exchange over Gloo or MPI, in MiB; a longer bucket
            travels alone. Allowed: integers from 1 to 65536; default 64. CGX_FUSION_BUFFER_SIZE_MB,
            read when the group is made.
        shm_segment_kb: Largest size of one exchange over shared memory, in KiB; `/dev/shm` holds up
            to two such blocks per rank. Allowed: integers from 16 to 1048576; default 1024.
            CGX_SHM_SEGMENT_KB, read when the group is made.
        segment_kb: Target size of one message between hosts, in KiB: while one travels, the next is
            encoded. Allowed: integers from 1 to 1048576; default 512. CGX_SEGMENT_KB, read when the
            group is made.
        checksum: 1: a CRC-32C follows every message of the engine; an altered message is an error.
            Allowed: 0 or 1; default False. CGX_CHECKSUM, read when the group is made.
        autotune: 1: send more bits than asked, up to exact, where this is faster; measured on the
            group's link. Allowed: 0 or 1; default False. CGX_AUTOTUNE, read when the group is made.
        log: Lines on stderr: info logs each group; debug logs each call with the communicator used
            and the reason. Allowed: one of off, warn, info, debug; default warn. CGX_LOG, read when
            the group is made.
        host_id: Ranks with different values count as on different hosts. Allowed: any text; default
            empty. CGX_HOST_ID, read when the group is made.
    """
    # end
    def __init__(
        self,
        *,
        # begin: made by tools/generate.py
        bits: int | None = None,
        codec: str | None = None,
        bucket_size: int | None = None,
        rounding: str | None = None,
        seed: int | None = None,
        skip_incomplete_buckets: bool | None = None,
        exact_zeros: bool | None = None,
        block_size: int | None = None,
        scale: str | None = None,
        half: str | None = None,
        exponent: int | None = None,
        mantissa: int | None = None,
        random_bits: int | None = None,
        subnormals: bool | None = None,
        overflow: str | None = None,
        variant: str | None = None,
        format: str | None = None,
        scale_rounding: str | None = None,
        min_size: int | None = None,
        nonfinite: str | None = None,
        collectives: str | Sequence[str] | None = None,
        inner_communicator: str | None = None,
        cross_communicator: str | None = None,
        cuda_backend: str | None = None,
        inner_reduction: str | None = None,
        cross_reduction: str | None = None,
        intra_broadcast: bool | None = None,
        intra_compress: bool | str | None = None,
        fusion_buffer_mb: int | None = None,
        shm_segment_kb: int | None = None,
        segment_kb: int | None = None,
        checksum: bool | None = None,
        autotune: bool | None = None,
        log: str | None = None,
        host_id: str | None = None,
        # end
    ) -> None: ...
    # begin: made by tools/generate.py
    @property
    def bits(self) -> int | None: ...
    @property
    def codec(self) -> str | None: ...
    @property
    def bucket_size(self) -> int | None: ...
    @property
    def rounding(self) -> str | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def skip_incomplete_buckets(self) -> bool | None: ...
    @property
    def exact_zeros(self) -> bool | None: ...
    @property
    def block_size(self) -> int | None: ...
    @property
    def scale(self) -> str | None: ...
    @property
    def half(self) -> str | None: ...
    @property
    def exponent(self) -> int | None: ...
    @property
    def mantissa(self) -> int | None: ...
    @property
    def random_bits(self) -> int | None: ...
    @property
    def subnormals(self) -> bool | None: ...
    @property
    def overflow(self) -> str | None: ...
    @property
    def variant(self) -> str | None: ...
    @property
    def format(self) -> str | None: ...
    @property
    def scale_rounding(self) -> str | None: ...
    @property
    def min_size(self) -> int | None: ...
    @property
    def nonfinite(self) -> str | None: ...
    @property
    def collectives(self) -> str | None: ...
    @property
    def inner_communicator(self) -> str | None: ...
    @property
    def cross_communicator(self) -> str | None: ...
    @property
    def cuda_backend(self) -> str | None: ...
    @property
    def inner_reduction(self) -> str | None: ...
    @property
    def cross_reduction(self) -> str | None: ...
    @property
    def intra_broadcast(self) -> bool | None: ...
    @property
    def intra_compress(self) -> bool | str | None: ...
    @property
    def fusion_buffer_mb(self) -> int | None: ...
    @property
    def shm_segment_kb(self) -> int | None: ...
    @property
    def segment_kb(self) -> int | None: ...
    @property
    def checksum(self) -> bool | None: ...
    @property
    def autotune(self) -> bool | None: ...
    @property
    def log(self) -> str | None: ...
    @property
    def host_id(self) -> str | None: ...
    # end
    def given(self) -> dict[str, Any]: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any], /) -> Options: ...

_Layers = Sequence[tuple[int, Codec | None]]

class ProcessGroupCGX(Backend):
    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: Options | None,
        make_inner: Callable[[Store, int, int, timedelta, str], Any],
        make_nccl: Callable[[Store, int, int, timedelta], Any] | None,
        load_mpi: Callable[[], Any],
        load_kernels: Callable[[int, int], bytes],
        choose_address: Callable[[int, list[str]], str],
        report_addresses: Callable[[], str],
        timeout: timedelta,
        group_name: str,
        group_desc: str,
        global_ranks: list[int],
    ) -> None: ...
    def all_reduce_layers(
        self,
        tensor: torch.Tensor,
        op: Any,
        layers: _Layers | None,
        async_op: bool = True,
        timeout: timedelta = ...,
        *,
        tunable: bool = False,
        chosen_by: str = "",
        residual: torch.Tensor | None = None,
        step: int | None = None,
        tensor_number: int = 0,
        firsts: list[int] | None = None,
    ) -> dist.Work: ...
    def reduce_scatter_codec(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: Any,
        codec: Codec | None,
        async_op: bool = True,
        timeout: timedelta = ...,
        *,
        as_group: bool = False,
        residual: torch.Tensor | None = None,
        step: int | None = None,
        tensor_number: int = 0,
    ) -> dist.Work: ...
    def all_gather_codec(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        codec: Codec | None,
        async_op: bool = True,
        timeout: timedelta = ...,
        *,
        as_group: bool = False,
        residual: torch.Tensor | None = None,
        step: int | None = None,
        tensor_number: int = 0,
    ) -> dist.Work: ...
    def moves_encoded(self, tensor: torch.Tensor) -> bool: ...
    def broadcast_codec(
        self,
        tensor: torch.Tensor,
        root: int,
        codec: Codec | None,
        async_op: bool = True,
        timeout: timedelta = ...,
        *,
        residual: torch.Tensor | None = None,
        step: int | None = None,
        tensor_number: int = 0,
    ) -> dist.Work: ...
    def all_to_all_codec(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        codec: Codec | None,
        async_op: bool = True,
        timeout: timedelta = ...,
        *,
        residual: torch.Tensor | None = None,
        step: int | None = None,
        tensor_number: int = 0,
    ) -> dist.Work: ...
    @property
    def options(self) -> Options: ...
    def stats(self) -> dict[str, Any]: ...
    def tuning(self) -> dict[str, Any] | None: ...
    def reset_stats(self) -> None: ...
    @property
    def serial(self) -> int: ...
    def hosts(self) -> list[str]: ...
    def settings(self) -> dict[str, Any]: ...
    def wait_for_pending_works(self) -> None: ...

def tensor_future(
    work: dist.Work, tensor: Any, ended: Callable[[], None] | None = ...
) -> torch.futures.Future[Any]: ...
def settings() -> list[dict[str, Any]]: ...
def settings_in_force(options: Options | None = None) -> dict[str, Any]: ...
def simulated_group(hosts: list[str], options: Options | None = None) -> dict[str, Any]: ...
def simulate_all_reduce(
    data: list[torch.Tensor],
    layers: _Layers,
    average: bool,
    residuals: list[torch.Tensor] = ...,
    **group: Any,
) -> dict[str, Any]: ...
def predict_all_reduce(
    layers: _Layers,
    dtype: int,
    link: tuple[float, float, float],
    codec: tuple[float, float],
    flat: bool,
    **group: Any,
) -> dict[str, float]: ...
def register_layer(
    bucket_idx: int, layer_idx: int, numel: int, bits: int = 0, bucket_size: int = 0
) -> None: ...
def set_quantization_bits(bucket_idx: int, layer_idx: int, bits: int) -> None: ...
def set_quantization_bucket_size(bucket_idx: int, layer_idx: int, bucket_size: int) -> None: ...
def clear_layers() -> None: ...
def flight_record() -> list[dict[str, Any]]: ...

# For torch_cgx.compat; the stages are operators.
CUDA_FLOAT_COMPRESS_PART: int

def cuda_float_compress_range(tensor: torch.Tensor, step: float) -> tuple[int, float]: ...
def cuda_float_compress_step(max_error: float, largest: float) -> float: ...

# BDI for torch_cgx.bounded.bdi; tensors are contiguous and on the CPU. dtype codes: 0 int32,
# 1 uint32, 2 float32.
class BdiEncoded:
    def __init__(
        self,
        words: torch.Tensor,
        dtype_code: int,
        shape: list[int],
        *,
        configs: list[tuple[int, int, int]],
        batch_size: int,
        immediates: list[int],
        scales: tuple[int, int, int],
        zero_mask: bool,
        stochastic: bool,
        random_bases: bool,
        seed: int,
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def write(self, out: torch.Tensor) -> None: ...

def bdi_read(payload: torch.Tensor) -> dict[str, Any]: ...
def bdi_chunks(
    payload: torch.Tensor, choice: torch.Tensor, bits: torch.Tensor, zeros: torch.Tensor
) -> None: ...
def bdi_decode(payload: torch.Tensor, words: torch.Tensor) -> None: ...

# Formats of torch_cgx.emulate, by the engine's texts.
def casts() -> list[dict[str, Any]]: ...
def cast_text(where: str, name: str, parameters: dict[str, Any]) -> str: ...
def cast_facts(text: str) -> dict[str, Any]: ...
def presets() -> list[tuple[str, str, str]]: ...

# Blocks of torch_cgx.bounded; tensors are contiguous and on the CPU. Types, kinds of bounds:
# csrc/codec/bounded.
BOUNDED_BLOCK_VALUES: int

class BoundedMaps:
    def __init__(self, element: int, kind: int, bound: float, version: int = ...) -> None: ...
    @property
    def key(self) -> dict[str, Any]: ...  # arguments of the operators bounded_...

class BoundedArena:
    def __init__(self, dims: int, blocks: int, bytes: int) -> None: ...
    @property
    def block_bytes(self) -> int: ...  # those of equal blocks once
    def __buffer__(self, flags: int, /) -> memoryview: ...

class BoundedEncoder:
    def __init__(self, maps: BoundedMaps) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...  # the content, until the next encode()
    def encode(
        self,
        x: torch.Tensor,
        first: int,
        n: int,
        shape: Sequence[int] | None = None,  # of the tensor that the values are from; default: x
        at: int | None = None,  # place of the first one in it; default: first
    ) -> None: ...
    def is_raw(self, frame_bytes: int) -> bool: ...
    def finish(self, frame: bytes, arena: BoundedArena, number: int) -> None: ...
    @property
    def entropy(self) -> float: ...
    @property
    def packed(self) -> bool: ...
    @property
    def windowed(self) -> int: ...  # bytes that windowed symbols would take; 0: not worthwhile
    def use_windows(self) -> None: ...
    @property
    def again(self) -> bool: ...  # values seem to be there again
    @property
    def again_far(self) -> bool: ...  # at least far from each other
    @property
    def value_bytes(self) -> int: ...
    def bytes_with(self, frame_bytes: int) -> int: ...
    # The first values, at most so many; until the next call.
    def rearranged(self, way: int, most: int = ...) -> memoryview: ...
    def finish_bytes(self, way: int, frame: bytes, arena: BoundedArena, number: int) -> None: ...

class BoundedBlock:
    @property
    def frame(self) -> memoryview: ...
    @property
    def content_bytes(self) -> int: ...
    @property
    def map(self) -> str: ...
    @property
    def predictor(self) -> str | None: ...
    @property
    def low_bits(self) -> int: ...
    @property
    def low_bits_coded(self) -> bool: ...
    @property
    def packed(self) -> bool: ...
    @property
    def windowed(self) -> bool: ...
    @property
    def outliers(self) -> int: ...
    @property
    def specials(self) -> int: ...

class BoundedDecoder:
    def __init__(self, maps: BoundedMaps) -> None: ...
    def open(self, block: memoryview, n: int) -> BoundedBlock: ...
    def decode(
        self,
        block: BoundedBlock,
        content: bytes,
        low: int,
        high: int,
        y: torch.Tensor,
        first: int,
    ) -> None: ...  # the values [low, high) of the block to y[first:]

# The form of a frame that holds all values of a tensor. The default form holds their bytes.
class BoundedWhole:
    def __init__(self) -> None: ...
    def content_bytes(self, maps: BoundedMaps, n: int) -> int: ...
    def decode(
        self, maps: BoundedMaps, content: bytes, n: int, first: int, last: int, y: torch.Tensor
    ) -> None: ...  # the values [first, last) of n

class BoundedSlab:
    def __init__(self, maps: BoundedMaps, values: int) -> None: ...
    @property
    def blocks(self) -> int: ...
    @property
    def look_bytes(self) -> int: ...
    def field_places(
        self, encoder: BoundedEncoder, block: int, shape: Sequence[int], first: int
    ) -> torch.Tensor: ...  # in the slab's values
    def plan(
        self,
        encoder: BoundedEncoder,
        block: int,
        looked: torch.Tensor,
        values: torch.Tensor | None = None,  # [first, first + count) are those at field_places()
        first: int = 0,
        count: int = 0,
    ) -> None: ...
    def adopt(self, encoder: BoundedEncoder, block: int, parts: torch.Tensor) -> bool: ...
    def open(self, block: int, opened: BoundedBlock, value: int, start: int, stop: int) -> None: ...
    def fill(
        self, block: int, opened: BoundedBlock, content: bytes, parts: torch.Tensor
    ) -> None: ...
    def lay_out(self) -> int: ...
    def forms(self) -> bytearray: ...  # as the operators bounded_encode and bounded_decode take it

def bounded_range(element: int, x: torch.Tensor) -> float: ...
def bounded_read(
    payload: memoryview,
) -> tuple[
    int,
    bool,
    int,
    float,
    float,
    int,
    list[int],
    list[tuple[int, int]],
    BoundedWhole | None,
]: ...
def bounded_write(
    element: int,
    complex: bool,
    kind: int,
    asked: float,
    bound: float,
    shape: Sequence[int],
    arena: BoundedArena,
) -> None: ...
def bounded_write_whole(
    element: int,
    complex: bool,
    kind: int,
    asked: float,
    bound: float,
    shape: Sequence[int],
    whole: BoundedWhole,
    frame: memoryview,
) -> bytes: ...
def bounded_repeats(x: torch.Tensor) -> bool: ...
def bounded_words_of_all(
    maps: BoundedMaps, x: torch.Tensor
) -> tuple[BoundedWhole, bytes] | None: ...
def bounded_mostly_of_all(element: int, x: torch.Tensor) -> tuple[BoundedWhole, bytes] | None: ...
def prefer_large_pages(memory: torch.Tensor) -> None: ...

# Threads of one call, for `run` and a `with` block, which ends after them, whatever is raised.
class CallThreads:
    def __init__(self, run: Callable[[], None]) -> None: ...
    def start(self, count: int) -> int: ...  # how many the system starts
    @property
    def stopped(self) -> bool: ...  # the block was left by an exception, or `run` has raised one
    closing: ClassVar[bool]  # the interpreter ends, and waits for all such threads; no more start
    def __enter__(self) -> CallThreads: ...
    def __exit__(self, *error: object) -> None: ...

# Within its `with` block torch's operators run on the calling thread alone, if that came through a
# fork from a process with other threads: OpenMP would wait for those.
class SafeAfterFork:
    def __init__(self) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def intra_op_threads() -> int: ...  # torch.get_num_threads(), also within SafeAfterFork
def thread_limits(root: str = "") -> str: ...  # of processes and threads, for an error message
