"""Models, losses, and times that are no measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx.activations.budget.timing import Timer
from torch_cgx.workloads.gpt import GPT, GPTConfig


class Times(Timer):
    """A step takes a second; computing all blocks again takes 0.3 of it, and a coding 0.01 for a
    million values, twice as long if it rotates. What a plan took is what was predicted, by 1.
    """

    def __init__(self, took: float = 1.0, again: float = 0.3) -> None:
        super().__init__()
        self._took, self._again = took, again

    def step(self, run: Callable[[], Any]) -> float:
        return 1.0

    def ratio(self, run: Any, one: Any, other: Any) -> float:
        return self._took

    def longer(self, run: Any, other: Any) -> float:
        return self._again

    def forward(self, modules: Any, run: Any) -> dict[str, float]:
        return {name: 0.1 for name, _ in modules}

    def coding(self, config: Any, numel: int, dtype: Any, device: Any) -> float:
        return numel * 1e-8 * (2 if config["codec"] == "rotated" else 1)

    def activation(self, module: Any, bits: int, values: Any) -> float:
        return 0.0

    def linear(self, module: Any, settings: Any, values: Any) -> float:
        return 0.001


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.activation, self.down = nn.GELU(), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.activation(self.up(self.norm(x)))))


class MLP(nn.Module):
    def __init__(self, blocks: int = 2, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.last = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Encoder(nn.Module):
    """torch.nn's layers, with ReLU as a function, which shares its result with a linear layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
                for _ in range(2)
            )
        )
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def mlp(**options: Any) -> tuple[nn.Module, torch.Tensor, Any]:
    torch.manual_seed(0)
    return MLP(**options), torch.randn(8, 16, 32), lambda output: output.square().mean()


def encoder() -> tuple[nn.Module, torch.Tensor, Any]:
    torch.manual_seed(0)
    return Encoder(), torch.randn(4, 16, 32), lambda output: output.square().mean()


def gpt() -> tuple[nn.Module, torch.Tensor, Any]:
    """Tied weights, one layer for query, key and value."""
    torch.manual_seed(0)
    tokens = torch.randint(64, (4, 32))
    model = GPT(GPTConfig(vocabulary=64, context=32, layers=2, heads=2, width=32))
    return model, tokens, lambda output: F.cross_entropy(output.flatten(0, 1), tokens.flatten())


MODELS = {"mlp": mlp, "encoder": encoder, "gpt": gpt}


def gradient(model: nn.Module, batch: torch.Tensor, loss: Any) -> list[torch.Tensor]:
    """By plain torch, with the same random numbers each time."""
    torch.manual_seed(3)
    named = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(loss(model(batch)), named))


def relative(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    pairs = zip(found, exact, strict=True)
    error = sum(float((a.double() - b.double()).square().sum()) for a, b in pairs)
    return (error / sum(float(one.double().square().sum()) for one in exact)) ** 0.5
