"""Modules whose GEMMs round: the class of a module is exchanged, and nothing else of it. So
parameters, hooks, names of the state dict, isinstance and FSDP2's own classes stay as they are.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx.emulate.gemm.convolution import of_module, of_transposed_module
from torch_cgx.emulate.gemm.linear import linear
from torch_cgx.emulate.gemm.rounding import Call, begin
from torch_cgx.emulate.training.site import Site
from torch_cgx.emulate.training.targets import kind_of

NUMBERS = "_cgx_roundings"
"""The attribute with the numbers of a module's Roundings; -1: exact."""
_SITES = "_cgx_sites"
"""The attribute with the Roundings themselves, which live as long as the module or a copy of it."""


class Emulated:
    """The part that all classes of such modules have; `exact_class` is the module's own."""

    exact_class: type[nn.Module]

    def _begin(self, which: int = 0) -> Call:
        number = self.__dict__[NUMBERS][which]
        return begin(number, self.training)  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled, it is a module of its own class: formats belong to the process."""
        own: Any = getattr(self.exact_class, "__getstate__", None)
        usual = own is None or own is getattr(object, "__getstate__", None)
        state = self.__dict__ if usual else own(self)
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key not in (NUMBERS, _SITES)}
        return _rebuild, (self.exact_class,), state

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        """Copies round, too, with the same formats and counts, until remove()."""
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return _noted(new)

    def __copy__(self: Any) -> Any:
        new = self.__class__.__new__(self.__class__)
        new.__dict__.update(self.__dict__)
        return _noted(new)


def _noted(module: nn.Module) -> nn.Module:
    for site in module.__dict__[_SITES]:
        site.copies.add(module)
    return module


def _rebuild(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)


class _Linear(Emulated):
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias, self._begin())


class _Conv1D(Emulated):
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight.t(), self.bias, self._begin())


class _Conv(Emulated):
    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        return of_module(self, input, self._begin())


class _Transposed(Emulated):
    def forward(self: Any, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        return of_transposed_module(self, input, self._begin(), output_size)


class _Attention(Emulated):
    """The products that project query, key and value, and the result, round; the attention between
    them is torch's own, of a copy whose projections are identities.
    """

    def forward(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        inside, out = (
            None if number < 0 else begin(number, self.training)
            for number in self.__dict__[NUMBERS]
        )
        projected = _projections(self, query, key, value, inside)
        attend: Any = nn.MultiheadAttention.forward
        y, weights = attend(_with_identities(self, query), *projected, *args, **kwargs)
        return _product(y, self.out_proj.weight, self.out_proj.bias, out), weights


def _product(x: torch.Tensor, weight: Any, bias: Any, call: Call | None) -> torch.Tensor:
    return F.linear(x, weight, bias) if call is None else linear(x, weight, bias, call)


def _projections(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call | None
) -> tuple[torch.Tensor, ...]:
    """Of self-attention in one product, as torch has it."""
    bias = module.in_proj_bias
    if module._qkv_same_embed_dim and query is key and key is value:
        return _product(query, module.in_proj_weight, bias, call).chunk(3, -1)
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    rows = zip((query, key, value), weights, biases, strict=True)
    return tuple(_product(x, weight, one, call) for x, weight, one in rows)


def _with_identities(module: Any, like: torch.Tensor) -> nn.MultiheadAttention:
    """A copy of an attention that shares everything else with it."""
    copied = nn.MultiheadAttention.__new__(nn.MultiheadAttention)
    copied.__dict__.update(module.__dict__)
    width = module.embed_dim
    weight = torch.eye(width, dtype=module.out_proj.weight.dtype, device=like.device)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    out: Any = nn.Module()
    out.weight, out.bias = weight, None
    copied.__dict__.update(
        _parameters={"bias_k": module.bias_k, "bias_v": module.bias_v},
        _modules={"out_proj": out},
        _qkv_same_embed_dim=False,
        kdim=width,
        vdim=width,
        in_proj_weight=None,
        in_proj_bias=None,
        **dict.fromkeys(names, weight),
    )
    return copied


_PARTS: dict[str, type[Emulated]] = {
    "linear": _Linear,
    "conv": _Conv,
    "transposed": _Transposed,
    "conv1d": _Conv1D,
    "attention": _Attention,
}


@functools.cache
def emulated_class(cls: type[nn.Module], kind: str) -> type[nn.Module]:
    name = f"Emulated{cls.__name__}"
    members = {"exact_class": cls, "__module__": __name__, "__qualname__": name}
    return type(name, (_PARTS[kind], cls), members)


def exchange(module: nn.Module, sites: Sequence[Site | None]) -> None:
    """The module rounds from now on: one site, two of an attention; None: exact."""
    kind = kind_of(module)
    assert kind is not None
    module.__dict__[NUMBERS] = tuple(-1 if one is None else one.number for one in sites)
    module.__dict__[_SITES] = tuple(one for one in sites if one is not None)
    module.__class__ = emulated_class(type(module), kind)  # type: ignore[arg-type]


def is_emulated(module: nn.Module) -> bool:
    return NUMBERS in module.__dict__


def restore(module: nn.Module) -> None:
    """The module's own class again."""
    module.__class__ = type(module).exact_class  # type: ignore[attr-defined]
    del module.__dict__[NUMBERS], module.__dict__[_SITES]


def is_as_made(module: nn.Module) -> bool:
    """False if something has since been made of its class."""
    cls = type(module)
    return is_emulated(module) and "exact_class" in cls.__dict__
