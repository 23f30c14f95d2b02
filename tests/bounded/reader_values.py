"""Which maps of docs/bounded_format.md values have, and values of words: a part of the second
reader.
"""

from __future__ import annotations

import numpy as np

from tests.bounded.reader_maps import from_order, lattice, log_grid
from tests.bounded.reader_own import MULTIPLES, PALETTE, from_own

# Element: numpy dtype of the bits.
BITS = {
    1: np.uint32, 2: np.uint64, 3: np.uint16, 4: np.uint16, 5: np.uint8, 6: np.uint8, 7: np.uint16,
    8: np.uint16, 9: np.uint32, 10: np.uint32, 11: np.uint64, 12: np.uint64, 13: np.uint8,
}  # fmt: skip
ROUNDER = 0x4338000000000000  # the bits of 1.5 * 2^52
ORDER, GRID, LATTICE, LOG_GRID = range(2, 6)
OWN = (PALETTE, MULTIPLES)
LOSSLESS, MAX_ERROR, RELATIVE, POINTWISE = range(4)


def word_bits(out):
    return 64 if out.itemsize == 8 else 32


def exact(element, kind, bound):
    """Whether values have neither grid nor lattice nor log grid: they are lossless, or no such map
    takes their bound.
    """
    if kind == LOSSLESS or element > 4:
        return True
    if kind == POINTWISE:
        return element <= 2 and np.ceil(1 / (2 * bound)) >= 2.0**40
    return element <= 2 and not 2.0**-1000 <= bound <= 2.0**1000


def check_map(how, element, kind, bound, n, version):
    """Whether blocks of n of these values have this map. how: it, its shift and origin. Returns the
    bytes of the map itself.
    """
    how, shift, origin = how
    if how in OWN:
        assert version == 3 and shift == 0
        assert (how == PALETTE or element <= 2) and 1 <= origin <= 10 * n + 32
        return origin
    bounded = {3: LATTICE, 4: LATTICE}.get(element, LOG_GRID if kind == POINTWISE else GRID)
    assert how == ORDER or (how == bounded and not exact(element, kind, bound))
    bits = 8 * np.dtype(BITS[element]).itemsize
    assert shift < bits if how == ORDER else shift == 0
    if how == LOG_GRID:
        assert (-1074 if element == 2 and version >= 2 else -1022) <= origin <= 1023
    elif how != GRID:
        top = (2 ** (bits - 1) - 1) >> shift if how == ORDER and element <= 4 else 0
        assert 0 <= origin <= max(top - 1, 0)
    return 0


def from_grid(step, words, drawn, places, element, bound, out, version):
    """drawn: the curve, or none. places: of special values."""
    assert 0 < step <= 2 * bound
    if element == 2 and version == 1:
        numbers = (words.view(np.uint64) + np.uint64(ROUNDER)).view(np.float64) - 1.5 * 2.0**52
    else:
        most = 2**31 - 1 if element == 1 else 2**51
        assert (words >= -most).all() and (words <= most).all()
        numbers = words.astype(np.float64)
    if drawn is not None:
        numbers = numbers + drawn
    with np.errstate(over="ignore"):
        values = (numbers * step).astype(np.float32 if element == 1 else np.float64)
    assert np.isfinite(np.delete(values, places)).all()
    out[:] = values.view(out.dtype)


def from_words(how, words, element, kind, bound, out, version, of_map):
    """All maps but the grid. how: the map, its shift and origin. of_map: the bytes of the map."""
    how, shift, origin = how
    if how in OWN:
        from_own(how, words, element, of_map, out)
    elif how == ORDER:
        out[:] = from_order(words, element, shift, origin, out.dtype)
    elif how == LATTICE:
        groups = np.array(lattice(element, bound, kind != POINTWISE, version), np.uint16)
        assert (np.abs(words) < len(groups)).all()
        out[:] = groups[np.abs(words)] | np.where(words < 0, 0x8000, 0).astype(np.uint16)
    else:
        with np.errstate(over="ignore", under="ignore"):
            values = log_grid(words.astype(np.int64), bound, origin)
            values = values.astype(np.float32 if element == 1 else np.float64)
        assert np.isfinite(values).all() and ((values == 0) == (words == 0)).all()
        out[:] = values.view(out.dtype)
