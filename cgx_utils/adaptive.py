"""Bits per layer under a budget: the parameters, and the decision as a pure function.

Either the summed squared error is minimised under a budget of bytes, or the bytes under a budget of
error (Markov et al., "L-GreCo: Layerwise-Adaptive Gradient Compression for Efficient and Accurate
Deep Learning", MLSys 2024; and the CGX paper, arXiv 2111.08617). torch_cgx/_policy/budget.py solves
both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch_cgx import _config
from torch_cgx._policy.budget import within_budget

CANDIDATES = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class AdaptiveBits:
    """Chooses the bits of each compressed layer under a budget: `CGXState(adaptive=...)`.

    Exactly one budget is given:

    average_bits: the sum of all layers' errors is minimised in at most the bytes that the same
        layers would take with this many bits each, the codec's metadata included; from the smallest
        to the largest candidate, integer or not (between two candidates the bytes are
        interpolated).
    error_budget: the bytes are minimised at a relative L2 error of at most this, of the gradients
        of all layers together: sqrt(sum of squared errors / sum of squares), above 0 and below 1.

    candidates: at least two numbers of bits that a layer may get: 1 to 8, or 16. Kept in ascending
        order. The codec in force must have all of them; with error feedback 1 is not for maxmin.
    every: steps between decisions, at least 1. The first decisions come sooner: the gradients of
        steps 2, 4, 8, ... are measured, until the distance is `every`.

    ValueError and TypeError name a bad value and what is allowed.
    """

    average_bits: float | None = None
    candidates: Sequence[int] = CANDIDATES
    every: int = 100
    error_budget: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", _check_candidates(self.candidates))
        if isinstance(self.every, bool) or not isinstance(self.every, int):
            raise TypeError(f"every={self.every!r}; allowed: integers >= 1 (steps)")
        if self.every < 1:
            raise ValueError(f"every={self.every}; allowed: integers >= 1 (steps)")
        if (self.average_bits is None) == (self.error_budget is None):
            raise ValueError(
                f"average_bits={self.average_bits!r} and error_budget={self.error_budget!r}; "
                "allowed: one of them, the other None"
            )
        if self.average_bits is not None:
            low, high = self.candidates[0], self.candidates[-1]
            allowed = f"from {low}, the smallest candidate, to {high}, the largest"
            _check_number("average_bits", self.average_bits, allowed)
            if not low <= self.average_bits <= high:
                raise ValueError(f"average_bits={self.average_bits!r}; allowed: {allowed}")
        if self.error_budget is not None:
            allowed = "numbers above 0 and below 1 (relative L2 error)"
            _check_number("error_budget", self.error_budget, allowed)
            if not 0 < self.error_budget < 1:
                raise ValueError(f"error_budget={self.error_budget!r}; allowed: {allowed}")

    @property
    def start_bits(self) -> int:
        """Bits of a layer of which nothing is known: the largest candidate in the budget."""
        if self.average_bits is None:
            return self.candidates[-1]
        return max(bits for bits in self.candidates if bits <= self.average_bits)

    def budget_bytes(self, sizes: Sequence[Sequence[int]]) -> int:
        """The bytes that `average_bits` allows. sizes: bytes of each layer with each candidate."""
        assert self.average_bits is not None
        average = Fraction(self.average_bits)
        above = next(i for i, bits in enumerate(self.candidates) if bits >= average)
        below = above if self.candidates[above] == average else above - 1
        low, high = sum(row[below] for row in sizes), sum(row[above] for row in sizes)
        if below == above:
            return low
        step = self.candidates[above] - self.candidates[below]
        return low + math.floor((high - low) * (average - self.candidates[below]) / step)


def _check_candidates(candidates: object) -> tuple[int, ...]:
    allowed = f"at least two different integers of 1 to {_config.MAX_BITS} and {_config.HALF_BITS}"
    given = _config.list_of("candidates", candidates, allowed)
    for bits in given:
        if isinstance(bits, bool) or not isinstance(bits, int):
            raise TypeError(f"candidates={candidates!r} has {bits!r}; allowed: {allowed}")
        if not (1 <= bits <= _config.MAX_BITS or bits == _config.HALF_BITS):
            raise ValueError(f"candidates={candidates!r} has {bits!r}; allowed: {allowed}")
    if len(given) < 2 or len(set(given)) != len(given):
        raise ValueError(f"candidates={candidates!r}; allowed: {allowed}")
    return tuple(sorted(given))


def _check_number(name: str, value: object, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r}; allowed: {allowed}")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value!r}; allowed: {allowed}")


def choose(
    errors: Sequence[Sequence[float]],
    sizes: Sequence[Sequence[int]],
    *,
    most_bytes: int | None = None,
    most_error: float | None = None,
) -> list[int]:
    """The number of the candidate that each layer takes.

    errors, sizes: finite squared error >= 0 and bytes of each layer with each candidate. Exactly
    one limit is given: the sum of errors is minimised within `most_bytes`, or the sum of bytes
    within `most_error`, as `within_budget` does it.

    ValueError if no decision is within the limit; the text says what the least is.
    """
    if (most_bytes is None) == (most_error is None):
        raise ValueError(f"{most_bytes=}, {most_error=}; allowed: one of them, the other None")
    # The limited quantity is spent to lower the other one: the same search serves both.
    if most_bytes is not None:
        return within_budget(sizes, errors, most_bytes, "bytes")
    assert most_error is not None
    return within_budget(errors, sizes, most_error, "squared error")
