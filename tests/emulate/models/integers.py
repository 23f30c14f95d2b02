"""A model of fixed point and of integers with a scale, in NumPy, from the words of docs/formats.md.
Integers are computed in the type that values come in, float32 or float64, with scales of float32.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulate.models.draws import Words, to_integers

Floats = npt.NDArray[Any]
LARGEST = float(np.finfo(np.float32).max)
LEAST = 2.0**-149


def fixed(
    x: Floats,
    word: int,
    fraction: int,
    rounding: str = "nearest",
    symmetric: bool = False,
    draws: Words | None = None,
    bits: int = 24,
) -> Floats:
    """k 2^-fraction, in float64."""
    most = 2.0 ** (word - 1) - 1
    k = to_integers(np.ldexp(x.astype(np.float64), fraction), rounding, draws, bits)
    k = np.clip(k, -most - (not symmetric), most)
    return np.ldexp(k, -fraction) + 0.0  # there is no -0


@dataclasses.dataclass(frozen=True)
class Integers:
    """As emulate.Integer, of one group."""

    bits: int = 8
    scale: str = "absmax"
    rounding: str = "nearest"
    random_bits: int = 24


def _scale(x: float) -> np.float32:
    """Infinite beyond float32."""
    with np.errstate(over="ignore"):
        return np.float32(max(x, LEAST))


def _range_of(x: Floats, of: Integers) -> tuple[float, float, float]:
    """Scale, and the lowest and the highest integer."""
    low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
    amax, most = max(-low, high), 2.0 ** (of.bits - 1) - 1
    if of.scale == "power":
        power = next((s for s in range(-127, 128) if amax <= most * 2.0**s), 127)
        return 2.0**power, -most, most
    if of.scale == "absmax":
        scale = _scale(amax / most) if amax else np.float32(1)
        if most * float(scale) > LARGEST:
            scale = np.nextafter(scale, np.float32(0))
        return float(scale), -most, most
    steps = 2.0**of.bits - 1
    scale = min(float(_scale((high - low) / steps)), LARGEST) if high > low else 1.0
    zero = float(np.rint(min(-low / scale, steps)))
    lowest, highest = -zero, steps - zero
    with np.errstate(over="ignore"):  # no integer is an infinite float32
        lowest += bool(np.isinf(np.float32(lowest * scale)))
        highest -= bool(np.isinf(np.float32(highest * scale)))
    return scale, lowest, highest


def integers(x: Floats, of: Integers, draws: Words | None = None) -> Floats:
    """Of a group: all values of x."""
    if x.size == 0:
        return x
    if not np.isfinite(x).all():
        return np.full_like(x, math.nan)
    scale, lowest, highest = _range_of(x, of)
    real = x.dtype.type
    with np.errstate(over="ignore"):
        k = to_integers(x / real(scale), of.rounding, draws, of.random_bits)
        return np.clip(k, real(lowest), real(highest)) * real(scale) + real(0)


def groups(x: Floats, of: Integers, size: int, draws: Words | None = None) -> Floats:
    """Of a matrix, each row in groups of so many values; the last one may be smaller."""
    y = np.empty_like(x)
    rows, columns = x.shape
    for row in range(rows):
        for first in range(0, columns, size):
            part = slice(first, min(first + size, columns))
            own = None if draws is None else draws[row * columns :][part]
            y[row, part] = integers(x[row, part], of, own)
    return y
