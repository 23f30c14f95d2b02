"""FewBit's utilities: modules that are replaced, and (graph.py) what autograd holds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from torch_cgx.compat.fewbit.graph import (
    HookedMemoryUsage,
    estimate_memory_usage,
    memory_usage_hooks,
    teniter,
    traverse,
)

Children = dict[str, Any]


def map_module(
    root: nn.Module, func: Callable[..., nn.Module], patt: str | re.Pattern[str] | None = None
) -> nn.Module:
    """Replaces the modules of a model, children before their parents, and returns the root, or what
    replaces it.

    func: called with a module and its path, or with the module alone if it takes one argument.
        Paths are "/", "/encoder", "/encoder/0"; the children of a module are visited in their
        order. A module in two places is visited at both paths. It returns the module or another.
    patt: regular expression; only modules whose path it matches from the start (`re.match`) are
        given to func. None: all.

    ValueError: func returned something else. After this and any other error, the model is as it
    was. `activations.convert` also keeps ties, hooks and the training mode.
    """
    pattern = re.compile(".*" if patt is None else patt)
    undo: list[tuple[Children, str, nn.Module]] = []
    call = _with_path(func)

    def visit(module: nn.Module, path: str) -> nn.Module:
        children: Children = module._modules
        for name, child in list(children.items()):
            if child is None:
                continue
            new = visit(child, f"{path.rstrip('/')}/{name}")
            if new is not child:
                undo.append((children, name, child))
                children[name] = new
        if not pattern.match(path):
            return module
        found = call(module, path)
        if not isinstance(found, nn.Module):
            raise ValueError(
                f"func returned a {type(found).__name__} for {path}; allowed: torch.nn.Module"
            )
        return found

    try:
        return visit(root, "/")
    except BaseException:
        for children, name, child in reversed(undo):
            children[name] = child
        raise


def _with_path(func: Callable[..., nn.Module]) -> Callable[[nn.Module, str], Any]:
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # of a builtin
        return func
    try:
        signature.bind(None, "/")
    except TypeError:
        return lambda module, path: func(module)
    return func


def convert_linear(module: nn.Module, ctor: Callable[..., nn.Module], **kwargs: Any) -> nn.Module:
    """ctor(in_features, out_features, bias, device, dtype, **kwargs) with the parameters and the
    training mode of a torch.nn.Linear; another module as it is.

    The parameters are the same objects, so ties and optimizers stay; in FewBit they are new ones,
    and the layer is in training mode. Hooks are not taken over. ValueError: a weight that is not
    made yet (torch.nn.LazyLinear), or is computed in each step (weight_norm, parametrize).
    """
    if not isinstance(module, nn.Linear):
        return module
    weight, bias = module.weight, module.bias
    known = isinstance(weight, nn.Parameter) and isinstance(bias, (nn.Parameter, type(None)))
    if not known or isinstance(weight, nn.UninitializedParameter):
        raise ValueError(
            f"the weight or bias of a {type(module).__name__} is not made yet, or is computed in "
            "each step; allowed: a torch.nn.Linear whose weight and bias are parameters"
        )
    made = ctor(
        module.in_features,
        module.out_features,
        bias is not None,
        weight.device,
        weight.dtype,
        **kwargs,
    )
    made.weight, made.bias = weight, bias
    return made.train(module.training)


__all__ = [
    "HookedMemoryUsage",
    "convert_linear",
    "estimate_memory_usage",
    "map_module",
    "memory_usage_hooks",
    "teniter",
    "traverse",
]
