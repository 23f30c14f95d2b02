"""Floating tensors of two values, such as the masks of dropout on the CPU: exact, a bit a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torch_cgx.activations import _operators

_ops = torch.ops.torch_cgx
_LOOK = 64  # values that are looked at before all are


@dataclass(frozen=True, slots=True)
class TwoValues:
    codes: torch.Tensor
    low: float
    high: float


def pack(values: torch.Tensor) -> TwoValues | None:
    """None: there are other values, or NaN. On a GPU tensors are not looked at: its dropout keeps
    bools.
    """
    if values.device.type != "cpu":
        return None
    look = values[(0,) * (values.dim() - 1)][:_LOOK].tolist()
    found = sorted(set(look))
    if len(found) != 2 or not -_operators.LARGEST <= found[0] < found[1] <= _operators.LARGEST:
        return None
    low, high = found
    if math.nextafter(low, math.inf) >= high:
        return None  # neighbours: there is no border between
    codes = _ops.pack_two_values(values, low, high)
    return TwoValues(codes, low, high) if codes.numel() else None


def unpack(packed: TwoValues, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """The values, in one dimension."""
    return _ops.level_decode(packed.codes, [packed.low, packed.high], numel, dtype=dtype)
