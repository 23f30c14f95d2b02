"""Products of matrices whose sums are made in a format, in NumPy: from the statements of formats
and of rules, term by term.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Cast = Callable[[Floats], Floats]


def _grid(x: Floats, mantissa: int, least: int) -> npt.NDArray[np.float64]:
    """The distance of numbers around each value; 2^least is the least normal number."""
    exponent = np.frexp(np.where(np.isfinite(x), x, 0).astype(np.float64))[1] - 1
    return np.ldexp(1.0, np.maximum(np.where(x == 0, least, exponent), least) - mantissa)


def floating(
    exponent: int,
    mantissa: int,
    largest: float,
    beyond: float = np.inf,
    bias: int | None = None,
    toward_zero: bool = False,
    subnormals: bool = True,
) -> Cast:
    """beyond: what larger values become. The mantissa has a bit or more."""
    least = 1 - (2 ** (exponent - 1) - 1 if bias is None else bias)
    signed_zero = bias is None

    def cast(x: Floats) -> Floats:
        step = _grid(x, mantissa, least)
        wide = x.astype(np.float64)
        y = (np.trunc if toward_zero else np.rint)(wide / step) * step
        limit = largest if toward_zero else beyond
        y = np.where(np.abs(y) > largest, np.copysign(limit, wide), y)
        y = np.where(np.isinf(wide), np.copysign(beyond, wide), y)
        if not subnormals:
            y = np.where(np.abs(y) < 2.0**least, np.copysign(0, wide), y)
        y = np.where(np.isnan(wide), np.nan, y)
        return (y if signed_zero else y + 0.0).astype(np.float32)

    return cast


def cpd(exponent: int, mantissa: int) -> Cast:
    """seeds 3.2.1: infinite by the exponent before the rounding; of values below the least normal
    number bits of the 24-bit significand are lost before it.
    """
    bias = 2 ** (exponent - 1) - 1

    def cast(x: Floats) -> Floats:
        wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
        n = np.frexp(wide)[1] - 1 + bias
        lost = np.ldexp(1.0, np.maximum(n, 1) - bias - 23)
        step = np.ldexp(1.0, np.maximum(n, 1) - bias - mantissa)
        y = np.rint(np.trunc(wide / lost) * lost / step) * step
        y = np.where(n >= 2**exponent - 1, np.copysign(np.inf, wide), y)
        y = np.where(np.abs(wide) < 2.0**-126, np.where(wide == 0, wide, 0.0), y)
        with np.errstate(over="ignore"):
            return np.where(np.isfinite(x), y, x).astype(np.float32)

    return cast


def fixed(word: int, fraction: int, toward_zero: bool = False) -> Cast:
    step = 2.0**-fraction

    def cast(x: Floats) -> Floats:
        k = (np.trunc if toward_zero else np.rint)(x.astype(np.float64) / step)
        k = np.clip(k, -(2.0 ** (word - 1)), 2.0 ** (word - 1) - 1)
        return (k * step + 0.0).astype(np.float32)

    return cast


class _Sum:
    def __init__(self, zeros: Floats, cast: Cast, kahan: bool):
        self.s, self.c, self.cast, self.kahan = zeros, zeros, cast, kahan

    def add(self, number: Floats) -> None:
        if not self.kahan:
            self.s = self.cast(self.s + number)
            return
        y = self.cast(number - self.c)
        t = self.cast(self.s + y)
        self.c = self.cast(self.cast(t - self.s) - y)
        self.s = t


def _terms(a: Floats, b: Floats) -> list[Floats]:
    """Of matrices: the products of each k, in float32."""
    return [a[:, k : k + 1] * b[k : k + 1] for k in range(a.shape[1])]


def product(a: Floats, b: Floats, cast: Cast, kahan: bool = False, block: int = 0) -> Floats:
    """block: 0: one sum of all terms."""
    zeros = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        terms = [cast(p) for p in _terms(a, b)]
        parts = [terms[i : i + block] for i in range(0, len(terms), block)] if block else [terms]
        whole = _Sum(zeros, cast, kahan)
        for part in parts:
            one = _Sum(zeros, cast, kahan)
            for p in part:
                one.add(p)
            if not block:
                return one.s
            whole.add(one.s)
        return whole.s


def hopper(a: Floats, b: Floats) -> Floats:
    """DeepSeek-V3, arXiv 2412.19437, 3.5.2: 32 products and the accumulator are shifted to the
    greatest exponent, their highest 14 bits are added, and the sum keeps 14 bits; after 128
    products the sum goes to float32. Our choices: csrc/codec/gemm/hopper.h.
    """
    with np.errstate(all="ignore"):
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        products = _terms(a, b)
        for first in range(0, len(products), 128):
            accumulator = np.zeros_like(total)
            run = products[first : first + 128]
            for k in range(0, len(run), 32):
                accumulator = _step([accumulator, *run[k : k + 32]])
            total = total + accumulator
    return total


def _step(values: list[Floats]) -> Floats:
    given = np.stack(values).astype(np.float64)
    finite = np.isfinite(given)
    most = np.abs(np.where(finite, given, 0)).max(0)
    e = np.maximum(np.where(most == 0, -113, np.frexp(most)[1] - 1), -113)
    y = np.trunc(np.where(finite, given, 0) * np.ldexp(1.0, 13 - e)).sum(0)
    more = np.maximum(np.frexp(y)[1] - 14, 0)  # bits beyond 14
    y = np.trunc(y * np.ldexp(1.0, -more)) * np.ldexp(1.0, more + e - 13)
    infinite = np.where(finite, 0, given).sum(0)
    return np.where(finite.all(0), y, infinite).astype(np.float32)
