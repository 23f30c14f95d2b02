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
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_cgx.emulate import Format

ZEROS, NONFINITE = -(2**16), 2**16
_LEAST, _MOST = -126, 127  # exponents of normal powers of two in float32
Factors = tuple[float | torch.Tensor, float | torch.Tensor]
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


def maxima_of(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest magnitude of each, float32; NaN where there is one, 0 of no values."""
    zero = torch.zeros((), dtype=layers[0].dtype, device=layers[0].device)
    # Fifty times as fast as torch.linalg.vector_norm on the CPU.
    ends = [torch.aminmax(layer) if layer.numel() > 0 else (zero, zero) for layer in layers]
    least, most = (torch.stack(side) for side in zip(*ends, strict=True))
    return torch.maximum(-least, most).float()


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


def factors_of(shifts: torch.Tensor, lost: torch.Tensor | None = None) -> list[Factors]:
    """2^s of each shift as two factors, as its range is wider than float32's. Multiply by the
    first, which is 1 for usual shifts, then by the second: only the second product may be rounded.
    Of a CPU's tensor: Python's floats, which are faster; else float32 tensors of no dimensions, so
    that the CPU waits for nothing. lost: whose second factor is NaN.
    """
    clamped = shifts.clamp(_LEAST, _MOST)
    first, second = _power(shifts - clamped), _power(clamped)
    if lost is not None:
        second = torch.where(lost, float("nan"), second)
    if shifts.device.type == "cpu":
        return list(zip(first.tolist(), second.tolist(), strict=True))
    return list(zip(first.unbind(), second.unbind(), strict=True))


def scale_(values: torch.Tensor, factors: Factors) -> None:
    """Multiplies in place. One rounding to the type of `values`."""
    first, second = factors
    if isinstance(first, float) and first == 1:
        if second != 1:
            values.mul_(second)  # computed in float32
    elif values.dtype == torch.float32:
        values.mul_(first).mul_(second)
    else:
        values.copy_(values.float().mul_(first).mul_(second))


def _power(exponents: torch.Tensor) -> torch.Tensor:
    """2^exponents, -126 to 127, from the bits of float32."""
    return (exponents.to(torch.int32) + 127).bitwise_left_shift(23).view(torch.float32)
