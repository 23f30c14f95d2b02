"""A small GPT: pre-norm transformer blocks with causal self-attention, on byte tokens.

After Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), 2019: learned
positions, layer norm before each part, GELU, output weights tied to the embedding, and residual
projections initialised smaller by sqrt(2 * layers).
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes; `width` must be a multiple of `heads`. The defaults make 837,888 parameters."""

    vocabulary: int = 256
    context: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128

    def __post_init__(self) -> None:
        if self.width % self.heads != 0:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads")


class Attention(nn.Module):
    """Causal multi-head self-attention: float32 [batch, time, width] -> the same."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self._heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position attends to itself and those before it."""
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self._heads, width // self._heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention, then a two-layer perceptron; each with a layer norm before it and a bypass."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [batch, time, width] -> the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """int64 tokens [batch, time] -> float32 logits [batch, time, vocabulary], time <= context."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initialise)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "down.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the token that follows each position; ValueError where time exceeds context."""
        time = tokens.shape[1]
        if time > self.config.context:
            raise ValueError(f"{time} tokens exceed the context of {self.config.context}")
        x = self.tokens(tokens) + self.positions(
            torch.arange(time, dtype=torch.int64, device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)
