"""Whether modules of other libraries compute what their names say, found by running them.

A probe runs the forward of the module's class on a copy with small weights, on the CPU, without
hooks. It changes neither the module nor torch's random numbers.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_cgx.activations.layers import gates
from torch_cgx.activations.layers.norms import cast_rms_norm

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
_WIDTH = 8


def _inputs(*shape: int, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu") * scale


def _stub(module: nn.Module, **replaced: dict[str, Any]) -> nn.Module:
    """A copy with other `_modules` or `_parameters`, without the hooks of a call."""
    stub = module.__class__.__new__(module.__class__)
    stub.__dict__ = {**module.__dict__, **replaced}
    return stub


def _run(module: nn.Module, x: Tensor) -> Tensor | str:
    """Its output, or the reason why there is none."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            y = type(module).forward(module, x)
    except Exception as error:
        return f"its forward fails on a probe: {type(error).__name__}: {error}"
    return y if isinstance(y, Tensor) else f"its forward gives a {type(y).__name__}"


def _small_linear(width: int, out: int, seed: int) -> nn.Linear:
    linear = nn.Linear(width, out, device="meta").to_empty(device="cpu").double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64, device="cpu")
            )
    return linear


def _differs(y: Tensor | str, expected: Tensor, formula: str, exact: bool = False) -> str | None:
    if isinstance(y, str):
        return y
    if exact:
        same = y.dtype == expected.dtype and torch.equal(y, expected)
    else:
        same = y.shape == expected.shape and torch.allclose(y, expected, rtol=1e-6, atol=1e-9)
    return None if same else f"its forward does not compute {formula}"


def differs_from(module: nn.Module, function: Callable[[Tensor], Tensor], name: str) -> str | None:
    """Why an activation module is not that function, up to 1e-6; None if it is."""
    x = _inputs(64)
    return _differs(_run(module, x), function(x), name)


# Classes of transformers.activations, and torch's modules of the same functions.
_CLASSES: dict[str, Callable[[], nn.Module]] = {
    "GELUActivation": nn.GELU,
    "NewGELUActivation": lambda: nn.GELU("tanh"),
    "FastGELUActivation": lambda: nn.GELU("tanh"),
    "AccurateGELUActivation": lambda: nn.GELU("tanh"),
    "PytorchGELUTanh": lambda: nn.GELU("tanh"),
    "GELUTanh": lambda: nn.GELU("tanh"),
    "SiLUActivation": nn.SiLU,
    "MishActivation": nn.Mish,
}


def hugging_face(module: nn.Module) -> nn.Module | str | None:
    """torch's module of the same function for one of transformers.activations; the reason if there
    is none; None for a module from elsewhere."""
    library = sys.modules.get("transformers.activations")
    name = type(module).__name__
    if library is None or getattr(library, name, None) is not type(module):
        return None
    if name not in _CLASSES:
        return f"{name} has no few-bit form"
    like = _CLASSES[name]()
    return differs_from(module, like, str(like)) or like


def kind_of_activation(act: Any) -> str | None:
    """The kind of a gated unit that an activation, a module or function, claims to be of; None: of
    none. kind_of_gated runs it."""
    if isinstance(act, nn.Module):
        found = hugging_face(act)
        if found is not None:
            return kind_of_activation(found)
        if isinstance(act, nn.GELU):
            return gates.gelu_kind(act.approximate)
        kinds = {nn.SiLU: "silu", nn.ReLU: "relu"}
        return next((kind for base, kind in kinds.items() if isinstance(act, base)), None)
    return {F.silu: "silu", F.relu: "relu", torch.relu: "relu", F.gelu: "gelu"}.get(act)


def kind_of_gated(block: nn.Module, act: Any) -> tuple[str | None, str | None]:
    """The kind of a gated MLP, or the reason why it is none."""
    kind = kind_of_activation(act)
    if kind is None:
        name = type(act).__name__ if isinstance(act, nn.Module) else getattr(act, "__name__", act)
        return None, f"its act_fn is {name}; convertible: SiLU, GELU, ReLU"
    small = {
        "gate_proj": _small_linear(_WIDTH, 12, 1),
        "up_proj": _small_linear(_WIDTH, 12, 2),
        "down_proj": _small_linear(12, _WIDTH, 3),
    }
    act_fn = {"act_fn": copy.copy(act)} if isinstance(act, nn.Module) else {}
    stub = _stub(block, _modules={**small, **act_fn})
    x = _inputs(5, _WIDTH, scale=1.0)
    with torch.no_grad():
        gate, up = small["gate_proj"](x), small["up_proj"](x)
        expected = small["down_proj"](gates.gated(kind, gate, up))
    why = _differs(_run(stub, x), expected, "down_proj(act_fn(gate_proj(x)) * up_proj(x))")
    return (None, why) if why else (kind, None)


def eps_of_rms_norm(norm: nn.Module) -> tuple[str | None, str | None]:
    """The name of eps of an RMS norm of a Llama-like model, or the reason why it is none."""
    names = [name for name in _EPS_NAMES if isinstance(getattr(norm, name, None), float)]
    weight = norm._parameters.get("weight")
    if not names or weight is None or weight.dim() != 1:
        return None, "it has no weight of one dimension, or no eps"
    if len(norm._parameters) + len(norm._buffers) + len(norm._modules) != 1:
        return None, "it has more than a weight"
    values = _inputs(len(weight)).abs() + 0.5
    for types in ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)):
        x, own = _inputs(3, len(weight)).to(types[0]), values.to(types[1])
        stub = _stub(norm, _parameters={"weight": nn.Parameter(own)})
        with torch.no_grad():
            expected = cast_rms_norm(x, own, getattr(norm, names[0]))
        formula = "weight * (x / rms(x)).to(x.dtype) bit for bit"
        why = _differs(_run(stub, x), expected, formula, exact=True)
        if why:
            return None, why
    return names[0], None
