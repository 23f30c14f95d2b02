"""Models of BERT's and of Llama's form, of which benchmarks/activations.py measures a step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS = 768, 12


class BertLayer(nn.Module):
    """Post-norm, attention by matrix products, dropout 0.1 in three places."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_dropout, self.dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.output, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.activation = nn.Linear(width, 4 * width), nn.GELU()
        self.down, self.down_dropout = nn.Linear(4 * width, width), nn.Dropout(0.1)
        self.down_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = self.attention_dropout(scores.softmax(-1))
        mixed = (weights @ value).transpose(1, 2).flatten(2)
        x = self.norm(x + self.dropout(self.output(mixed)))
        return self.down_norm(x + self.down_dropout(self.down(self.activation(self.up(x)))))


class Encoder(nn.Module):
    """Layers of one class, and a linear head: what follows an encoder keeps its output."""

    def __init__(self, layer: type[nn.Module], layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer(width) for _ in range(layers)))
        self.head = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class GatedMLP(nn.Module):
    """With the names that Llama-like models give."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(hidden, width, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Pre-norm by RMSNorm, rotary embedding, scaled_dot_product_attention, SwiGLU of 4 widths."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.mlp = GatedMLP(width, 4 * width)
        half = width // heads // 2
        angles = torch.outer(torch.arange(4096).float(), 1e4 ** (-torch.arange(half) / half))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        cos, sin = (table[: x.shape[-2]].to(x.dtype) for table in (self.cos, self.sin))
        return x * cos + torch.cat([-high, low], -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        query, key, value = (
            one(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            self._rotated(query), self._rotated(key), value, is_causal=True
        )
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


MODELS: dict[str, type[nn.Module]] = {"BERT": BertLayer, "Llama": LlamaLayer}
