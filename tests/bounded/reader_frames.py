"""Payloads of one frame: a part of the second reader of docs/bounded_format.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.bounded.reader_bytes import Cursor
from tests.bounded.reader_own import mostly, others, unpacked
from tests.bounded.reader_values import LOSSLESS, POINTWISE, exact, from_grid


def frame_form(data: Cursor) -> tuple[int, Any, float, int]:
    """How the frame of a payload holds all values: the form; of words their type and the step; the
    bytes of the others.
    """
    form, words, step = data.byte(), None, 0.0
    assert form <= 2
    if form == 1:
        size = data.byte()
        assert size in (1, 2, 4)
        words, step = np.dtype(f"<i{size}"), data.one("d")
    return form, words, step, data.number() if form > 0 else 0


def form_of(payload: torch.Tensor) -> tuple[int, int]:
    """The form of a payload of one frame, and the bytes of a word."""
    data = Cursor(payload.numpy().tobytes())
    kind, dims = data.take(8)[6:]
    data.take(4 + (0, 8, 16, 8)[kind])
    for _ in range(dims):
        data.number()
    form, words, _, _ = frame_form(data)
    return form, words.itemsize if form == 1 else 0


def from_frame(
    frame: bytes,
    how: tuple[int, Any, float, int],
    element: int,
    kind: int,
    bound: float,
    out: np.ndarray,
) -> None:
    form, words, step, size = how
    assert size <= out.nbytes + 18
    if form == 0:
        out[:] = np.frombuffer(unpacked(frame, out.nbytes), out.dtype)
    elif form == 1:
        assert element <= 2 and kind not in (LOSSLESS, POINTWISE)
        assert not exact(element, kind, bound)
        data = Cursor(unpacked(frame, len(out) * words.itemsize + size))
        numbers = data.array(words, len(out)).astype(np.int64)
        from_grid(step, numbers, None, [], element, bound, out, 3)
        others(data, out, element)
    else:
        mostly(Cursor(unpacked(frame, size)), out, element)
