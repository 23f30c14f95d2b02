"""What `convert` can put in the place of a module, and why it cannot for others.

A replacement has the same dictionaries of parameters, buffers, children and hooks as the original,
not copies: handles of hooks, optimizers, tied parameters and later changes hold for both.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import activation, batchnorm, instancenorm, normalization
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from torch_cgx.activations._operators import FLOATING
from torch_cgx.activations.conversion import probes
from torch_cgx.activations.layers.gate_modules import GatedMLP, has_hooks, is_plain_linear
from torch_cgx.activations.projection.function import Settings

Found = (
    nn.Module | str | None
)  # a new module; the reason why there is none; not of a kind looked for


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replace. activations: bits of the derivative; None: no activation functions.
    linear: what linear layers keep; None: no linear layers. pattern: of their names."""

    activations: int | None
    norms: bool
    dropout: bool
    gates: bool
    linear: Settings | None = None
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        kinds = {
            "activation functions": self.activations is not None,
            "norms": self.norms,
            "dropout": self.dropout,
            "gated MLPs": self.gates,
            "linear layers": self.linear is not None,
        }
        return ", ".join(kind for kind, wanted in kinds.items() if wanted)


def replacement(module: nn.Module, wanted: Wanted) -> Found:
    """Makes the new module and changes nothing."""
    makers: list[Callable[[nn.Module], Found]] = []
    if wanted.activations is not None:
        makers.append(functools.partial(_activation, bits=wanted.activations))
    if wanted.norms:
        makers.append(_norm)
    if wanted.dropout:
        makers.append(_dropout)
    if wanted.gates:
        makers.append(_gated)
    if wanted.linear is not None:
        makers.append(functools.partial(_linear, settings=wanted.linear))
    return next((found for make in makers if (found := make(module)) is not None), None)


def new_function(layer: nn.Module, wanted: Wanted) -> Callable[..., Any] | str | None:
    """For the function that a torch.nn transformer layer has as its `activation`: a few-bit
    function, the reason why there is none, or None for other modules and activation modules.

    Forward values are torch's own, so the layer's fast path for inference, which is chosen by the
    attribute `activation_relu_or_gelu`, stays right.
    """
    if wanted.activations is None:
        return None
    if not isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return None
    from torch_cgx.activations import functional
    from torch_cgx.activations.few_bit.derivatives import STEPS
    from torch_cgx.activations.few_bit.modules import MODULES

    old = layer.activation
    if isinstance(old, nn.Module):
        return None
    if isinstance(old, functools.partial) or getattr(functional, _name(old), None) is old:
        return "it is converted already" if _is_few_bit(old) else "it is a functools.partial"
    known = {kind.__name__.lower() for kind in MODULES}
    name = _name(old)
    if name.replace("_", "") not in known or getattr(F, name, None) is not old:
        return f"the function {name} has no few-bit form"
    new = getattr(functional, name)
    return new if name in STEPS else functools.partial(new, bits=wanted.activations)


def unusable(module: nn.Module, base: type[nn.Module]) -> str | None:
    """Why a module need not compute what its base class does."""
    kind = type(module)
    if "forward" in module.__dict__:
        return "its forward is set on the object"
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "its method compile() was called: convert first"
    if parametrize.is_parametrized(module):
        return "it is parametrized"
    if any(ancestor.__name__ == "FSDPModule" for ancestor in kind.__mro__):
        return "fully_shard has wrapped it: convert first"
    if kind.forward is not base.forward or kind.__call__ is not nn.Module.__call__:
        return f"{kind.__name__} overrides the forward of {base.__name__}"
    return None


def carry_over(old: nn.Module, new: nn.Module) -> nn.Module:
    """Gives `new` the attributes of `old`, the same objects."""
    own_buffers = {"_buffers", "_non_persistent_buffers_set"} if new._buffers else ()
    new.__dict__.update({k: v for k, v in old.__dict__.items() if k not in own_buffers})
    if old._load_state_dict_pre_hooks:
        new.__dict__["_original"] = old  # these hooks refer to their module weakly
    return new


def _blank(kind: type[nn.Module]) -> Any:
    """A module without parameters, for attributes carried over: no constructor draws values."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    return module


def _base(module: nn.Module, bases: Iterable[type[nn.Module]]) -> type[nn.Module] | None:
    known = set(bases)
    return next((kind for kind in type(module).__mro__ if kind in known), None)


def _named(torch_module: Any) -> list[type[nn.Module]]:
    return [getattr(torch_module, name) for name in torch_module.__all__]


# In torch.nn.modules.activation, but no elementwise functions.
_OTHERS = {
    nn.GLU, nn.LogSoftmax, nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.Softmin,
}  # fmt: skip


def _activation(module: nn.Module, bits: int) -> Found:
    from torch_cgx.activations.few_bit.modules import MODULES

    if isinstance(module, tuple(few_bit for few_bit, _ in MODULES.values())):
        return "it is converted already"
    like = probes.hugging_face(module)
    if isinstance(like, str):
        return like
    base = _base(module, MODULES) if like is None else type(like)
    if base is None:
        torchs = _base(module, set(_named(activation)) - _OTHERS)
        return None if torchs is None else f"{torchs.__name__} has no few-bit form"
    why = unusable(module, base if like is None else type(module))
    if why:
        return why
    of = module if like is None else like
    kind, names = MODULES[base]
    step = kind._default_bits() == 1
    try:
        new = kind(**{name: getattr(of, name) for name in names}, bits=1 if step else bits)
        new(torch.zeros(1, dtype=torch.float32, device="cpu"))  # makes the table
    except ValueError as error:
        return str(error)
    return carry_over(module, new)


def _norm(module: nn.Module) -> Found:
    from torch_cgx.activations.layers import norm_modules as ours

    if isinstance(module, (ours.LayerNorm, ours.RMSNorm, ours.CastRMSNorm)):
        return "it is converted already"
    kinds: dict[type[nn.Module], Any] = {nn.LayerNorm: ours.LayerNorm, nn.RMSNorm: ours.RMSNorm}
    base = _base(module, kinds)
    if base is not None:
        why = unusable(module, base)
        if why:
            return why
        norm = _blank(kinds[base])
        carry_over(module, norm)
        norm.start("auto")
        return norm
    others = [*_named(normalization), *_named(batchnorm), *_named(instancenorm)]
    if (other := _base(module, others)) is not None:
        return f"{other.__name__} has no form that keeps its output"
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    why = unusable(module, type(module))
    if why:
        return why
    eps_name, why = probes.eps_of_rms_norm(module)
    if why:
        return why
    norm = _blank(ours.CastRMSNorm)
    carry_over(module, norm)
    norm.eps_name = eps_name
    norm.start("auto")
    return norm


def _dropout(module: nn.Module) -> Found:
    from torch_cgx.activations.layers.dropout import Dropout

    if isinstance(module, Dropout):
        return "it is converted already"
    if isinstance(module, nn.MultiheadAttention):
        return "its dropout is inside the attention" if module.dropout else None
    if isinstance(module, nn.Dropout):
        new = Dropout(module.p, module.inplace)
        return unusable(module, nn.Dropout) or carry_over(module, new)
    other = _base(module, _named(nn.modules.dropout))
    return None if other is None else f"{other.__name__} has no form that keeps less"


def _linear(module: nn.Module, settings: Settings) -> Found:
    from torch_cgx.activations.projection.modules import Linear

    if isinstance(module, Linear):
        return "it is converted already"
    if not isinstance(module, nn.Linear):
        return None
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "its MultiheadAttention takes the weights and does not call it"
    if isinstance(module, LazyModuleMixin):
        return "its parameters are not made yet: run a batch first"
    why = unusable(module, nn.Linear)
    if why:
        return why
    if module.weight.dtype not in FLOATING:
        return f"its weight is {module.weight.dtype}"
    new = _blank(Linear)
    carry_over(module, new)
    new.set(settings)
    return cast(nn.Module, new)


_PARTS = ("gate_proj", "up_proj", "down_proj")


def _gated(module: nn.Module) -> Found:
    if isinstance(module, GatedMLP):
        return "it is converted already"
    if not all(name in module._modules for name in _PARTS) or not hasattr(module, "act_fn"):
        return None
    more = set(module._modules) - {*_PARTS, "act_fn"}
    down: Any = module.down_proj
    why = unusable(module, type(module))
    if why:
        return why
    if module._parameters or module._buffers or more:
        return f"it has more than {', '.join(_PARTS)}, act_fn: {sorted(more)}"
    if not is_plain_linear(down) or parametrize.is_parametrized(down):
        return f"its down_proj is a {type(down).__name__}, or has hooks; allowed: a torch.nn.Linear"
    act: Any = module.act_fn
    if isinstance(act, nn.Module) and has_hooks(act):
        return "its act_fn has hooks"
    kind, why = probes.kind_of_gated(module, act)
    if why:
        return why
    block = _blank(GatedMLP)
    carry_over(module, block)
    block.kind = kind
    return block


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _is_few_bit(function: Any) -> bool:
    from torch_cgx.activations import functional

    own = function.func if isinstance(function, functools.partial) else function
    return getattr(functional, _name(own), None) is own
