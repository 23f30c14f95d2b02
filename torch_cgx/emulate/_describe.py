"""What formats hold, found by casting: the rows of `cgx formats list` and of docs/formats.md."""

from __future__ import annotations

import dataclasses
import math

import torch

from torch_cgx.emulate._cast import cast
from torch_cgx.emulate._format import Format

_OTHERS = [1.0, -1.0] * 4  # values that share a scale with one; SmaQ leaves fewer than 8 unchanged


@dataclasses.dataclass(frozen=True)
class Description:
    """bits: of a value, with its share of scales. least, largest: the least positive number and the
    largest one; over the scale where values share one. step: from 1 to the next number; where
    values share a scale, from 1 as the greatest value to the number below. nan, infinite, zero,
    beyond: what NaN, infinities, -0 and values of twice the largest number become, as text. None:
    the format has no such number of its own, since the tensor's values decide.
    """

    bits: float
    scaled: bool
    least: float | None
    largest: float | None
    step: float | None
    nan: str
    infinite: str
    zero: str
    beyond: str


def describe(format: Format) -> Description:
    facts, info = format.facts, format.info()
    largest = _number(info.largest)
    if format.elementwise:
        beyond = _elementwise(format, 2 * largest, largest) if largest else "kept"
        return Description(
            bits=info.bits,
            scaled=False,
            least=_least(format),
            largest=largest,
            step=_step_above(format),
            nan=_elementwise(format, math.nan, largest),
            infinite=_elementwise(format, math.inf, largest),
            zero=_zero(format, [-0.0]),
            beyond=beyond,
        )
    shares = {None: "its block", "run": "its row", "tensor": "the tensor"}[facts["group"]]
    return Description(
        bits=info.bits,
        scaled=True,
        least=_number(info.smallest_step),
        largest=largest,
        step=_step_below(format),
        nan=_shared(format, math.nan, shares),
        infinite=_shared(format, math.inf, shares),
        zero=_zero(format, [-0.0, *_OTHERS]),
        beyond="scaled",
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cast_of(format: Format, values: list[float]) -> list[float]:
    # float64 holds twice the largest number of any format.
    found: list[float] = cast(
        torch.tensor(values, dtype=torch.float64, device="cpu"), format
    ).tolist()
    return found


def _least(format: Format) -> float | None:
    """The least positive result of powers of two."""
    found = [y for y in _cast_of(format, [math.ldexp(1, k) for k in range(-150, 129)]) if y > 0]
    return min((y for y in found if math.isfinite(y)), default=None)


def _step_above(format: Format) -> float | None:
    """From 1 to the next number: the first result above 1 of values from 1 on."""
    if _cast_of(format, [1.0]) != [1.0]:
        return None
    tried = [1 + math.ldexp(1, -k) for k in range(30, -1, -1)]
    above = [y for y in _cast_of(format, tried) if 1 < y < math.inf]
    return min(above) - 1 if above else None


def _step_below(format: Format) -> float | None:
    """From 1 to the number below, in a tensor whose greatest value is 1, and with it its scale."""
    if format.facts["name"] not in ("block", "integer") or format.stochastic:
        return None
    grid = [1 - k / 4096 for k in range(4097)]
    pairs = cast(torch.tensor([[1.0, x] for x in grid], dtype=torch.float64, device="cpu"), format)
    below = [one for top, one in pairs.tolist() if one < top]
    return float(pairs[0, 0]) - max(below) if below else None


def _elementwise(format: Format, value: float, largest: float | None) -> str:
    up, down = (_word(y, largest) for y in _cast_of(format, [value, -value]))
    return up if up == down else f"{up}, {down}"


def _word(y: float, largest: float | None) -> str:
    if math.isnan(y):
        return "NaN"
    if math.isinf(y):
        return "Inf"
    return "saturates" if largest is not None and abs(y) == largest else f"{y:g}"


def _zero(format: Format, values: list[float]) -> str:
    y = _cast_of(format, values)[0]
    if math.isnan(y):
        return "NaN"
    if y != 0:
        return f"{y:g}"
    return "-0" if math.copysign(1, y) < 0 else "0"


def _shared(format: Format, value: float, shares: str) -> str:
    """Of a value among others that share a scale with it."""
    with_value = _cast_of(format, [value, *_OTHERS])
    if all(math.isnan(y) for y in with_value):
        return f"NaN, all of {shares}"
    return _word(with_value[0], None)
