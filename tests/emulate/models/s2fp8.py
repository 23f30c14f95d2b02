"""A model of S2FP8 in NumPy and float64, from the words of docs/formats.md."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulate.models.draws import Words, goes_up
from tests.emulate.oracles import numbers

Doubles = npt.NDArray[np.float64]
GRID = numbers("e5m2")
NEAR = 1e-6  # of a border, relative: there the logarithms decide, and are not compared


def squeeze(x: Doubles) -> tuple[float, float] | None:
    """alpha and beta; None: magnitudes are all equal."""
    found = np.log2(np.abs(x[np.isfinite(x) & (x != 0)]))
    if len(found) == 0 or found.min() == found.max():
        return None
    greatest = float(found.max())
    width = greatest - math.fsum(found) / len(found)
    alpha = float(np.float32(15 / max(width, 15 * 2.0**-16)))
    return alpha, float(np.float32(15 - alpha * greatest))


def to_e5m2(
    y: Doubles, rounding: str, draws: Words | None, bits: int
) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """The number of each magnitude, and whether it is far from where another one begins."""
    place = np.clip(np.searchsorted(GRID, y, side="right") - 1, 0, len(GRID) - 2)
    low, high = GRID[place], GRID[place + 1]
    fraction = (y - low) / (high - low)
    if rounding == "nearest":
        border = np.full(len(y), 0.5)
        up = (fraction > 0.5) | ((fraction == 0.5) & (place % 2 == 1))
    elif rounding == "zero":
        border = np.round(fraction)
        up = fraction >= 1
    else:
        assert draws is not None
        up = (fraction >= 1) | goes_up(np.clip(fraction, 0, 1 - 2.0**-53), draws, bits)
        random = (draws >> np.uint64(32 - bits)).astype(np.float64)
        border = 1 - random * 2.0**-bits
        # One of the two ends of the interval may be as near.
        border = np.where(np.abs(np.round(fraction) - fraction) < NEAR, fraction, border)
    far = np.abs(low + border * (high - low) - y) > NEAR * y
    exact = (y == low) | (y == high)  # as powers of two are, in the logarithm
    return np.where(up, high, low), far | exact


def cast(
    x: npt.NDArray[Any], rounding: str = "nearest", draws: Words | None = None, bits: int = 24
) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """The result, and which values of it count."""
    wide = x.astype(np.float64)
    found = squeeze(wide)
    if found is None:
        return wide, np.ones(wide.shape, bool)
    alpha, beta = found
    given = np.isfinite(wide) & (wide != 0)
    logs = np.log2(np.abs(np.where(given, wide, 1)))
    y, sure = to_e5m2(np.exp2(np.maximum(alpha * logs + beta, -100)), rounding, draws, bits)
    back = np.exp2((np.log2(np.where(y == 0, 1, y)) - beta) / alpha)
    result = np.where(given, np.copysign(np.where(y == 0, 0, back), wide), wide)
    return result, sure | ~given
