"""Bounds: the arguments of `compress`, checked and converted to the bound that the codec uses."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import sys
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes

# csrc/codec/bounded/maps/maps.h
LOSSLESS, ABSOLUTE, RELATIVE, POINTWISE = range(4)
NAMES = ("lossless", "max_error", "relative", "pointwise")  # by kind
_SLICE = 1 << 22  # values that are searched at once for the least and the greatest


@dataclasses.dataclass(frozen=True)
class Bound:
    """kind: one of LOSSLESS, ABSOLUTE, RELATIVE, POINTWISE. asked: the caller's number. value: the
    bound that the codec keeps; it differs from `asked` only for RELATIVE.
    """

    kind: int
    asked: float
    value: float

    def __str__(self) -> str:
        if self.kind == LOSSLESS:
            return NAMES[LOSSLESS]
        text = f"{NAMES[self.kind]}={self.asked:g}"
        return f"{text} ({self.value:g})" if self.kind == RELATIVE else text


@functools.lru_cache(maxsize=8)
def maps_of(element: int, bound: Bound, version: int | None = None) -> Any:
    """The maps that all blocks of a payload share. They are cached: for float16 and bfloat16,
    making the tables takes as long as encoding a block. element: a number of _dtypes.ELEMENTS.
    version: of the format; default: the version of new payloads. ValueError: the bound does not
    apply to the type.
    """
    if version is None:
        return _C.BoundedMaps(element, bound.kind, bound.value)
    return _C.BoundedMaps(element, bound.kind, bound.value, version)


def bound_of(
    reals: torch.Tensor,
    max_error: float | None,
    relative: float | None,
    pointwise: float | None,
) -> Bound:
    """The bound of a call. reals: the values, of a real dtype; at most one of the others is given.

    ValueError: several bounds; none for floating-point values; a bound other than 0 for integers; a
    number that is negative, infinite or NaN. TypeError: not a number.
    """
    given = {"max_error": max_error, "relative": relative, "pointwise": pointwise}
    given = {key: value for key, value in given.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"one bound at most, got {' and '.join(given)}")
    exact = not reals.dtype.is_floating_point
    if not given:
        if exact:
            return Bound(LOSSLESS, 0.0, 0.0)
        raise ValueError(
            f"a bound is missing for {_dtypes.name(reals.dtype)}: give max_error, relative or "
            "pointwise; max_error=0 is lossless"
        )
    ((key, value),) = given.items()
    number = _number(key, value)
    if number == 0:
        return Bound(LOSSLESS, 0.0, 0.0)
    if exact:
        raise ValueError(
            f"{key} is {number:g} for {_dtypes.name(reals.dtype)}: whole numbers are lossless, "
            "allowed: 0, or no bound"
        )
    if key == "max_error":
        return Bound(ABSOLUTE, number, number)
    if key == "pointwise":
        if number >= 1:
            raise ValueError(f"pointwise is {number:g}, allowed: numbers from 0 to below 1")
        return Bound(POINTWISE, number, number)
    value = number * _finite_range(reals)
    if not math.isfinite(value):
        raise ValueError(f"relative is {number:g} of a range that float64 cannot hold")
    # The range is 0 if all finite values are equal, or if there are none.
    return Bound(RELATIVE if value > 0 else LOSSLESS, number, value)


def real(key: str, value: Any) -> float:
    """The number as a float; inf or -inf if a float cannot hold it. TypeError: not a number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{key} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def _number(key: str, value: Any) -> float:
    number = real(key, value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{key} is {number}, allowed: finite numbers >= 0 (0 is lossless)")
    return number


def _finite_range(reals: torch.Tensor) -> float:
    """Greatest minus least finite value, in float64; 0 if there are no finite values."""
    if sys.float_info.min / 2 == 0.0:
        # torch.set_flush_denormal is on for this thread, so torch.aminmax would flush subnormal
        # numbers to 0.
        on_cpu = reals.cpu()
        element = _dtypes.ELEMENTS[on_cpu.dtype]
        return _C.bounded_range(element, on_cpu)
    flat = reals.flatten()
    least, greatest = math.inf, -math.inf
    for start in range(0, flat.numel(), _SLICE):
        values = flat[start : start + _SLICE]
        low, high = (float(x) for x in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            values = values[torch.isfinite(values)]
            if values.numel() == 0:
                continue
            low, high = (float(x) for x in torch.aminmax(values))
        least, greatest = min(least, low), max(greatest, high)
    return max(greatest - least, 0.0)
