"""Modules as model libraries write them, for tests of `convert`."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LlamaRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


class GemmaRMSNorm(LlamaRMSNorm):
    """The weight is an offset of 1."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        wide = hidden_states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1.0 + self.weight.float())).to(hidden_states.dtype)


class LlamaMLP(nn.Module):
    def __init__(self, size: int, hidden: int, act: Any = None, bias: bool = False) -> None:
        super().__init__()
        self.hidden_size = size
        self.gate_proj = nn.Linear(size, hidden, bias=bias)
        self.up_proj = nn.Linear(size, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, size, bias=bias)
        self.act_fn = nn.SiLU() if act is None else act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class ScaledMLP(LlamaMLP):
    """Computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class LlamaBlock(nn.Module):
    """Without attention, which no test needs."""

    def __init__(self, size: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(size)
        self.mlp = LlamaMLP(size, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.input_layernorm(x))


class GELUActivation(nn.Module):
    def __init__(self, use_gelu_python: bool = False) -> None:
        super().__init__()
        self.act = F.gelu

    def forward(self, input: Tensor) -> Tensor:
        return self.act(input)


class NewGELUActivation(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        cubic = input + 0.044715 * torch.pow(input, 3.0)
        return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cubic))


class QuickGELUActivation(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return input * torch.sigmoid(1.702 * input)


class SiLUActivation(nn.Module):
    """Not what its name says."""

    def forward(self, input: Tensor) -> Tensor:
        return input * torch.sigmoid(2.0 * input)


ACTIVATIONS = (GELUActivation, NewGELUActivation, QuickGELUActivation, SiLUActivation)
