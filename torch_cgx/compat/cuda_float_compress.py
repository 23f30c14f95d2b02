"""The two functions of cuda_float_compress 0.2.3, in its format, with or without a GPU::

    from torch_cgx.compat import cuda_float_compress

    payload = cuda_float_compress.cuszplus_compress(x, 1e-4)  # uint8, on the CPU
    y = cuda_float_compress.cuszplus_decompress(payload, "cpu").view(x.shape)

CUDA tensors are quantised and shuffled on their device, and decoded there, by kernels; others on
the CPU, on one thread. Payloads, values and errors are the same. The entropy coder runs on the CPU,
on one thread: the package zstandard, which the extra "bounded" installs: ``pip install
"torch_cgx[bounded]"``.

A payload has twelve bytes in front, little-endian: magic 0x00010203 (uint32), number of values
(uint32), step (float32); then one Zstandard frame, of level 1. csrc/codec/compat/
cuda_float_compress.h has the stages before it. Shape, dtype and device are not in it.

Differences to the original, all within the format:

- The step is 2 * max_error, and quotients are those of the original, unless a value would then
  decode further than max_error from the original's: rounding in float32 breaks the bound, by 0.08 %
  at magnitude 1 and by a factor of ten at 10^4. Then a neighbour of the quotient is taken; if none
  is within the bound, either, the step of the payload is a little smaller (`cuszplus_compress`).
- NaN, Inf and values of 2^31 steps and more are an error; the original changes them silently.
- Empty tensors have a payload. The memory of a payload is as long as the payload.
- Frames have Zstandard's checksum, which every reader checks: altered payloads are an error, but
  for those altered in their first twelve bytes. Payloads without it are read, too.
- Malformed payloads are an error; the original prints a line and returns an empty tensor.
- The CPU is a device. Decompressing works on the given device, whatever the current one.
"""

from __future__ import annotations

import math
import struct
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes, _entropy
from torch_cgx.bounded._bound import real
from torch_cgx.bounded._memory import CPU, new_tensor
from torch_cgx.compat import _stages

__all__ = ["CuszplusError", "cuszplus_compress", "cuszplus_decompress"]

_MAGIC = 0x00010203
_HEADER = struct.Struct("<IIf")
_MOST_VALUES = 2**31 - 1
_SMALLEST_BOUND, _LARGEST_BOUND = 2.0**-127, (2 - 2.0**-23) * 2.0**126  # of max_error


class CuszplusError(ValueError, RuntimeError):
    """An argument or a payload is wrong. Both kinds of error: torch_cgx raises ValueError in such
    cases, and the original RuntimeError.
    """


@safe_after_fork
def cuszplus_compress(
    input: torch.Tensor, max_error: float, *, strict: bool = False
) -> torch.Tensor:
    """A payload that decodes to the values of ``input`` within ``max_error``: uint8, 1-D, on the
    CPU, exactly as long as needed.

    Decoded values y are float32, and |x - y| <= max_error in float64 for every x, with one
    exception. The step is 2 * max_error, rounded to float32, if all values decode within the bound
    with it. Else it is a multiple of the spacing of float32 values at the largest |x|, or a power
    of two if that spacing is above 2 * max_error: quotients times such a step are exact. This costs
    less than 0.001 bits a value where all |x| are below 10^4 max_error, and at most one bit.

    The exception: some |x| is above 2^31 such steps, or next to the largest float32. Then the
    payload has the step of the original, and errors are those of its arithmetic, up to about
    2^-22 |x| + max_error; with ``strict``, this is an error.

    Args:
        input: float32, any shape, strides and device; values are taken in row-major order. 2^31 - 1
            at most.
        max_error: the bound, 2^-127 to about 1.7e38, in the unit of the values.
        strict: refuse a payload that breaks the bound.

    Raises:
        CuszplusError: another dtype or layout, a max_error out of range, a value that is NaN, Inf
            or of 2^31 steps and more (the first is named), or with ``strict`` a value out of the
            bound.
        TypeError: an argument of another type.
        ImportError: zstandard is not installed.
    """
    zstandard = _zstandard()
    stages = _stages_of(input)
    bound = real("max_error", max_error)
    if not _SMALLEST_BOUND <= bound <= _LARGEST_BOUND:
        raise CuszplusError(
            f"max_error is {bound}, allowed: {_SMALLEST_BOUND:.3g} to {_LARGEST_BOUND:.3g}"
        )
    step = float(np.float32(2 * bound))
    frame, misfit = _encode(zstandard, stages, step, bound, keep_going=False)
    if misfit is not None:
        largest = _check_range(stages, step, bound)
        smaller = _C.cuda_float_compress_step(bound, largest)
        frame, misfit = _encode(zstandard, stages, smaller, bound, keep_going=False)
        if misfit is None:
            step = smaller
        elif strict:
            raise CuszplusError(
                f"value {misfit} is {stages.value(misfit)!s}, which this format cannot bring "
                f"within max_error={bound}; strict=False allows it the error of float32 arithmetic"
            )
        else:
            frame, _ = _encode(zstandard, stages, step, bound, keep_going=True)
    contents = [_HEADER.pack(_MAGIC, stages.size, step), *frame]
    payload = _result(sum(map(len, contents)), torch.uint8)
    memory, at = payload.numpy().data, 0
    for some in contents:
        memory[at : at + len(some)] = some
        at += len(some)
    return payload


@safe_after_fork
def cuszplus_decompress(compressed: torch.Tensor, device: Any) -> torch.Tensor:
    """The values of a payload: float32, 1-D, on ``device``.

    The memory that it takes is at most 2^15 times the payload's: the count of values is checked
    against the blocks that the payload really has, before anything is allocated.

    Args:
        compressed: a payload of this module or of the original: uint8, on the CPU.
        device: of the result, a torch.device or what makes one ("cpu", "cuda:1").

    Raises:
        CuszplusError: another dtype or layout, a tensor on a GPU, or a payload that is cut, altered
            or of another format.
        RuntimeError: torch does not know the device.
        TypeError: an argument of another type.
        ImportError: zstandard is not installed.
    """
    zstandard = _zstandard()
    target = torch.device(device)
    payload = _bytes_of(compressed).data
    n, step = _header_of(payload)
    frame = payload[_HEADER.size :]
    try:
        _check_frame(zstandard, frame, n)
        y = _result(n, torch.float32, target)
        _decode(zstandard, frame, step, y)
    except zstandard.ZstdError as error:
        raise CuszplusError(f"the payload's Zstandard frame is malformed: {error}") from error
    return y.to(target)


def _zstandard() -> ModuleType:
    library: ModuleType = _entropy.library("the format of cuda_float_compress")
    return library


def _result(size: int, dtype: torch.dtype, device: torch.device = CPU) -> torch.Tensor:
    try:
        return new_tensor((size,), dtype, device)
    except ValueError as error:
        raise CuszplusError(str(error)) from None


def _checked(name: str, tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    """The tensor, detached."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, allowed: a torch.Tensor")
    plain = tensor.detach()
    if plain.dtype != dtype:
        raise CuszplusError(f"{name} has the dtype {plain.dtype}, allowed: {dtype}")
    try:
        _dtypes.check_memory(plain, f"cannot be {name}")
    except ValueError as error:
        raise CuszplusError(str(error)) from None
    if plain.is_meta:
        raise CuszplusError(f"{name} is on the device meta, which has no values")
    return plain


def _stages_of(tensor: torch.Tensor) -> _stages.OnCpu | _stages.OnGpu:
    plain = _checked("input", tensor, torch.float32)
    if plain.numel() > _MOST_VALUES:
        raise CuszplusError(f"input has {plain.numel()} values, allowed: {_MOST_VALUES} at most")
    return (_stages.OnGpu if plain.is_cuda else _stages.OnCpu)(plain)


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    plain = _checked("compressed", tensor, torch.uint8)
    if plain.device.type != "cpu":
        raise CuszplusError(f"compressed is on the device {plain.device}, allowed: cpu")
    return plain.contiguous().numpy().reshape(-1)


def _encode(
    zstandard: ModuleType,
    stages: _stages.OnCpu | _stages.OnGpu,
    step: float,
    bound: float,
    keep_going: bool,
) -> tuple[list[bytes], int | None]:
    """The frame, as a list of bytes to join; the index of the first value that does not fit, or
    None.
    """
    size = 4 * _stages.raw_words(stages.size)
    coder = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj(size=size)
    frame = []
    for start in range(0, stages.size, stages.at_once):
        raw, misfit = stages.encode(start, step, bound, keep_going)
        if misfit is not None:
            return [], misfit
        # As many bytes at once on every device, as the frame may depend on their number.
        for at in range(0, len(raw), _stages.ON_CPU):
            frame.append(coder.compress(raw[at : at + _stages.ON_CPU]))
    frame.append(coder.flush())
    return frame, None


def _check_range(stages: _stages.OnCpu | _stages.OnGpu, step: float, bound: float) -> float:
    """The largest magnitude."""
    first, largest = stages.first_out_of_range(step)
    if first < stages.size:
        raise CuszplusError(
            f"value {first} is {stages.value(first)!s}; allowed with max_error={bound}: finite "
            f"values below 2^31 steps, {2.0**31 * step:.7g}"
        )
    return largest


def _header_of(payload: memoryview) -> tuple[int, float]:
    if len(payload) < _HEADER.size:
        raise CuszplusError(f"the payload has {len(payload)} bytes, fewer than its header")
    magic, n, step = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        raise CuszplusError(f"the payload starts with 0x{magic:08x}, not with 0x{_MAGIC:08x}")
    if n > _MOST_VALUES:
        raise CuszplusError(f"the payload claims {n} values, allowed: {_MOST_VALUES} at most")
    if not 0 < step < math.inf:
        raise CuszplusError(f"the payload's step is {step}, allowed: finite and above 0")
    return n, step


def _check_frame(zstandard: ModuleType, frame: memoryview, n: int) -> None:
    """The frame is all of `frame`, and its blocks can hold what n values need. Reads the headers of
    the frame and its blocks (RFC 8878, 3.1.1) only.
    """
    if frame[:4] != b"\x28\xb5\x2f\xfd":
        raise CuszplusError("no Zstandard frame follows the payload's header")
    parameters = zstandard.get_frame_parameters(frame)
    expected = 4 * _stages.raw_words(n)
    if parameters.content_size != expected:
        known = parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN
        claimed = f"{parameters.content_size} bytes" if known else "an unknown number of bytes"
        raise CuszplusError(
            f"the payload's frame claims {claimed}, where its {n} values have {expected}"
        )
    at, blocks, last = zstandard.frame_header_size(frame), 0, False
    while not last:
        head = int.from_bytes(frame[at : at + 3], "little")  # behind the end: 0, not the last
        last, repeats, size = bool(head & 1), head >> 1 & 3 == 1, head >> 3
        at += 3 + (1 if repeats else size)
        blocks += 1
        if at > len(frame):
            break
    at += 4 if parameters.has_checksum else 0
    if at != len(frame):
        what = "is cut" if at > len(frame) else f"has {len(frame) - at} bytes behind its frame"
        raise CuszplusError(f"the payload {what}")
    if 4 * _stages.BLOCK * blocks < expected:
        raise CuszplusError(
            f"the payload's frame has {blocks} blocks, too few for {expected} bytes of content"
        )


def _decode(zstandard: ModuleType, frame: memoryview, step: float, y: torch.Tensor) -> None:
    with zstandard.ZstdDecompressor().stream_reader(frame) as reader:

        def read(raw: _stages.Words) -> None:
            left = raw.data.cast("B")
            while left:
                got = reader.readinto(left)
                if got == 0:
                    raise CuszplusError("the payload's frame holds less than it claims")
                left = left[got:]

        _stages.decode(read, step, y)
        if reader.read(1):  # also reads the checksum
            raise CuszplusError("the payload's frame holds more than it claims")
