"""Which modules of a model have GEMMs that can be emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_WITHOUT = (nn.RNNBase, nn.RNNCellBase, nn.Bilinear)


class Target(NamedTuple):
    """A layer with a GEMM. name: of the module in the model; of a product of an attention, with
    ".in_proj" or ".out_proj" behind. kind: "linear", "conv", "transposed", "conv1d" (of
    transformers: a linear layer whose weight is [in, out]), "attention".
    """

    name: str
    module: nn.Module
    kind: str


def kind_of(module: nn.Module) -> str | None:
    """None where a module has no GEMM, complex weights, or a forward pass of its own."""
    forward = type(module).forward
    if "forward" in module.__dict__ or any(p.is_complex() for p in module.parameters(False)):
        return None
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return "linear"
    for known in _CONVOLUTIONS:
        if isinstance(module, known) and forward is known.forward:
            return "conv"
    for other in _TRANSPOSED:
        if isinstance(module, other) and forward is other.forward:
            return "transposed"
    if isinstance(module, nn.MultiheadAttention) and forward is nn.MultiheadAttention.forward:
        return "attention"
    home = type(module).__module__
    if type(module).__name__ == "Conv1D" and home.startswith("transformers."):
        return "conv1d"
    return None


def has_other_gemm(module: nn.Module) -> bool:
    """Whether its GEMMs are complex, or in torch's own kernels or a forward pass of its own."""
    known = (nn.Linear, nn.MultiheadAttention, *_CONVOLUTIONS, *_TRANSPOSED, *_WITHOUT)
    return isinstance(module, known) and kind_of(module) is None


def walk(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules and their names, without those inside of attentions, which use their weights, and
    without parametrizations."""
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(one) for one in inside) or "parametrizations" in name.split("."):
            continue
        yield name, module
        if isinstance(module, nn.MultiheadAttention):
            if not name:
                return
            inside.append(f"{name}.")


def targets(model: nn.Module) -> list[Target]:
    """In the order of the modules in the model."""
    found = []
    for name, module in walk(model):
        kind = kind_of(module)
        if kind == "attention":
            dot = f"{name}." if name else ""
            found += [Target(f"{dot}{part}", module, kind) for part in ("in_proj", "out_proj")]
        elif kind is not None:
            found.append(Target(name, module, kind))
    return found


def left(model: nn.Module) -> list[tuple[str, str]]:
    """(name, class) of modules with GEMMs that stay exact."""
    return [(name, type(m).__name__) for name, m in walk(model) if has_other_gemm(m)]
