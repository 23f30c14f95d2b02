"""A model of SmaQ in NumPy, from the words of docs/formats.md. Values are computed in the type that
they come in, float32 or float64; their mean and sigma are rounded to float32.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.emulate.models.draws import Words, key_of, to_integers, words, words_of

MASK = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class SmaQ:
    """As emulate.ZScore."""

    main_bits: int = 6
    outlier_bits: int = 8
    statistics: str = "full"
    rounding: str = "zero"
    random_bits: int = 24
    all_positive: bool = False
    clamp: bool = True
    main_threshold: float = 1.0
    outlier_threshold: float = 2.5


def samples_of(x: npt.NDArray[Any], seed: int, step: int) -> npt.NDArray[Any]:
    """16 values at most: one of each sixteenth."""
    count = min(16, len(x))
    low, high = key_of(seed, step)
    draws: Words = words_of(~low & MASK, ~high & MASK, count)
    begin = [len(x) * i // count for i in range(count + 1)]
    return x[[begin[i] + (int(draws[i]) * (begin[i + 1] - begin[i]) >> 32) for i in range(count)]]


def measure(x: npt.NDArray[Any], of: SmaQ, seed: int = 0, step: int = 0) -> tuple[Any, Any]:
    """Mean and sigma in float32."""
    wide = x.astype(np.float64)
    if of.statistics == "sampled":
        wide = samples_of(wide, seed, step)
    if not np.isfinite(wide).all():
        return np.float32(np.nan), np.float32(np.nan)
    n = len(wide)
    mean = math.fsum(wide) / n
    if of.statistics == "range":
        sigma = (wide.max() - wide.min()) / math.sqrt(2 * math.log(n))
    else:
        squares = math.fsum((wide - mean) ** 2)
        sigma = math.sqrt(squares / (n if of.statistics == "sampled" else n - 1))
    return np.float32(mean), np.float32(sigma)


def cast(x: npt.NDArray[Any], of: SmaQ, seed: int = 0, step: int = 0) -> npt.NDArray[Any]:
    if len(x) < 8:
        return x
    mean, sigma = measure(x, of, seed, step)
    if not np.isfinite(sigma):
        return np.full_like(x, np.nan)
    if sigma < np.finfo(np.float32).tiny:
        return x
    real = x.dtype.type
    z = (x - real(mean)) / real(sigma)
    outlier = np.abs(z) > real(of.main_threshold)
    most = np.where(outlier, 2.0 ** (of.outlier_bits - 2) - 1, 2.0 ** (of.main_bits - 2) - 1)
    reach = np.where(outlier, of.outlier_threshold - of.main_threshold, of.main_threshold)
    rate, step_size = (most / reach).astype(real), (reach / most).astype(real)
    base = np.where(outlier, real(of.main_threshold), real(0))
    k = to_integers(
        (np.abs(z) - base) * rate, of.rounding, words(len(x), seed, step), of.random_bits
    )
    if of.clamp:
        k = np.minimum(k, most.astype(real))
    y = np.copysign(k * step_size + base, z) * real(sigma) + real(mean)
    if of.all_positive:
        y = np.where(np.signbit(y), real(0), y)
    return np.where(np.isfinite(x), y, real(np.nan))
