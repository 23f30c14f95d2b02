"""A task of a few milliseconds: two classes of points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_cgx.emulate.comparison import Task

POINTS = 24


def points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(POINTS, 4, generator=generator)
    return x, (x[:, 0] > x[:, 1]).long()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def net() -> nn.Module:
    """Three layers: recipes leave the first and the last exact."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def task(model: Callable[[], nn.Module] = net, **changes: Any) -> Task:
    """Two classes of 24 points, which train and validate."""
    given = {"name": "toy", "optimizer": sgd, "batch": 8, "steps": 4} | changes
    return Task.supervised(model, points(), points(), **given)
