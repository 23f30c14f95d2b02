"""A small model, data that it can learn, and a training loop for the tests of torch's wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

FEATURES, HIDDEN, CLASSES = 32, 64, 8


class Block(nn.Module):
    def __init__(self, width: int = HIDDEN):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """38 thousand parameters; all start equal wherever the seed is equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Sometimes(nn.Module):
    """Its second branch is used in odd steps only, and one of its layers never."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(FEATURES, CLASSES)
        self.odd = nn.Linear(FEATURES, CLASSES)
        self.never = nn.Linear(FEATURES, CLASSES)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.always(x) if self.steps % 2 else self.always(x) + self.odd(x)


class Normed(nn.Module):
    """With buffers that change in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


_TEACHER = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(5))


def batch(rank: int, step: int, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x @ _TEACHER).argmax(1)


def loss_of(model: Any, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(data[0]).float(), data[1])


def train(
    model: nn.Module, rank: int, steps: int = 4, optimizer: Any = None, lr: float = 0.05
) -> list[float]:
    """Trains; the losses of this rank's batches."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(rank, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A copy of parameters, by name."""
    return {name: tensor.detach().clone() for name, tensor in named}


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def learned(losses: list[float]) -> bool:
    """Whether the mean loss of the last quarter is below 0.6 times that of the first steps."""
    quarter = max(1, len(losses) // 4)
    return sum(losses[-quarter:]) < 0.6 * sum(losses[:quarter])
