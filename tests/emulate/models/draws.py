"""A NumPy model of the random numbers that casts draw, and of stochastic rounding by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracle import splitmix64

Words = npt.NDArray[np.uint64]
MASK = 0xFFFFFFFF


def key_of(seed: int, step: int) -> tuple[int, int]:
    state = splitmix64(seed)
    state = splitmix64(splitmix64(state ^ step))
    return state & MASK, state >> 32


def words_of(low: int, high: int, count: int) -> Words:
    x = (low + np.arange(count, dtype=np.uint64) * 0x9E3779B9) & MASK
    x = (x ^ (x >> np.uint64(16)) ^ np.uint64(high)) * np.uint64(0x7FEB352D) & np.uint64(MASK)
    return (x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B) & np.uint64(MASK)


def words(count: int, seed: int, step: int) -> Words:
    """The generator of docs/numerics.md: 32 random bits of each element."""
    return words_of(*key_of(seed, step), count)


def goes_up(fraction: npt.NDArray[Any], draws: Words, bits: int) -> npt.NDArray[np.bool_]:
    """Whether values round away from zero at random. fraction: of the way to the next number, at
    least 0 and less than 1. draws: 32 random bits of each.
    """
    random = (draws >> np.uint64(32 - bits)).astype(np.int64)
    return np.floor(fraction * 2.0**bits).astype(np.int64) + random >= 2**bits


def to_integers(
    x: npt.NDArray[Any], rounding: str, draws: Words | None = None, bits: int = 24
) -> npt.NDArray[Any]:
    """The integers that values become, of x's type. NaN and infinities stay."""
    if rounding == "nearest":
        return np.rint(x)
    whole = np.trunc(x)
    if rounding == "zero":
        return whole
    assert draws is not None
    inner = np.where(np.isfinite(x), x, 0)
    up = goes_up(np.abs(inner - np.trunc(inner)), draws, bits)
    return whole + np.copysign(up, x).astype(x.dtype)
