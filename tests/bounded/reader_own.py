"""Maps that blocks bring with them, and blocks without words: a part of the second reader of
docs/bounded_format.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard

from tests.bounded.reader_bytes import Cursor

PALETTE, MULTIPLES = 7, 8
BOOL = 13  # a type
FLOATING, UNSIGNED = (1, 2, 3, 4), (5, 8, 13)  # types; of UNSIGNED those of 8 and 16 bits


def unframed(frame: bytes, most: int) -> bytes:
    """What one Zstandard frame holds."""
    try:
        return zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=most, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise AssertionError(str(error)) from None


def unpacked(frame: bytes, size: int) -> bytes:
    """The same, of so many bytes."""
    content = unframed(frame, max(size, 1))
    assert len(content) == size
    return content


def palette(own: bytes, element: int, dtype: Any) -> np.ndarray:
    """The bits of the listed values."""
    data = Cursor(own)
    count = data.number()
    assert 1 <= count <= 65536
    bits = 8 * np.dtype(dtype).itemsize
    sign, place, found = 1 << bits - 1, -1, []
    for _ in range(count):
        place += data.number() + 1
        assert place < 1 << bits
        if element in FLOATING:
            found.append(place ^ sign if place & sign else place ^ (2 * sign - 1))
        else:
            found.append(place if element in UNSIGNED else place ^ sign)
    assert data.left() == 0
    return np.array(found, dtype)


def multiples(own: bytes, words: np.ndarray, number: Any) -> np.ndarray:
    """The values, of the type `number`."""
    data, n = Cursor(own), len(words)
    way, width, start = data.byte(), data.number(), data.number()
    assert way <= 1 and width <= 2 * n and start < max(width, 1)
    rows = -(-(start + n) // width) if width else 1
    units = data.array(np.float64, rows)
    assert data.left() == 0 and np.isfinite(units).all() and (units > 0).all()
    unit = units[(start + np.arange(n)) // width if width else np.zeros(n, int)]
    with np.errstate(all="ignore"):
        found = words / unit if way else words * unit
        values = found.astype(number)
    assert np.isfinite(values).all()
    return values


def from_own(how: int, words: np.ndarray, element: int, own: bytes, out: np.ndarray) -> None:
    if how == PALETTE:
        listed = palette(own, element, out.dtype)
        assert (words >= 0).all() and (words < len(listed)).all()
        out[:] = listed[words]
    else:
        values = multiples(own, words.astype(np.float64), {1: np.float32, 2: np.float64}[element])
        out[:] = values.view(out.dtype)


def mostly(data: Cursor, out: np.ndarray, element: int) -> None:
    """One value, but for a few."""
    out[:] = value_of(data, out, element)
    others(data, out, element)


def value_of(data: Cursor, out: np.ndarray, element: int) -> Any:
    value = data.array(out.dtype, 1)[0]
    assert element != BOOL or value <= 1
    return value


def others(data: Cursor, out: np.ndarray, element: int) -> None:
    """Values at places of their own."""
    at = 0
    for _ in range(data.number()):
        at += data.number()
        assert at < len(out)
        out[at] = value_of(data, out, element)
        at += 1
    assert data.left() == 0


def from_bytes(data: Cursor, out: np.ndarray) -> None:
    """A frame of rearranged bytes."""
    way, n, each = data.byte(), len(out), out.itemsize
    content = np.frombuffer(unpacked(data.take(data.left()), out.nbytes), np.uint8)
    assert way <= 2
    left = n % 8 if way == 2 else 0
    planes, rest = content[: (n - left) * each], content[(n - left) * each :]
    if way == 2:
        bits = np.unpackbits(planes, bitorder="little").reshape(each, 8, n - left)
        planes = np.packbits(bits, axis=1, bitorder="little")
    if way != 0:
        planes = planes.reshape(each, n - left).T
    content = np.concatenate([planes.reshape(-1), rest])
    out[:] = np.frombuffer(np.ascontiguousarray(content).tobytes(), out.dtype)
