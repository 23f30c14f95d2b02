"""The models of benchmarks/frontier.py, on bytes of text, each with one batch and its loss.

Dropout is 0, so that what differs between two gradients of a batch is the method, not a mask. A few
steps of AdamW come first: the gradients of a model that has learnt nothing are of another kind.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks._activation_models import BertLayer
from torch_cgx.activations.budget.fit import Fitting
from torch_cgx.workloads import corpus

VOCABULARY, MASK, HEADS = 256, 0, 4
GPT, ENCODER = "GPT", "encoder"
Blocks = Callable[[nn.ModuleList, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """steps: of AdamW before the measurement."""

    layers: int = 5
    width: int = 256
    batch: int = 8
    sequence: int = 128
    steps: int = 20


QUICK = Sizes(layers=2, width=64, batch=2, sequence=32, steps=1)


class GPTLayer(nn.Module):
    """Pre-norm, causal attention by scaled_dot_product_attention, GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.output, self.mlp_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.activation = nn.Linear(width, 4 * width), nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.activation(self.up(self.mlp_norm(x))))


LAYERS: dict[str, type[nn.Module]] = {GPT: GPTLayer, ENCODER: BertLayer}


def in_order(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


class Model(nn.Module):
    """int64 tokens [batch, time] -> float32 logits [batch, time, VOCABULARY].

    through: how the blocks run; methods that checkpoint put their own here.
    """

    def __init__(self, layer: type[nn.Module], sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, sizes.width)
        self.positions = nn.Parameter(0.02 * torch.randn(sizes.sequence, sizes.width))
        self.blocks = nn.ModuleList(layer(sizes.width, HEADS) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, VOCABULARY)
        self.through: Blocks = in_order

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.through(self.blocks, x)))


@dataclass
class Case:
    """A model, a batch and its targets. compiled: what torch.compile has made so far. fitting: what
    activations.fit has measured, for several plans."""

    name: str
    model: Model
    tokens: Tensor
    targets: Tensor
    compiled: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    fitting: Fitting | None = None

    def loss(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), self.targets.flatten())

    def copy(self) -> Model:
        return copy.deepcopy(self.model)


def case(name: str, sizes: Sizes) -> Case:
    """name: of LAYERS. The GPT predicts the next byte, the encoder the masked 15 %."""
    torch.manual_seed(0)
    model = Model(LAYERS[name], sizes)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    made = Case(name, model, *next(batches := _batches(name, sizes)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(sizes.steps):
        made.loss(model(made.tokens)).backward()
        optimizer.step()
        optimizer.zero_grad()
        made.tokens, made.targets = next(batches)
    return made


def _batches(name: str, sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    text = _text()
    steps = torch.arange(sizes.sequence + 1)
    while True:
        starts = torch.randint(len(text) - sizes.sequence, (sizes.batch, 1))
        windows = text[starts + steps].long()
        tokens, following = windows[:, :-1], windows[:, 1:]
        if name == GPT:
            yield tokens.contiguous(), following.contiguous()
            continue
        hidden = torch.rand(tokens.shape) < 0.15
        yield tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


@functools.cache
def _text() -> Tensor:
    return corpus.load(0.5)[0]


def whole_gradient(model: nn.Module) -> list[Any]:
    """Clones of the gradients; ValueError where a parameter has none."""
    found = [parameter.grad for parameter in model.parameters()]
    if any(grad is None for grad in found):
        raise ValueError("a parameter has no gradient")
    return [grad.detach().clone() for grad in found if grad is not None]
