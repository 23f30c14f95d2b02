"""Bounds: from the arguments of `compress` to what blocks are encoded with."""

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
_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Bound:
    """kind: of the payload. asked: the caller's number. value: the bound in force; differs from
    `asked` only for RELATIVE.
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
    """What blocks share; the tables of float16 and bfloat16 take as long as a block. version: of
    the format; default: what new payloads have. ValueError: the type has no such bound.
    """
    if version is None:
        return _C.BoundedMaps(element, bound.kind, bound.value)
    return _C.BoundedMaps(element, bound.kind, bound.value, version)


def bound_of(
    parts: torch.Tensor,
    max_error: float | None,
    relative: float | None,
    pointwise: float | None,
) -> Bound:
    """ValueError: not exactly one of them, not a finite number >= 0, or one for whole numbers."""
    given = {"max_error": max_error, "relative": relative, "pointwise": pointwise}
    given = {key: value for key, value in given.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"one bound at most, got {' and '.join(given)}")
    exact = not parts.dtype.is_floating_point
    if not given:
        if exact:
            return Bound(LOSSLESS, 0.0, 0.0)
        raise ValueError(
            f"a bound is missing for {_dtypes.name(parts.dtype)}: give max_error, relative or "
            "pointwise; max_error=0 is lossless"
        )
    ((key, value),) = given.items()
    number = _number(key, value)
    if number == 0:
        return Bound(LOSSLESS, 0.0, 0.0)
    if exact:
        raise ValueError(
            f"{key} is {number:g} for {_dtypes.name(parts.dtype)}: whole numbers are lossless, "
            "allowed: 0, or no bound"
        )
    if key == "max_error":
        return Bound(ABSOLUTE, number, number)
    if key == "pointwise":
        if number >= 1:
            raise ValueError(f"pointwise is {number:g}, allowed: numbers from 0 to below 1")
        return Bound(POINTWISE, number, number)
    value = number * _finite_range(parts)
    if not math.isfinite(value):
        raise ValueError(f"relative is {number:g} of a range that float64 cannot hold")
    # Values that are all equal, or none finite: there is nothing to be relative to.
    return Bound(RELATIVE if value > 0 else LOSSLESS, number, value)


def real(key: str, value: Any) -> float:
    """A number as float; inf: greater than any. TypeError: it is none."""
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


def _finite_range(parts: torch.Tensor) -> float:
    """Greatest minus least finite value, in float64; 0: there is none."""
    if sys.float_info.min / 2 == 0.0:
        # The thread flushes subnormal numbers, and torch's operators do on it: see
        # torch.set_flush_denormal.
        there = parts.cpu()
        element = _dtypes.ELEMENTS[there.dtype]
        return _C.bounded_range(element, there.data_ptr(), there.numel())
    flat = parts.flatten()
    least, greatest = math.inf, -math.inf
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        low, high = (float(x) for x in torch.aminmax(chunk))
        if not (math.isfinite(low) and math.isfinite(high)):
            chunk = chunk[torch.isfinite(chunk)]
            if chunk.numel() == 0:
                continue
            low, high = (float(x) for x in torch.aminmax(chunk))
        least, greatest = min(least, low), max(greatest, high)
    return max(greatest - least, 0.0)
