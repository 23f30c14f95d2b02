"""BDI: a compressor of 32-bit words that writes a base and small differences, lossless or with a
bound.

It suits words that are close together: indices, counters, addresses, quantized weights::

    from torch_cgx.bounded import bdi

    compression = bdi.Compression([bdi.Config(delta_size=8), bdi.Config(delta_size=16)])
    payload = compression.compress(words)  # uint8, 1-D
    words = bdi.decompress(payload)  # the same shape and dtype
    print(compression.report(words))

This is base-delta-immediate compression (Pekhimenko et al., PACT 2012) with the configuration of
NNW-BDI (MEMSYS 2020). NNW-BDI computed sizes and wrote no payload, and its decoder was wrong with
``scale_factor_base > 0``. The tensor is cut into chunks of ``batch_size`` words. Each chunk is
written by the configuration that takes the fewest bits; a chunk that no configuration can hold is
written unchanged.

The bound: a word ``w`` is decoded to ``y`` with ``|w - y| < 2**(scale_factor_init +
scale_factor_delta)``; with both 0 (the default) every word is decoded exactly. The words of a
float32 tensor are its bits, so the bound counts the float32 values from ``w`` to ``y``; NaN stays
NaN, an infinity stays itself, and no other value becomes NaN or infinite.

Payloads depend on the arguments only, not on the number of threads (``torch.set_num_threads``).
Tensors are on the CPU. csrc/codec/bdi/payload.h and docs/bdi.md describe the format.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._memory import new_tensor
from torch_cgx.bounded._payload import PayloadError

__all__ = ["Compression", "Config", "PayloadError", "Report", "decompress", "info"]

_DTYPES = (torch.int32, torch.uint32, torch.float32)  # indexed by the code in a payload
_RAW = "raw"


@dataclasses.dataclass(frozen=True)
class Config:
    """One way to write a chunk: up to ``num_bases`` bases, and a delta for each word that is not
    zero.

    Attributes:
        num_bases: 0 to 64; 0: only immediates are bases.
        base_size: bits of a base, after ``>> scale_factor_base``. 1 to 32.
        delta_size: bits of a delta, after ``>> scale_factor_delta``. 1 to 32; with a zero mask, 0
            is allowed, too.
        name: for reports; by default made of the numbers, e.g. "1b32d8".

    Raises:
        ValueError, TypeError: a field is out of range or of another type; the text names it.
    """

    num_bases: int = 1
    base_size: int = 32
    delta_size: int = 8
    name: str = ""

    def __post_init__(self) -> None:
        _set_int(self, "num_bases", 0, 64)
        _set_int(self, "base_size", 1, 32)
        _set_int(self, "delta_size", 0, 32)
        if not isinstance(self.name, str):
            raise TypeError(f"name is {self.name!r}, allowed: a str")
        if self.name == _RAW:
            raise ValueError(f"name is {_RAW!r}, reserved: reports use it for raw chunks")
        if not self.name:
            made = f"{self.num_bases}b{self.base_size}d{self.delta_size}"
            object.__setattr__(self, "name", made)


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """How the chunks of a tensor are written.

    Sizes are counted as in NNW-BDI: ``words`` bits for the zero mask, ``num_bases * base_size`` for
    the bases, and ``delta_size`` for each word that is not zero (without a mask, for each word); 32
    bits for each word of a raw chunk. A payload differs: it has fewer bases if a chunk uses fewer,
    and for each delta the number of its base.

    Attributes:
        shape, dtype: of the tensor.
        configs: of the compression.
        batch_size: words of a chunk; the last may have fewer.
        error_bound: 2**(scale_factor_init + scale_factor_delta); errors are less. 1: lossless.
        choice: int16, for each chunk the index of its configuration, or -1 for a raw chunk.
        bits: int32, the size of each chunk.
        zeros: int16, for each chunk the number of words in the zero mask.
        payload_bytes: size of the whole payload.
    """

    shape: torch.Size
    dtype: torch.dtype
    configs: tuple[Config, ...]
    batch_size: int
    error_bound: int
    choice: torch.Tensor
    bits: torch.Tensor
    zeros: torch.Tensor
    payload_bytes: int

    @property
    def words(self) -> int:
        return self.shape.numel()

    @property
    @safe_after_fork
    def size_bits(self) -> int:
        """The size of all chunks."""
        return int(self.bits.sum())

    @property
    @safe_after_fork
    def raw_chunks(self) -> int:
        """Chunks that no configuration can hold."""
        return int((self.choice < 0).sum())

    @property
    @safe_after_fork
    def wins(self) -> dict[str, int]:
        """Number of chunks of each configuration, by its name, and of raw chunks, as "raw"."""
        counts = torch.bincount(self.choice.to(torch.int64) + 1, minlength=len(self.configs) + 1)
        names = (*(config.name for config in self.configs), _RAW)
        return dict(zip(names, counts.roll(-1).tolist(), strict=True))

    @property
    def ratio(self) -> float:
        """Bytes of the words divided by bytes of the payload."""
        return 4 * self.words / self.payload_bytes

    def __str__(self) -> str:
        lines = [
            f"{self.words} words, {self.size_bits} bits accounted, "
            f"{self.payload_bytes} bytes of payload ({self.ratio:.2f}x), "
            + ("lossless" if self.error_bound == 1 else f"errors < {self.error_bound}")
        ]
        lines += [f"  {name}: {count} chunks" for name, count in self.wins.items()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Compression:
    """A compressor: the configurations to choose from, and the bound. Immutable and hashable.

    A word ``w`` is first shifted: ``s = w >> scale_factor_init``. The words of a chunk with ``s >>
    scale_factor_delta == 0`` go into the zero mask. Then each immediate, and after the immediates
    up to ``num_bases`` bases, takes the words that it reaches: ``(s - base) >> scale_factor_delta``
    is from 0 to ``2**delta_size - 1``. The next base is the first word that is not taken and fits
    into ``base_size`` bits after ``>> scale_factor_base``; the bits that this shift cuts off are 0
    in the base. A configuration can hold a chunk if all words are taken. A chunk is written by the
    configuration with the fewest bits (see :class:`Report`), the first of equal ones. **If no
    configuration can hold a chunk, it is raw:** exact, 32 bits a word. Reports count raw chunks.
    Lossless, with ``Config(0, 32, 32)`` and the immediate 0, no chunk is raw.

    Attributes:
        configs: 1 to 255, with different names.
        batch_size: words of a chunk, 1 to 4096.
        immediates: bases that all chunks share, compared with ``s``, and not shifted by
            ``scale_factor_base``: 0 to 64 different numbers below ``2**(32 - scale_factor_init)``.
        scale_factor_init: bits that are cut off each word first, 0 to 31.
        scale_factor_base: bits that are cut off each base, 0 to ``31 - scale_factor_init``.
        scale_factor_delta: bits that are cut off each delta, 0 to ``31 - scale_factor_init``.
        use_stochastic_rounding: a delta is rounded up with a probability of the fraction that is
            cut off, unless the larger delta needs more bits or the word would change its sign or
            kind. The bits that ``scale_factor_init`` and the zero mask cut off are never rounded.
            NNW-BDI's default was True, and had no effect.
        use_zero_compression: whether there is a zero mask.
        use_randomized_base_selection: the next base is a random one of the words that are not
            taken, instead of the first. NNW-BDI's default was True.
        seed: for both random options, 0 to 2**64 - 1. The same seed gives the same payload.

    Raises:
        ValueError, TypeError: an argument is out of range or of another type; the text names it.
    """

    configs: Iterable[Config]
    batch_size: int = 64
    immediates: Iterable[int] = (0,)
    scale_factor_init: int = 0
    scale_factor_base: int = 0
    scale_factor_delta: int = 0
    use_stochastic_rounding: bool = False
    use_zero_compression: bool = True
    use_randomized_base_selection: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        configs = _tuple("configs", self.configs, Config)
        _check_number("configs", configs, 1, 255)
        object.__setattr__(self, "configs", configs)
        _set_int(self, "batch_size", 1, 4096)
        _set_int(self, "scale_factor_init", 0, 31)
        _set_int(self, "scale_factor_base", 0, 31 - self.scale_factor_init)
        _set_int(self, "scale_factor_delta", 0, 31 - self.scale_factor_init)
        _set_int(self, "seed", 0, 2**64 - 1)
        for field in dataclasses.fields(self):
            if field.name.startswith("use_"):
                _set_bool(self, field.name)
        immediates = _tuple("immediates", self.immediates, int)
        _check_number("immediates", immediates, 0, 64)
        top = 2 ** (32 - self.scale_factor_init) - 1
        checked = tuple(
            _int(f"immediates[{i}]", value, 0, top) for i, value in enumerate(immediates)
        )
        object.__setattr__(self, "immediates", checked)
        for what, values in (
            ("immediates", checked),
            ("names of configs", [config.name for config in configs]),
        ):
            if len({*values}) < len(values):
                twice = next(value for value in values if [*values].count(value) > 1)
                raise ValueError(f"{what} hold {twice!r} twice, allowed: once")
        if not self.use_zero_compression and any(config.delta_size == 0 for config in configs):
            raise ValueError("delta_size is 0, allowed without use_zero_compression: 1 to 32")

    @property
    def error_bound(self) -> int:
        """``2**(scale_factor_init + scale_factor_delta)``; errors are less. 1: lossless."""
        return int(2 ** (self.scale_factor_init + self.scale_factor_delta))

    @safe_after_fork
    def compress(self, words: torch.Tensor) -> torch.Tensor:
        """The payload: uint8, one dimension, exactly as long as needed.

        Args:
            words: int32, uint32 or float32 (by its bits), on the CPU, any shape and strides.

        Raises:
            ValueError: another dtype, layout or device, or a tensor without memory.
            TypeError: not a tensor.
        """
        words = _words(words)
        encoded = _C.BdiEncoded(
            words.view(-1),
            _DTYPES.index(words.dtype),
            list(words.shape),
            configs=[(c.num_bases, c.base_size, c.delta_size) for c in self.configs],
            batch_size=self.batch_size,
            immediates=list(self.immediates),
            scales=(self.scale_factor_init, self.scale_factor_base, self.scale_factor_delta),
            zero_mask=self.use_zero_compression,
            stochastic=self.use_stochastic_rounding,
            random_bases=self.use_randomized_base_selection,
            seed=self.seed,
        )
        payload = new_tensor((encoded.bytes,), torch.uint8)
        encoded.write(payload)
        return payload

    def roundtrip(self, words: torch.Tensor) -> torch.Tensor:
        """``words``, compressed and decompressed again."""
        return decompress(self.compress(words))

    def report(self, words: torch.Tensor) -> Report:
        """How compress() writes each chunk, and the size of its payload."""
        return dataclasses.replace(info(self.compress(words)), configs=tuple(self.configs))

    def size_bits(self, words: torch.Tensor) -> int:
        """The size of all chunks, counted as in NNW-BDI (:class:`Report`)."""
        return self.report(words).size_bits

    @safe_after_fork
    def compressed_repr(
        self, words: torch.Tensor, scale: float = 1.0, zero_point: int = 0
    ) -> torch.Tensor:
        """Values after a round trip, as of NNW-BDI's ``replace_with_compressed_repr``: float32, in
        the shape of ``words``.

        A word that is decoded to ``y`` becomes ``(y + zero_point) * scale``, with ``y`` as a signed
        number, also for uint32. The sum is exact. ``scale`` is first rounded to float32, and the
        product is rounded once, to float32.

        Args:
            words: int32 or uint32.
            scale: a finite number.
            zero_point: -2**31 to 2**31 - 1.
        """
        zero_point = _int("zero_point", zero_point, -(2**31), 2**31 - 1)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise TypeError(f"scale is {scale!r} ({type(scale).__name__}), allowed: a number")
        factor = torch.tensor(float(scale), dtype=torch.float64, device="cpu").to(torch.float32)
        if not math.isfinite(factor):
            raise ValueError(f"scale is {scale}, allowed: a number that is finite in float32")
        words = _words(words)
        if words.dtype == torch.float32:
            raise ValueError("words are torch.float32, allowed: torch.int32, torch.uint32")
        signed = self.roundtrip(words).view(torch.int32)
        return ((signed.to(torch.int64) + zero_point).double() * factor.double()).float()


@safe_after_fork
def decompress(payload: torch.Tensor) -> torch.Tensor:
    """Decompresses a payload. Returns a tensor of the shape and dtype that were compressed.

    Args:
        payload: uint8, one dimension, on the CPU.

    Raises:
        PayloadError: the payload was cut, altered or forged, or is of another kind or version. The
            result has at most 32 times the payload's bytes, whatever its header says.
        ValueError: another dtype, shape, layout or device, or a tensor without memory.
        TypeError: not a tensor.
    """
    payload = _payload(payload)
    header = _read(payload)
    words = new_tensor(header["shape"], _DTYPES[header["dtype_code"]])
    try:
        _C.bdi_decode(payload, words)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    return words


@safe_after_fork
def info(payload: torch.Tensor) -> Report:
    """Describes a payload. A payload has no names of configurations, so the names are the defaults.

    Raises:
        PayloadError, TypeError, ValueError: as decompress(), except that the numbers inside of
            chunks are not checked.
    """
    payload = _payload(payload)
    header = _read(payload)
    choice, bits, zeros = (
        new_tensor((header["chunks"],), dtype) for dtype in (torch.int16, torch.int32, torch.int16)
    )
    try:
        _C.bdi_chunks(payload, choice, bits, zeros)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    init, _, delta = header["scales"]
    return Report(
        shape=torch.Size(header["shape"]),
        dtype=_DTYPES[header["dtype_code"]],
        configs=tuple(Config(*fields) for fields in header["configs"]),
        batch_size=header["batch_size"],
        error_bound=2 ** (init + delta),
        choice=choice,
        bits=bits,
        zeros=zeros,
        payload_bytes=payload.numel(),
    )


def _read(payload: torch.Tensor) -> dict[str, Any]:
    try:
        return _C.bdi_read(payload)
    except ValueError as error:
        raise PayloadError(str(error)) from None


def _check_tensor(what: str, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} is a {type(tensor).__name__}, allowed: a torch.Tensor")
    plain = tensor.detach()
    _dtypes.check_memory(plain, f"cannot be {what}")
    if plain.device.type != "cpu":
        raise ValueError(f"{what} is on device {plain.device}, allowed: cpu")
    return plain


def _words(tensor: object) -> torch.Tensor:
    words = _check_tensor("words", tensor)
    if words.dtype not in _DTYPES:
        allowed = ", ".join(map(str, _DTYPES))
        raise ValueError(f"words are {words.dtype}, allowed: {allowed}")
    words = words.resolve_neg().contiguous()
    # torch.frombuffer() makes tensors at any address.
    return words.clone() if words.data_ptr() % 4 else words


def _payload(tensor: object) -> torch.Tensor:
    payload = _check_tensor("payload", tensor)
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise ValueError(
            f"payload is {payload.dtype} with {payload.dim()} dimensions, allowed: torch.uint8 "
            "with 1"
        )
    return payload.contiguous()


def _tuple(field: str, values: object, kind: type) -> tuple[Any, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise TypeError(f"{field} is {values!r}, allowed: a sequence of {kind.__name__}")
    found = tuple(values)
    for i, value in enumerate(found):
        if not isinstance(value, kind):
            raise TypeError(f"{field}[{i}] is {value!r}, allowed: a {kind.__name__}")
    return found


def _check_number(field: str, values: tuple[Any, ...], low: int, high: int) -> None:
    if not low <= len(values) <= high:
        raise ValueError(f"{field} has {len(values)} entries, allowed: {low} to {high}")


def _int(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        kind = type(value).__name__
        raise TypeError(f"{field} is {value!r} ({kind}), allowed: an int from {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{field} is {value}, allowed: {low} to {high}")
    return value


def _set_int(owner: object, field: str, low: int, high: int) -> None:
    object.__setattr__(owner, field, _int(field, getattr(owner, field), low, high))


def _set_bool(owner: object, field: str) -> None:
    if not isinstance(getattr(owner, field), bool):
        raise TypeError(f"{field} is {getattr(owner, field)!r}, allowed: True or False")
