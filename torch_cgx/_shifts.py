"""Shifts by powers of two that put a layer's values at the top of a format's range: APS, the
auto-precision scaling of CPD (arXiv 1911.08907).

A layer of N ranks has the exponent E = ceil(log2(max|g| N)), the largest of all ranks. A format
whose largest power of two is 2^U takes its values times 2^(U - E): the sum of N magnitudes is at
most 2^U, so nothing overflows, and as little as possible underflows. Powers of two change no bit of
a mantissa.

Exponents are int32 tensors, one element a layer: with int32, the maximum over ranks is exact and
knows no NaN. Two values are no exponents: `ZEROS`, a layer that has only zeros, less than all
exponents; `NONFINITE`, a layer that has a NaN or infinity, above all exponents.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_cgx.emulate import Format

ZEROS, NONFINITE = -(2**16), 2**16
_LEAST, _MOST = -126, 127  # exponents of normal powers of two in float32
_TOP = {torch.float16: 15, torch.float32: 127, torch.bfloat16: 127}


def top_of(format: Format) -> int:
    """U, the exponent of the format's largest power of two: 2^(e-1) - 1 for IEEE's formats of e
    bits of exponent. ValueError: the format has no range of its own.
    """
    largest = float(format.facts["largest"])
    if not format.elementwise or not 0.0 < largest < math.inf:
        raise ValueError(
            f"aps=True with the format {format}; allowed: formats with a range, as Float(4, 3), "
            "not ones whose scales follow their values"
        )
    return math.frexp(largest)[1] - 1


def maximum_of(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude, float32, of no dimensions; NaN where there is one, 0 of no values."""
    if values.numel() == 0:
        return torch.zeros((), dtype=torch.float32, device=values.device)
    low, high = torch.aminmax(values)  # fifty times as fast as torch.linalg.vector_norm
    return torch.maximum(-low, high).float()


def exponents_of(maxima: torch.Tensor, count: int) -> torch.Tensor:
    """ceil(log2(maximum * count)) of each maximum of magnitudes, from the bits: exact. maxima:
    float32, float16, bfloat16. count: 1 to 2^29.
    """
    # Products of 24 bits by up to 29 are exact in float64, and frexp() takes no logarithm.
    fraction, exponent = torch.frexp(maxima.double() * count)
    found = torch.where(fraction == 0.5, exponent - 1, exponent)
    found = torch.where(maxima == 0, ZEROS, found)
    return torch.where(torch.isfinite(maxima), found, NONFINITE).to(torch.int32)


def shifts_of(exponents: torch.Tensor, tops: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """s = U - E; 0 for layers of zeros and ones that are not finite. tops: U of each layer. dtype:
    of the tensor that is shifted in place, whose range bounds a shift up: a format that exceeds
    that needs no more.
    """
    found = tops - exponents
    room = (_TOP[dtype] - exponents).clamp(min=0)
    found = torch.where(found > room, room, found)
    return torch.where((exponents == ZEROS) | (exponents == NONFINITE), 0, found)


def factors_of(shifts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """2^s as two float32 factors, as its range is wider than float32's. Multiply by the first,
    which is 1 for usual shifts, then by the second: only the second product may be rounded.
    """
    second = shifts.clamp(_LEAST, _MOST)
    return _power(shifts - second), _power(second)


def scale_(values: torch.Tensor, factors: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Multiplies in place by factors of no dimensions. One rounding to the type of `values`."""
    first, second = factors
    if first.device.type == "cpu" and first == second == 1:
        return
    if values.dtype == torch.float32:
        values.mul_(first).mul_(second)
    else:
        values.copy_(values.float().mul_(first).mul_(second))


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """2^exponents, -126 to 127, from the bits of float32."""
    return (exponents.to(torch.int32) + 127).bitwise_left_shift(23).view(torch.float32)
