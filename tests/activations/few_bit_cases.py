"""The few-bit activation functions, their arguments, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx.activations import Table
from torch_cgx.activations.few_bit.derivatives import CONTINUOUS, STEPS

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Arguments of each function beside its input, several of some.
ARGUMENTS: dict[str, tuple[dict[str, Any], ...]] = {
    "hardshrink": ({}, {"lambd": 1.5}, {"lambd": -1.0}),
    "softshrink": ({}, {"lambd": 1.5}, {"lambd": 0.0}),
    "hardtanh": ({}, {"min_val": -2.0, "max_val": 0.5}),
    "leaky_relu": ({}, {"negative_slope": 0.3}),
    "threshold": ({"threshold": 0.5, "value": -2.0},),
    "celu": ({}, {"alpha": 2.0}),
    "elu": ({}, {"alpha": 0.5}),
    "gelu": ({}, {"approximate": "tanh"}),
    "softplus": ({}, {"beta": 2.0}, {"beta": 0.5, "threshold": 3.0}),
}
NAMES = (*STEPS, *CONTINUOUS)
CASES = [(name, arguments) for name in NAMES for arguments in ARGUMENTS.get(name, ({},))]
# FewBit's shipped table, as published to six digits.
FEWBIT_GELU = Table(
    (-2.41658, -0.710008, -0.325841, 0.000106942, 0.326057, 0.710241, 2.41448),
    (-0.000193991, -0.0882791, 0.125684, 0.372314, 0.627851, 0.874451, 1.08835, 1.00019),
)


def inputs(dtype: torch.dtype, n: int = 4000) -> torch.Tensor:
    """Values around all borders, the borders of step functions among them, zeros of both signs."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator, dtype=torch.float64) * 3
    special = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 3.0, -3.0, 6.0, 12.0, -12.0]
    x[: len(special)] = torch.tensor(special)
    return x.to(dtype)
