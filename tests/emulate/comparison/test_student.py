"""Intervals of means, against the integral of Student's density and a calculation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torch_cgx.emulate.comparison.student import interval, quantile


@pytest.mark.parametrize("freedom", [*range(1, 36), 60, 200, 10_000])
def test_quantiles(freedom):
    # The integral from 0, by Simpson's rule.
    x = np.linspace(0, quantile(freedom), 20_001)
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density = np.exp(log - (freedom + 1) / 2 * np.log1p(x**2 / freedom))
    density /= math.sqrt(freedom * math.pi)
    weights = np.array([1, *[4, 2] * 9_999, 4, 1]) * (x[1] - x[0]) / 3
    assert float(weights @ density) == pytest.approx(0.475, abs=5e-6)


def test_an_interval_by_hand():
    # Mean 2, squares 1 + 0 + 1 over 2: deviation 1; t of two degrees of freedom is 4.3027.
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3))
    assert interval([5.0, 5.0]) == 0
    assert interval([5.0]) is None
