"""Inputs of linear layers, their exact gradients, and statistics of estimates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_cgx.activations.functional import linear
from torch_cgx.activations.projection.function import METHODS

BYS = ("batch", "features")
EVERY = [(method, by) for method in METHODS for by in BYS]


def inputs(
    rows: int = 64, width: int = 24, out: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and dy; rows and columns of x have different sizes."""
    generator = torch.Generator().manual_seed(7)
    x, weight, bias, dy = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((rows, width), (out, width), (out,), (rows, out))
    )
    x = x * (0.25 + torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 4)
    x = x * (0.5 + torch.rand(1, width, generator=generator, dtype=torch.float64))
    return tuple(one.to(dtype) for one in (x, weight, bias, dy))  # type: ignore[return-value]


def estimates(x: Tensor, weight: Tensor, dy: Tensor, draws: int, **options: Any) -> Tensor:
    """[draws, out, in]: the gradient of the weight, again and again."""
    weight = weight.detach().clone().requires_grad_()
    found = []
    for _ in range(draws):
        (one,) = torch.autograd.grad(linear(x, weight, **options), weight, dy)
        found.append(one.double())
    return torch.stack(found)


def slope(found: Tensor, exact: Tensor) -> float:
    """Of the mean of estimates on what it should be."""
    return float((found.mean(0) * exact).sum() / exact.square().sum())


def variance(found: Tensor, exact: Tensor) -> float:
    """The mean squared error, relative to the square of the exact gradient."""
    return float((found - exact).square().sum((1, 2)).mean() / exact.square().sum())
