"""Casts of the operands of a GEMM."""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_cgx._constant import constant
from torch_cgx.emulate._cast import cast
from torch_cgx.emulate._format import Format
from torch_cgx.emulate._statistics import Statistics
from torch_cgx.emulate.gemm.formats import OperandFormat, Scaled, along


class Key(NamedTuple):
    """What random numbers are a function of, beside the number of a value: arguments of `cast`."""

    seed: int = 0
    step: int = 0
    number: int = 0


class Result(NamedTuple):
    """values: of the shape and dtype of x. statistics: None unless they are measured."""

    values: torch.Tensor
    statistics: Statistics | None


def cast_along(
    x: torch.Tensor,
    format: OperandFormat,
    axis: int,
    key: Key,
    measure: bool = False,
    scale: torch.Tensor | None = None,
) -> Result:
    """x in the format, whose blocks lie along `axis`. scale: of a Scaled, of one value; None: x's
    own.
    """
    if isinstance(format, Scaled):
        return _scaled(x, format, key, measure, scale)
    return _cast(x, along(format, axis), key, measure)


def _cast(x: torch.Tensor, format: Format, key: Key, measure: bool) -> Result:
    if measure:
        return Result(*cast(x, format, None, *key[:2], statistics=True, number=key.number))
    return Result(cast(x, format, None, *key[:2], number=key.number), None)


def current_scale(x: torch.Tensor, format: Scaled) -> torch.Tensor:
    """By which the greatest magnitude of x becomes the format's largest number over 2^margin: one
    float32 value; 1 for zeros, NaN where x has a NaN or an infinity.
    """
    if x.numel() == 0:
        return x.new_ones((), dtype=torch.float32)
    amax = x.abs().amax().float()
    return scale_of(amax, format).where(amax.isfinite(), torch.nan)


def scale_of(amax: torch.Tensor, format: Scaled) -> torch.Tensor:
    """Of a finite amax; 1 for 0."""
    top = torch.full_like(amax, _largest(format))  # a number over a tensor is rounded twice
    scale = (top / amax).clamp(max=torch.finfo(torch.float32).max)
    return torch.where(amax > 0, scale, 1.0)


@constant
def _largest(format: Scaled) -> float:
    return float(format.format.facts["largest"]) * 2.0**-format.margin


def _scaled(
    x: torch.Tensor, format: Scaled, key: Key, measure: bool, scale: torch.Tensor | None
) -> Result:
    """In float32 or float64; the numbers go back by division, so that each is the format's number
    over the scale, rounded once.
    """
    current = scale is None
    scale = current_scale(x, format) if scale is None else scale
    scaled = x * scale.to(x.dtype)
    if current and measure:  # rounding may put the greatest beyond the range, which counts there
        top = _largest(format)
        scaled = scaled.clamp_(-top, top)
    found = _cast(scaled, format.format, key, measure)
    statistics = found.statistics
    if statistics is not None:
        statistics = times(statistics, 1 / float(scale))
    return Result(found.values.div_(scale.to(x.dtype)), statistics)


def times(statistics: Statistics, factor: float) -> Statistics:
    """Of values `factor` times as large."""
    numbers = statistics.numbers.clone()
    numbers[4] *= factor  # amax
    numbers[5:] *= factor**2  # sums of squares
    return Statistics(numbers)


def total_bits(format: OperandFormat, x: torch.Tensor, axis: int) -> float:
    """Bits of a tensor in the format, with all scales. Of SmaQ, whose bits depend on values: those
    of normal values, unless x has values.
    """
    if isinstance(format, Scaled):
        return float(format.format.facts["bits"]) * x.numel() + 32
    total = along(format, axis).info(x).total_bits
    assert total is not None
    return total


def rotate(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Multiplies each block of rows of x [rows, ...] by the matrix; missing rows of the last block
    are zeros. The result has whole blocks of rows.
    """
    size, shape = matrix.shape[0], x.shape[1:]
    rows = x.reshape(x.shape[0], shape.numel())
    missing = -x.shape[0] % size
    if missing:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
    blocks = rows.reshape(rows.shape[0] // size, size, shape.numel())
    return torch.matmul(matrix.to(x), blocks).reshape(rows.shape[0], *shape)
