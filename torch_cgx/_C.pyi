"""The part of the extension module (csrc/bindings/) that the Python side uses."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store

__version__: str

class CgxError(RuntimeError): ...
class TimeoutError(CgxError, TimeoutError): ...  # type: ignore[misc]
class PeerLostError(CgxError): ...
class AbortedError(CgxError): ...
class MismatchError(CgxError): ...
class NonFiniteError(CgxError): ...
class ResourceError(CgxError): ...

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
        stage: int = 0,
    ) -> torch.Tensor: ...
    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        numel: int | None = None,
        dtype: torch.dtype | None = None,
        add: bool = False,
    ) -> torch.Tensor: ...

EXACT_BITS: int
HALF_BITS: int
MAX_BITS: int

def is_exact(bits: int) -> bool: ...
def families() -> list[dict[str, Any]]: ...
def codec_names() -> str: ...
def codec_settings() -> list[str]: ...
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
        block_size: int | None = None,
        scale: str | None = None,
        half: str | None = None,
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
    def given(self) -> dict[str, Any]: ...

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
        address: str,
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

def tensor_future(work: dist.Work, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]: ...
def settings() -> list[dict[str, Any]]: ...
def settings_in_force(options: Options | None = None) -> dict[str, Any]: ...
def simulated_group(hosts: list[str], options: Options | None = None) -> dict[str, Any]: ...
def simulate_all_reduce(
    data: list[int], dtype: int, layers: _Layers, average: bool, **group: Any
) -> dict[str, Any]: ...
def register_layer(
    bucket_idx: int, layer_idx: int, numel: int, bits: int = 0, bucket_size: int = 0
) -> None: ...
def set_quantization_bits(bucket_idx: int, layer_idx: int, bits: int) -> None: ...
def set_quantization_bucket_size(bucket_idx: int, layer_idx: int, bucket_size: int) -> None: ...
def clear_layers() -> None: ...
def flight_record() -> list[dict[str, Any]]: ...
def gpu_driver() -> dict[str, Any]: ...

# On raw addresses, for tests and benchmarks. dtype codes: 0 float32, 1 float16, 2 bfloat16.
def simulate_shards(
    operation: str,
    inputs: list[int],
    outputs: list[int],
    dtype: int,
    shard: int,
    codec: Codec | None,
    average: bool,
    **group: Any,
) -> dict[str, Any]: ...
def describe_plan(layers: _Layers, dtype: int, **group: Any) -> list[Any]: ...
def codec_encode(
    codec: Codec,
    x_ptr: int,
    dtype_code: int,
    n: int,
    sequence: int,
    rank: int,
    out_ptr: int,
    *,
    index: int = 0,
    stage: int = 0,
    first: int = 0,
    count: int | None = None,
    x_dtype_code: int | None = None,
) -> None: ...
def codec_decode(
    codec: Codec,
    payload_ptr: int,
    dtype_code: int,
    n: int,
    y_ptr: int,
    add: bool = False,
    *,
    first: int = 0,
    count: int | None = None,
) -> None: ...
def codec_encoded_bytes(codec: Codec, n: int, dtype_code: int) -> int: ...
def codec_convert(x_ptr: int, x_dtype_code: int, n: int, y_ptr: int, y_dtype_code: int) -> None: ...
def codec_all_finite(x_ptr: int, dtype_code: int, n: int) -> bool: ...
def codec_scan(x_ptr: int, dtype_code: int, n: int) -> tuple[float, float]: ...
def codec_add(x_ptr: int, dtype_code: int, n: int, y_ptr: int) -> None: ...
def codec_divide(y_ptr: int, n: int, divisor: float) -> None: ...
def codec_random_bits(seed: int, sequence: int, rank: int, stage: int, index: int) -> int: ...

# On CUDA tensors, on the current stream.
def gpu_codec_encode(
    codec: Codec,
    x: torch.Tensor,
    payload: torch.Tensor,
    sequence: int,
    rank: int,
    load_kernels: Callable[[int, int], bytes],
    *,
    index: int = 0,
    stage: int = 0,
) -> None: ...
def gpu_codec_decode(
    codec: Codec,
    payload: torch.Tensor,
    dtype_code: int,
    y: torch.Tensor,
    load_kernels: Callable[[int, int], bytes],
    add: bool = False,
) -> None: ...
