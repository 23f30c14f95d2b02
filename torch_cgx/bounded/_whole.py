"""Tensors as one frame of the entropy coder, which finds what repeats far away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import LOSSLESS, Bound, maps_of
from torch_cgx.bounded._entropy import lent
from torch_cgx.bounded._payload import Payload, PayloadError

# Bytes of each part by which repetitions are seen: the beginning, the middle and the end.
_PART = 1 << 20
# Tensors of fewer bytes are one block or two, in which the entropy coder finds repetitions itself.
_LEAST = 1 << 17
# Blocks of values of which nearly all are the same are shorter than the values by this factor; a
# payload is at least as long as 1 / _FLOOR of these.
_NEARLY_CONSTANT, _FLOOR = 1024, 1 << 17
# Frames are searched deeper where they are shorter than their content by this factor: there it is
# quick.
_SHORT = 4


class Frame(NamedTuple):
    """How a frame holds all values of a tensor, what it holds, and its bytes."""

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
    """Whether blocks of so many bytes say that nearly all values are the same."""
    return payload * _NEARLY_CONSTANT < reals.nbytes


def nearly_constant(reals: torch.Tensor, payload: torch.Tensor) -> bool:
    """Whether the blocks of a payload say so, and one frame could be shorter by half."""
    least = max(128, 2 * reals.nbytes // _FLOOR)
    return reals.nbytes >= _LEAST and least < payload.nbytes and is_tiny(payload.nbytes, reals)


def in_words(reals: torch.Tensor, bound: Bound) -> Frame | None:
    """A frame of the words of one grid, or, lossless, of the values. None: the bound or the values
    have no such words. reals: contiguous, on the CPU.
    """
    if bound.kind == LOSSLESS:
        return as_values(reals)
    return _framed(_C.bounded_words_of_all(maps_of(_dtypes.ELEMENTS[reals.dtype], bound), reals))


def as_values(reals: torch.Tensor) -> Frame:
    """A frame of values, which keep the bound."""
    content = reals.view(-1).view(torch.uint8).numpy().data
    with lent() as entropy:
        return Frame(_C.BoundedWhole(), content, entropy.compress_bytes(content))


def as_mostly(reals: torch.Tensor) -> Frame | None:
    """A frame of the most frequent value and the others. None: these are many."""
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
    """The payload of a frame, or of a shorter one with the same content."""
    data = frame.data
    if _SHORT * len(data) < frame.content.nbytes:
        with lent() as entropy:
            data = entropy.compress_again(frame.content, data)
    payload = _C.bounded_write_whole(
        _dtypes.ELEMENTS[reals.dtype],
        dtype in _dtypes.REAL_TYPES,
        bound.kind,
        bound.asked,
        bound.value,
        list(shape),
        frame.whole,
        memoryview(data),
    )
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
