"""Gated linear units as modules."""

from __future__ import annotations

from torch import Tensor, nn

from torch_cgx.activations.layers.gates import gated, gelu_kind


class _GLU(nn.Module):
    """Splits the last dimension in two as `gate, up = x.chunk(2, -1)`: the first half is activated.

    torch.nn.GLU activates the second half. x is kept once and nothing else is.
    Shapes: (*, 2 n) to (*, n).
    """

    _kind: str

    def forward(self, x: Tensor) -> Tensor:
        return gated(self._kind, x, None)


class SwiGLU(_GLU):
    """silu(gate) * up with `gate, up = x.chunk(2, -1)`. x is kept once, and nothing else.

    torch.nn.GLU activates the second half; here the first half is activated.
    Shapes: (*, 2 n) to (*, n). ValueError: the last dimension is odd.
    """

    _kind = "silu"


class ReGLU(_GLU):
    """relu(gate) * up; otherwise as SwiGLU."""

    _kind = "relu"


class GEGLU(_GLU):
    """gelu(gate, approximate) * up; otherwise as SwiGLU."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self._kind = gelu_kind(approximate)
        self.approximate = approximate

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class GatedMLP(nn.Module):
    """down_proj(act_fn(gate_proj(x)) * up_proj(x)) of Llama-like models, by `convert`.

    Keeps the outputs of gate_proj and up_proj, neither the activation nor the product. act_fn is
    not called: `kind` stands for it ("silu", "gelu", "gelu_tanh" or "relu"). down_proj is called as
    a module, and keeps the product, where it is not a plain torch.nn.Linear or has hooks.
    """

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    kind: str

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        down = self.down_proj
        if isinstance(down, nn.Linear) and is_plain_linear(down):
            return gated(self.kind, gate, up, down.weight, down.bias)
        return down(gated(self.kind, gate, up))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Hooks that a call of the module runs."""
    return any(getattr(module, name) for name in _HOOKS)


def is_plain_linear(module: nn.Module) -> bool:
    """A call does F.linear with its weight and bias, and nothing else."""
    return type(module) is nn.Linear and "forward" not in module.__dict__ and not has_hooks(module)
