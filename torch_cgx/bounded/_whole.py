"""Tensors as one frame of the entropy coder, which finds what repeats far away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import LOSSLESS, Bound, maps_of
from torch_cgx.bounded._entropy import lent
from torch_cgx.bounded._payload import Payload, PayloadError, header_of

# Bytes of each part by which repetitions are seen: the beginning, the middle and the end.
_PART = 1 << 20
# Tensors of fewer bytes are one block or two, in which the entropy coder finds repetitions itself.
_LEAST = 1 << 17
# Blocks that are shorter than their values by this factor hold nearly the same value everywhere. A
# payload has at least 1 / _FLOOR of the bytes of its values.
_NEARLY_CONSTANT, _FLOOR = 1024, 1 << 17
# A deeper search runs only if the frame is shorter than its content by this factor: it is slow on
# content that repeats less.
_SHORT = 4


class Frame(NamedTuple):
    """A frame that holds all values of a tensor: its form, its content, its compressed bytes."""

    whole: Any
    content: memoryview
    data: bytes


def repeats(reals: torch.Tensor) -> bool:
    """Whether rows of a contiguous tensor of any device seem to repeat."""
    if reals.nbytes < _LEAST:
        return False
    flat, count = reals.view(-1), _PART // reals.element_size()
    last = max(flat.numel() - count, 0)
    starts = sorted({0, last // 2, last})
    return any(_C.bounded_repeats(flat[start : start + count].cpu()) for start in starts)


def is_tiny(payload: float, reals: torch.Tensor) -> bool:
    """Whether blocks of `payload` bytes show that nearly all values are the same."""
    return payload * _NEARLY_CONSTANT < reals.nbytes


def nearly_constant(reals: torch.Tensor, payload: torch.Tensor) -> bool:
    """Whether nearly all values are the same, and one frame could halve the payload of blocks."""
    least = max(128, 2 * reals.nbytes // _FLOOR)
    return reals.nbytes >= _LEAST and least < payload.nbytes and is_tiny(payload.nbytes, reals)


def in_words(reals: torch.Tensor, bound: Bound) -> Frame | None:
    """Returns a frame of words of one grid; for a lossless bound, a frame of the values. Returns
    None if the bound has no grid, or too many values have no word. reals: contiguous, on the CPU.
    """
    if bound.kind == LOSSLESS:
        return as_values(reals)
    return _framed(_C.bounded_words_of_all(maps_of(_dtypes.ELEMENTS[reals.dtype], bound), reals))


def as_values(reals: torch.Tensor) -> Frame:
    """Returns a frame of the values themselves."""
    content = reals.view(-1).view(torch.uint8).numpy().data
    with lent() as entropy:
        return Frame(_C.BoundedWhole(), content, entropy.compress_bytes(content))


def as_mostly(reals: torch.Tensor) -> Frame | None:
    """Returns a frame of the most frequent value and a list of all that differ, None if many do."""
    return _framed(_C.bounded_mostly_of_all(_dtypes.ELEMENTS[reals.dtype], reals))


def _framed(found: tuple[Any, bytes] | None) -> Frame | None:
    if found is None:
        return None
    content = memoryview(found[1])
    with lent() as entropy:
        return Frame(found[0], content, entropy.compress_bytes(content))


def payload_of(
    frame: Frame, reals: torch.Tensor, bound: Bound, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns the payload of the frame. Compresses its content again if that may shorten it."""
    data = frame.data
    if _SHORT * len(data) < frame.content.nbytes:
        with lent() as entropy:
            data = entropy.compress_again(frame.content, data)
    header = header_of(reals, bound, shape, dtype)
    payload = _C.bounded_write_whole(*header, frame.whole, memoryview(data))
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def decode_whole(opened: Payload, first: int, last: int, reals: torch.Tensor) -> None:
    """Decodes the values [first, last) into a contiguous tensor of a real dtype. PayloadError."""
    maps = opened.maps()  # refuses a bound that the type does not have
    whole: Any = opened.whole
    try:
        with lent() as entropy:
            size = whole.content_bytes(maps, opened.reals)
            content = entropy.decompress(opened.block(0), size)
        host = reals if reals.device.type == "cpu" else torch.empty_like(reals, device="cpu")
        whole.decode(maps, content, opened.reals, first, last, host)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    if host is not reals:
        with torch.no_grad():
            reals.copy_(host)
