"""Codecs on tensors: values to bytes, and back.

The code that collectives use, callable on its own::

    codec = torch_cgx.codecs.MaxMin(bits=4, bucket_size=512)
    payload = codec.encode(gradient)  # uint8, about numel * 4 / 8 bytes
    restored = codec.decode(payload, numel=gradient.numel())
    error = codec.roundtrip(gradient) - gradient

Payloads depend on the arguments only: not on the machine, its SIMD level or the number of threads,
and not on the device of the tensor. On a GPU all work runs on the current stream of the tensor's
device, and the CPU does not wait; calls inside `torch.cuda.graph` are a RuntimeError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

__all__ = ["Codec", "Half", "MaxMin", "make", "names", "register"]

# DType of csrc/base/dtype.h.
_DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_DTYPES_TEXT = "float32, float16, bfloat16"
_MAX_BUCKET_SIZE = 1 << 40
_ROUNDINGS = ("nearest", "stochastic")
_FORMATS = ("bf16", "fp16")
_DEVICES = ("cpu", "cuda")
_ALIGNMENT = 16  # bytes; the GPU kernels read numbers from the start of a payload


def _engine() -> Any:
    """The extension module; imported late, so that this module can be read without it."""
    from torch_cgx import _C

    return _C


def _load_kernels(major: int, minor: int) -> bytes:
    from torch_cgx import _backend

    return _backend.load_kernels(major, minor)


@runtime_checkable
class Codec(Protocol):
    """The methods of every codec of this module; :class:`MaxMin` documents them."""

    def encode(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        numel: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor: ...

    def roundtrip(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def encoded_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int: ...


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} is {value!r} ({type(value).__name__}), allowed: an int")
    if not low <= value <= high:
        raise ValueError(f"{field} is {value}, allowed: {low} to {high}")


def _check_tensor(what: str, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what} is a {type(tensor).__name__}, allowed: a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} has layout {tensor.layout}, allowed: torch.strided")
    if tensor.device.type not in _DEVICES:
        raise ValueError(f"{what} is on device {tensor.device}, allowed: {', '.join(_DEVICES)}")
    if tensor.is_nested:
        raise TypeError(f"{what} is nested, allowed: a tensor with one shape")
    return tensor.detach()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy whose memory holds its values: lazily negated views hold others there,
    lazy zeros have no memory."""
    if tensor.is_neg() or tensor._is_zerotensor():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.contiguous()


def _aligned(payload: torch.Tensor) -> torch.Tensor:
    return payload if payload.data_ptr() % _ALIGNMENT == 0 else payload.clone()


def _can_take(out: torch.Tensor, payload: torch.Tensor) -> bool:
    """Whether the payload can be decoded straight into the memory of `out`."""
    if out.untyped_storage().data_ptr() == payload.untyped_storage().data_ptr():
        return False
    return out.is_contiguous() and not (out.is_neg() or out._is_zerotensor())


def _dtype_code(what: str, dtype: torch.dtype) -> int:
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPE_CODES:
        raise TypeError(f"{what} is {dtype}, allowed: {_DTYPES_TEXT}")
    return _DTYPE_CODES[dtype]


class _EngineCodec:
    """The methods of a codec of the engine, based on `_spec`."""

    def _spec(self) -> tuple[str, int, int, str, bool, int]:
        """(name, bits, bucket_size, rounding, skip_incomplete_buckets, seed)."""
        raise NotImplementedError

    def _largest_numel(self, size: int, dtype: torch.dtype) -> int:
        """The largest count whose payload has `size` bytes. ValueError if there is none."""
        raise NotImplementedError

    def encoded_bytes(self, numel: int, dtype: torch.dtype = torch.float32) -> int:
        """Exact size in bytes of the payload of ``numel`` values of type ``dtype``."""
        _check_int("numel", numel, 0, 2**60)
        size: int = _engine().codec_encoded_bytes(*self._spec(), numel, _dtype_code("dtype", dtype))
        return size

    def encode(
        self, tensor: torch.Tensor, *, sequence: int = 0, rank: int = 0, index: int = 0
    ) -> torch.Tensor:
        """The payload of ``tensor``, a new uint8 tensor of shape ``(encoded_bytes(numel,
        dtype),)``.

        Args:
            tensor: on the CPU or a GPU, float32, float16 or bfloat16, any shape and strides; values
                are taken in row-major order. The payload is on the same device.
            sequence: number of the call, 0 to 2**64 - 1; with ``rank`` and ``seed`` the key of
                stochastic rounding. No effect with other rounding.
            rank: 0 to 2**31 - 1.
            index: number of the first value within a longer run, 0 to 2**63 - 1: the counter of
                stochastic rounding.

        Raises:
            TypeError: another dtype or layout.
            ValueError: another device, or a number out of range.
            RuntimeError: on a GPU: its driver or kernels are unavailable, or a graph is captured.
        """
        x = _check_tensor("tensor", tensor)
        code = _dtype_code("tensor.dtype", x.dtype)
        _check_int("sequence", sequence, 0, 2**64 - 1)
        _check_int("rank", rank, 0, 2**31 - 1)
        _check_int("index", index, 0, 2**63 - 1)
        x = _dense(x)
        size = self.encoded_bytes(x.numel(), x.dtype)
        payload = torch.empty(size, dtype=torch.uint8, device=x.device)
        if x.is_cuda:
            _engine().gpu_codec_encode(
                *self._spec(), x, payload, sequence, rank, _load_kernels, index=index
            )
            return payload
        _engine().codec_encode(
            *self._spec(),
            x.data_ptr(),
            code,
            x.numel(),
            sequence,
            rank,
            payload.data_ptr(),
            index=index,
        )
        return payload

    def decode(
        self,
        payload: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        numel: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """The values of a payload.

        Args:
            payload: uint8, on the CPU or a GPU, one dimension.
            out: written and returned; its shape and dtype say what the payload holds. On the
                payload's device, any strides.
            numel: how many values the payload holds. By default ``out.numel()``, and without
                ``out`` the largest count whose payload has this size: counts that differ by less
                than a byte share a size, so pass ``numel`` if the exact count matters.
            dtype: type of the tensor that was encoded, and of the result; ignored if ``out`` is
                given.

        Returns:
            ``out``, or a new tensor of shape ``(numel,)`` on the payload's device.

        Raises:
            TypeError: a wrong dtype or layout.
            ValueError: a wrong device; a payload whose size does not fit the count.
            RuntimeError: on a GPU: its driver or kernels are unavailable, or a graph is captured.
        """
        data = _check_tensor("payload", payload)
        if data.dtype != torch.uint8 or data.dim() != 1:
            raise TypeError(
                f"payload is {data.dtype} with {data.dim()} dimensions, "
                "allowed: uint8 with 1 dimension"
            )
        data = _dense(data)
        if out is not None:
            target = _check_tensor("out", out)
            if target.device != data.device:
                raise ValueError(
                    f"out is on device {target.device}, allowed: {data.device}, where payload is"
                )
            if numel is not None and numel != target.numel():
                raise ValueError(f"numel is {numel}, allowed with this out: {target.numel()}")
            dtype, numel = target.dtype, target.numel()
        code = _dtype_code("out.dtype" if out is not None else "dtype", dtype)
        if numel is None:
            numel = self._largest_numel(data.numel(), dtype)
        size = self.encoded_bytes(numel, dtype)
        if size != data.numel():
            raise ValueError(
                f"payload has {data.numel()} bytes, allowed for {numel} values of {dtype}: {size}"
            )
        if data.is_cuda:
            direct = out is not None and _can_take(target, data)
            values = target if direct else torch.empty(numel, dtype=dtype, device=data.device)
            _engine().gpu_codec_decode(*self._spec(), _aligned(data), code, values, _load_kernels)
            if out is None:
                return values
            if direct:  # as an operator of torch does, for autograd
                torch.autograd.graph.increment_version(target)
            else:
                target.copy_(values.view(target.shape))
            return out
        values = torch.empty(numel, dtype=torch.float32)
        _engine().codec_decode(*self._spec(), data.data_ptr(), code, numel, values.data_ptr())
        if dtype != torch.float32:
            narrow = torch.empty(numel, dtype=dtype)
            _engine().codec_convert(values.data_ptr(), 0, numel, narrow.data_ptr(), code)
            values = narrow
        if out is None:
            return values
        target.copy_(values.view(target.shape))
        return out

    def roundtrip(
        self, tensor: torch.Tensor, *, sequence: int = 0, rank: int = 0, index: int = 0
    ) -> torch.Tensor:
        """The values that a receiver decodes: a new tensor of the same shape and dtype. Arguments
        as in encode()."""
        payload = self.encode(tensor, sequence=sequence, rank=rank, index=index)
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self.decode(payload, out)


@dataclass(frozen=True)
class MaxMin(_EngineCodec):
    """Uniform quantization between the minimum and the maximum of each bucket.

    With ``levels = 2**bits - 1``: ``unit = (max - min) / levels``, ``q = round((x - min) / unit)``,
    ``x^ = min + unit * q``, in float32 whatever the tensor's type. ``csrc/codec/maxmin.h`` states
    the bounds: ``|x^ - x| <= unit / 2`` and a few float32 roundings with ``rounding="nearest"``. A
    bucket of equal values is exact; a bucket with a NaN or an Inf comes back as NaN and touches no
    other bucket.

    Args:
        bits: bits per value, 1 to 8.
        bucket_size: values per bucket, 1 to 2**40. 8 bytes per bucket are sent besides the codes.
        rounding: "nearest" (ties to even) or "stochastic" (unbiased).
        seed: of stochastic rounding, 0 to 2**64 - 1.
        skip_incomplete_buckets: the last ``numel % bucket_size`` values are sent raw, in the
            tensor's type.

    Raises:
        ValueError, TypeError: name the field, its value and what is allowed.
    """

    bits: int = 4
    bucket_size: int = 512
    rounding: str = "nearest"
    seed: int = 0
    skip_incomplete_buckets: bool = False

    def __post_init__(self) -> None:
        _check_int("bits", self.bits, 1, 8)
        _check_int("bucket_size", self.bucket_size, 1, _MAX_BUCKET_SIZE)
        _check_int("seed", self.seed, 0, 2**64 - 1)
        if self.rounding not in _ROUNDINGS:
            raise ValueError(f"rounding is {self.rounding!r}, allowed: {', '.join(_ROUNDINGS)}")
        if not isinstance(self.skip_incomplete_buckets, bool):
            value = self.skip_incomplete_buckets
            raise TypeError(f"skip_incomplete_buckets is {value!r}, allowed: True, False")

    def _spec(self) -> tuple[str, int, int, str, bool, int]:
        return (
            "maxmin",
            self.bits,
            self.bucket_size,
            self.rounding,
            self.skip_incomplete_buckets,
            self.seed,
        )

    def _largest_numel(self, size: int, dtype: torch.dtype) -> int:
        """The largest count whose payload has `size` bytes. ValueError where there is none."""
        # Size of k whole buckets, or of k values, never falls with k: bisect.
        unit = self.bucket_size if self.skip_incomplete_buckets else 1
        low, high = 0, size * 8 // (self.bits * unit) + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.encoded_bytes(middle * unit, dtype) <= size:
                low = middle
            else:
                high = middle
        # With a raw rest, fewer buckets and more raw values may have the same size.
        for buckets in range(low, -1, -1):
            rest = size - self.encoded_bytes(buckets * unit, dtype)
            values, odd = divmod(rest, dtype.itemsize)
            if values >= unit:
                break
            if odd == 0:
                return buckets * unit + values
        raise ValueError(f"payload has {size} bytes, which no number of {dtype} values encodes to")


@dataclass(frozen=True)
class Half(_EngineCodec):
    """float32 values rounded to 16 bits, ties to even: ``bits=16`` of a configuration.

    Tensors of 16 bits are coded in their own type, exact, whatever the format.

    Args:
        format: "bf16" (float32's range, 8 bits of precision) or "fp16" (11 bits; values from 65520
            on become infinite). Infinities and NaN are kept.

    Raises:
        ValueError, TypeError: name the field, its value and what is allowed.
    """

    format: str = "bf16"

    def __post_init__(self) -> None:
        if not isinstance(self.format, str):
            kind = type(self.format).__name__
            raise TypeError(f"format is {self.format!r} ({kind}), allowed: {', '.join(_FORMATS)}")
        if self.format not in _FORMATS:
            raise ValueError(f"format is {self.format!r}, allowed: {', '.join(_FORMATS)}")

    def _spec(self) -> tuple[str, int, int, str, bool, int]:
        return (self.format, 16, 1, "nearest", False, 0)

    def _largest_numel(self, size: int, dtype: torch.dtype) -> int:
        if size % 2:
            raise ValueError(f"payload has {size} bytes, which no number of values encodes to")
        return size // 2


_factories: dict[str, Callable[..., Codec]] = {
    "maxmin": MaxMin,
    **{name: partial(Half, name) for name in _FORMATS},
}


def register(name: str, factory: Callable[..., Codec]) -> None:
    """Adds a codec under a name that is not taken (ValueError otherwise)."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"codec name is {name!r}, allowed: a text that is not empty")
    if not callable(factory):
        raise TypeError(f"factory of codec {name!r} is {factory!r}, allowed: a callable")
    if name in _factories:
        raise ValueError(f"codec name {name!r} is taken, allowed: none of {', '.join(names())}")
    _factories[name] = factory


def names() -> tuple[str, ...]:
    """The names that :func:`make` accepts, sorted."""
    return tuple(sorted(_factories))


def make(name: str, **params: Any) -> Codec:
    """The codec of that name: ``make("maxmin", bits=4)``, ``make("fp16")``. An unknown name is a
    ValueError."""
    if not isinstance(name, str) or name not in _factories:
        raise ValueError(f"codec is {name!r}, allowed: {', '.join(names())}")
    return _factories[name](**params)
