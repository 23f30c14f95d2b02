"""Warnings of bounds that turn nearly all values of a tensor into 0, which a sample detects."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch

from torch_cgx._warnings import warn_of_argument
from torch_cgx.bounded._bound import ABSOLUTE, RELATIVE, Bound

# `compress` calls it with the values of a tensor and the bound.
Note = Callable[[torch.Tensor, Bound], None]

_SAMPLE = 1024
_STRIDE = 0x9E3779B1  # coprime to usual sizes of rows, so that a sample has values of all columns
_NEARLY_ALL = 0.9
# A first, smaller sample decides for most tensors, in a fifth of the time.
_GLANCE = 64
_HALF = 0.5
# Fewer values do not decide about `relative`: one of a few always makes the range.
_LEAST_OF_RANGE = 16
_SHOWN = 8


def zeroes(reals: torch.Tensor, bound: Bound) -> bool:
    """True if nearly all values that are not 0 become 0, because they are at most the bound. reals:
    contiguous, any shape; a sample of 1024 values is examined, or all if there are fewer.

    For `relative`, the greatest magnitude is left out: it makes the range, and a fill value such as
    1e20 may be any share of the values.
    """
    numel = reals.numel()
    if bound.kind not in (ABSOLUTE, RELATIVE) or numel == 0:
        return False
    flat = reals.reshape(-1)
    if numel > _GLANCE:
        some, zeroed = _counts(flat[:: numel // _GLANCE | 1], bound)
        if zeroed < _HALF * some:
            return False
    if numel > _SAMPLE:
        places = torch.arange(_SAMPLE, dtype=torch.int64, device=flat.device)
        flat = flat[places.mul_(_STRIDE).remainder_(numel)]
    some, zeroed = _counts(flat, bound)
    return zeroed >= _NEARLY_ALL * some and some >= (
        _LEAST_OF_RANGE if bound.kind == RELATIVE else 1
    )


def _counts(values: torch.Tensor, bound: Bound) -> tuple[int, int]:
    """How many values are examined (`zeroes` says which), and how many of them become 0."""
    sizes = [abs(x) for x in values.tolist() if x != 0 and math.isfinite(x)]
    if bound.kind == RELATIVE and sizes:
        greatest = max(sizes)
        sizes = [size for size in sizes if size < greatest]
    return len(sizes), sum(size <= bound.value for size in sizes)


def warn_of_relative(reals: torch.Tensor, bound: Bound) -> None:
    """The Note of `compress`: warns its caller."""
    if bound.kind == RELATIVE and zeroes(reals, bound):
        warn_of_argument(
            f"relative={bound.asked:g} of the range is above nearly all values, which become 0: "
            "outliers, or a fill value such as 1e20, make the range. Give max_error or pointwise, "
            "or replace the fill value by NaN"
        )


class Names:
    """Collects the names of tensors whose values become 0, for one warning of a call."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def note(self, name: str) -> Note:
        def look(reals: torch.Tensor, bound: Bound) -> None:
            if zeroes(reals, bound):
                self._names.append(name or "the tensor")

        return look

    def warn(self, tell: Callable[[str], None] = warn_of_argument) -> None:
        """Warns once, with the names and with overrides that would keep the values."""
        names, self._names = self._names, []
        if not names:
            return
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        last = dict.fromkeys(re.escape(name.rpartition(".")[2]) for name in names)
        pattern = "|".join(list(last)[:_SHOWN])
        pattern = f"({pattern})$" if len(last) > 1 else f"{pattern}$"
        count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
        tell(
            f"the bound is above nearly all values of {count}, which become 0: {shown}. If they "
            "matter, as moments of an optimizer do, give them a bound of their own, such as "
            f"overrides={{r'{pattern}': {{'pointwise': 0.01}}}}"
        )
