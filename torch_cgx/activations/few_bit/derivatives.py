"""The table of each function's derivative, for given parameters.

Step functions have torch's derivative at their borders, too: relu's is 1 above 0, hardtanh's is 1
strictly inside its bounds.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from torch_cgx._constant import constant
from torch_cgx.activations.tables.files import table_for
from torch_cgx.activations.tables.table import Table

STEPS = (
    "hardshrink",
    "hardsigmoid",
    "hardtanh",
    "leaky_relu",
    "relu",
    "relu6",
    "softshrink",
    "threshold",
)
CONTINUOUS = (
    "celu",
    "elu",
    "gelu",
    "hardswish",
    "logsigmoid",
    "mish",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softsign",
    "tanh",
    "tanhshrink",
)


def _below(border: float) -> float:
    """A border whose own value belongs to the piece above it."""
    return math.nextafter(border, -math.inf)


def _rounded(border: float, dtype: torch.dtype) -> float:
    """To a dtype, as torch has the border that it compares with."""
    if dtype == torch.float64:
        return border
    if dtype == torch.float16:
        with np.errstate(over="ignore"):
            return float(np.float16(border))
    single = np.array(border, np.float64).astype(np.float32)
    if dtype == torch.bfloat16 and np.isfinite(single):
        bits = single.view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        single = (rounded & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)
    return float(single)


def _computed(dtype: torch.dtype) -> torch.dtype:
    """What torch's backward pass of threshold and hardtanh compares in."""
    return dtype if dtype == torch.float64 else torch.float32


@constant
def inside(name: str, low: float, high: float, dtype: torch.dtype) -> Table:
    """1 where low < x < high, and 0 elsewhere. dtype: of the input."""
    low, high = _rounded(low, _computed(dtype)), _rounded(high, _computed(dtype))
    if not low < _below(high):  # torch refuses low > high; of equal bounds nothing is inside
        return _same(name, 0.0)
    if math.isinf(low) or math.isinf(high):
        if math.isinf(low) and math.isinf(high):
            return _same(name, 1.0)
        if math.isinf(low):
            return Table((_below(high),), (1.0, 0.0), name=name)
        return Table((low,), (0.0, 1.0), name=name)
    return Table((low, _below(high)), (0.0, 1.0, 0.0), name=name)


def _same(name: str, level: float) -> Table:
    return Table((0.0,), (level, level), name=name)


@constant
def above(name: str, border: float, level_below: float, dtype: torch.dtype) -> Table:
    """1 where x > border, and `level_below` elsewhere."""
    border = _rounded(border, _computed(dtype))
    if math.isinf(border):
        return _same(name, 1.0 if border < 0 else level_below)
    return Table((border,), (level_below, 1.0), name=name)


@constant
def beyond(name: str, border: float, dtype: torch.dtype) -> Table:
    """1 where |x| > border, and 0 elsewhere; torch has the border in the input's dtype."""
    border = _rounded(border, dtype)
    if border < 0 or math.isinf(border):
        return _same(name, 1.0 if border < 0 else 0.0)
    return Table((border,), (0.0, 1.0), parity=True, name=name)


HARDSIGMOID = Table((_below(3.0),), (1 / 6, 0.0), parity=True, name="hardsigmoid")


@constant
def continuous(name: str, bits: int) -> Table:
    return table_for(name, bits)


@constant
def of_alpha(name: str, bits: int, alpha: float) -> Table:
    return table_for(name, bits, alpha=float(alpha))


@constant
def of_softplus(bits: int, beta: float, threshold: float) -> Table:
    return table_for("softplus", bits, beta=float(beta), threshold=float(threshold))
