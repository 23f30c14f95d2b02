"""What a cast did to values."""

from __future__ import annotations

import math

import torch


class Statistics:
    """What a cast did to the values of a tensor, collected in the same pass. Of values that are NaN
    or infinite it counts that they were there, and nothing else.
    """

    def __init__(self, numbers: torch.Tensor):
        self.numbers = numbers
        """The seven numbers below, in their order, in float64: values to amax, then the sums of
        squares of the values and of the errors."""

    def _number(self, place: int) -> float:
        return float(self.numbers[place])

    @property
    def values(self) -> int:
        """All values."""
        return int(self._number(0))

    @property
    def nonfinite(self) -> int:
        """Values that are NaN or infinite."""
        return int(self._number(1))

    @property
    def underflows(self) -> int:
        """Values other than 0 that became 0."""
        return int(self._number(2))

    @property
    def saturations(self) -> int:
        """Finite values beyond the largest number of the format."""
        return int(self._number(3))

    @property
    def amax(self) -> float:
        """The greatest magnitude."""
        return self._number(4)

    @property
    def underflowed(self) -> float:
        """The share of values that underflowed, 0 to 1."""
        return self.underflows / max(self.values, 1)

    @property
    def saturated(self) -> float:
        """The share of values that saturated, 0 to 1."""
        return self.saturations / max(self.values, 1)

    @property
    def sqnr(self) -> float:
        """The ratio of signal to quantization noise in decibels: 10 log10 of the sum of x^2 over
        the sum of (y - x)^2; inf for no error, nan for no signal. Values that became infinite
        or NaN are no noise.
        """
        signal, noise = self._number(5), self._number(6)
        if signal == 0:
            return math.nan
        return math.inf if noise == 0 else 10 * math.log10(signal / noise)

    def __repr__(self) -> str:
        return (
            f"Statistics(values={self.values}, nonfinite={self.nonfinite}, "
            f"underflowed={self.underflowed:.3g}, saturated={self.saturated:.3g}, "
            f"amax={self.amax:.4g}, sqnr={self.sqnr:.2f})"
        )
