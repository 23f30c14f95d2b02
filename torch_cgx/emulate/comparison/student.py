"""The interval of a mean of a few values, by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# The quantile of 97.5 % of Student's t, by degrees of freedom from 1 on.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z = 1.959964  # of the normal distribution


def quantile(freedom: int) -> float:
    """The quantile of 97.5 % of Student's t with so many degrees of freedom, at least 1. The error
    is below 1e-4. Source beyond 30: Fisher's expansion, Abramowitz and Stegun 26.7.5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = _Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2


def interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of normal values; None of a single one."""
    if len(values) < 2:
        return None
    return quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
