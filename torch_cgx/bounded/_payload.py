"""Payloads: their bytes and their header."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import Bound, maps_of
from torch_cgx.bounded._entropy import Coder


class PayloadError(ValueError):
    """A payload does not follow the format: it is of another version, was cut, or was altered."""


@dataclasses.dataclass(frozen=True)
class Payload:
    """An open payload. version: of the format. places: where each block begins and ends in `data`.
    whole: how the frame at the only place holds all values; None: they are in blocks.
    """

    data: memoryview
    dtype: torch.dtype
    element: int
    shape: tuple[int, ...]
    bound: Bound
    version: int
    places: list[tuple[int, int]]
    whole: Any

    @property
    def reals(self) -> int:
        """Number of real values: a complex number is two, as in the format."""
        return math.prod(self.shape) * (2 if self.dtype in _dtypes.REAL_TYPES else 1)

    def block(self, number: int) -> memoryview:
        begin, end = self.places[number]
        return self.data[begin:end]

    def values_of(self, number: int) -> int:
        size = _C.BOUNDED_BLOCK_VALUES
        return min(size, self.reals - number * size)

    def maps(self) -> Any:
        try:
            return maps_of(self.element, self.bound, self.version)
        except ValueError as error:
            raise PayloadError(str(error)) from None


def bytes_of(payload: Any) -> memoryview:
    """The bytes of a payload. TypeError, ValueError: neither a 1-D uint8 tensor nor contiguous
    bytes.
    """
    if isinstance(payload, torch.Tensor):
        if payload.dtype != torch.uint8 or payload.dim() != 1:
            raise ValueError(
                f"the payload is a {payload.dim()}-D tensor of {_dtypes.name(payload.dtype)}, "
                "expected a 1-D tensor of uint8"
            )
        plain = payload.detach()
        _dtypes.check_memory(plain, "cannot be the payload")
        plain = plain.cpu().contiguous()
        return plain.numpy().data if plain.numel() > 0 else memoryview(b"")
    if isinstance(payload, bytes | bytearray | memoryview):
        view = memoryview(payload)
        if not view.c_contiguous:
            raise ValueError("the payload's bytes are not contiguous: copy them, as bytes() does")
        return view.cast("B") if view.nbytes > 0 else memoryview(b"")
    raise TypeError(
        f"the payload is a {type(payload).__name__}, expected a 1-D uint8 tensor or bytes"
    )


def header_of(
    reals: torch.Tensor, bound: Bound, shape: Sequence[int], dtype: torch.dtype
) -> tuple[int, bool, int, float, float, list[int]]:
    """The first arguments of the functions that write a payload. reals: the values, of a real
    dtype; shape, dtype: of the tensor.
    """
    element, is_complex = _dtypes.ELEMENTS[reals.dtype], dtype in _dtypes.REAL_TYPES
    return element, is_complex, bound.kind, bound.asked, bound.value, list(shape)


def open_payload(payload: Any) -> Payload:
    """Reads the header. PayloadError: it does not follow the format, or the payload was cut."""
    data = bytes_of(payload)
    try:
        opened = _C.bounded_read(data)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    element, is_complex, kind, asked, value, version, shape, places, whole = opened
    dtype = _dtypes.DTYPES[element]
    if is_complex:
        dtype = _dtypes.COMPLEX[dtype]
    bound = Bound(kind, asked, value)
    return Payload(data, dtype, element, tuple(shape), bound, version, places, whole)


@contextlib.contextmanager
def of_block(number: int) -> Iterator[None]:
    """Turns a ValueError of the body into a PayloadError that names the block."""
    try:
        yield
    except ValueError as error:
        raise PayloadError(f"block {number}: {error}") from None


def content_of(opened_block: Any, entropy: Coder) -> bytes:
    """The decompressed frame of an open block; empty if the block has no frame. ValueError."""
    frame = opened_block.frame
    return entropy.decompress(frame, opened_block.content_bytes) if frame else b""
