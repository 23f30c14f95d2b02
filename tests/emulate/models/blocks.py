"""A model of blocks that share a scale, in NumPy and float64, from the words of docs/formats.md."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulate.oracles import numbers

Doubles = npt.NDArray[np.float64]
# Element of each preset, and (rows, columns) of a block.
MX = {
    "mxfp8_e4m3": "e4m3fn",
    "mxfp8_e5m2": "e5m2",
    "mxfp6_e3m2": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4": "e2m1",
    "mxint8": "int8",
}


def grid_of(element: str) -> Doubles:
    """Its positive numbers and 0; "int8": of MXINT8, which leaves out -2."""
    return np.arange(128) / 64 if element == "int8" else numbers(element)


def to_grid(x: Doubles, grid: Doubles) -> Doubles:
    """The nearest number, ties to the even place in the grid; beyond the last one that."""
    a = np.minimum(np.abs(x), grid[-1])
    place = np.minimum(np.searchsorted(grid, a, side="right") - 1, len(grid) - 2)
    below, above = a - grid[place], grid[place + 1] - a
    up = (above < below) | ((above == below) & (place % 2 == 1))
    return np.copysign(grid[place + up], x)


def exponent(amax: float, element: str, rounding: str) -> int:
    """s of the scale 2^s."""
    if amax == 0:
        return -127
    grid = grid_of(element)
    largest = math.frexp(grid[-1])[1] - 1
    fraction, e = math.frexp(amax)  # amax = fraction 2^e, 1/2 <= fraction < 1
    if rounding == "ceil":
        s = (e - 1 if fraction == 0.5 else e) - largest
    elif rounding == "even":
        # The number of bits behind the leading one; half a step more carries into the exponent.
        bits = {"e4m3fn": 3, "e5m2": 2, "e3m2": 2, "e2m3": 3, "e2m1": 1, "int8": 6}[element]
        rounded = math.floor(fraction * 2 ** (bits + 1) + 0.5)
        s = e - 1 + (rounded == 2 ** (bits + 1)) - largest
    elif rounding == "rceil":
        s = e - largest - 2
        while amax > grid[-1] * 2.0**s:
            s += 1
    else:
        s = e - 1 - largest
    return max(-127, min(127, s))


def of_powers(block: Doubles, element: str, rounding: str) -> Doubles:
    if not np.isfinite(block).all():
        return np.full_like(block, np.nan)
    scale = 2.0 ** exponent(float(np.abs(block).max()), element, rounding)
    return to_grid(block / scale, grid_of(element)) * scale


def divided(block: Doubles, element: str, scale: np.float32) -> Doubles:
    """By a scale in float32, as the quotient and the product are."""
    quotient = block.astype(np.float32) / scale
    return to_grid(quotient.astype(np.float64), grid_of(element)).astype(np.float32) * scale


def of_float_scale(block: Doubles, element: str) -> Doubles:
    amax = float(np.abs(block).max())
    if not math.isfinite(amax):
        return np.full_like(block, np.nan)
    scale = max(np.float32(amax / grid_of(element)[-1]), np.float32(2.0**-149))
    return divided(block, element, np.float32(scale) if amax else np.float32(1))


def of_e4m3_scale(block: Doubles, amax_of_tensor: float) -> Doubles:
    """NVFP4: the block's scale is an e4m3fn number times the tensor's."""
    if not math.isfinite(amax_of_tensor):
        return np.full_like(block, np.nan)
    amax = float(np.abs(block).max())
    if amax == 0:
        return block
    of_tensor = np.float32(max(np.float32(amax_of_tensor / (448 * 6)), np.float32(2.0**-149)))
    wanted = np.float32(max(np.float32(amax / 6), np.float32(2.0**-149))) / of_tensor
    part = to_grid(np.array([wanted], np.float64), numbers("e4m3fn"))[0]
    return divided(block, "e2m1", np.float32(max(part, 2.0**-9)) * of_tensor)


def tiles(shape: tuple[int, ...], rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    for top in range(0, shape[0], rows):
        for left in range(0, shape[1], columns):
            yield slice(top, top + rows), slice(left, left + columns)


def cast(x: npt.NDArray[Any], rows: int, columns: int, block: Any) -> npt.NDArray[np.float32]:
    """Of a matrix; block: one of the functions above, of a tile."""
    wide = x.astype(np.float64)
    y = np.empty_like(wide)
    for tile in tiles(wide.shape, rows, columns):
        y[tile] = block(wide[tile])
    with np.errstate(over="ignore"):
        return y.astype(np.float32)
