"""Modules that torch.utils.checkpoint computes again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

# Operators whose results a selective checkpoint keeps: they take most of the time.
_KEPT = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution")
_ATTENTION = "_scaled_dot_product"


class Recomputed:
    """Stands in a module as its `forward`, in the object and not in the class: names of parameters,
    hooks and types stay. Copies and pickles of the module take it along.
    """

    def __init__(self, module: nn.Module, selective: bool = False) -> None:
        self._module, self._selective = module, selective

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self._module).forward(self._module, *args, **kwargs)
        # A checkpoint saves the tensors among its own positional arguments, so that hooks on saved
        # tensors see them, and holds all others as they are.
        values, structure = _pytree.tree_flatten((args, kwargs))
        kept: list[Any] = []
        more: dict[str, Any] = {}
        if self._selective:
            more["context_fn"] = functools.partial(_contexts, kept)
        result = checkpoint(self._run, structure, *values, use_reentrant=False, **more)
        held = [one for one in values if isinstance(one, Tensor)]
        held += [one for mode in kept for one in _tensors(mode.storage)]
        return _holding(result, held)

    def _run(self, structure: _pytree.TreeSpec, *values: Any) -> Any:
        args, kwargs = _pytree.tree_unflatten(list(values), structure)
        return type(self._module).forward(self._module, *args, **kwargs)


def _holding(result: Any, held: list[Tensor]) -> Any:
    """The result, with a node behind one of its tensors that saves what the checkpoint keeps: the
    checkpoint's own references are in no node, so that `activations.memory` does not find them.
    What is saved twice is kept once."""
    leaves, structure = _pytree.tree_flatten(result)
    for n, one in enumerate(leaves):
        if isinstance(one, Tensor) and one.requires_grad:
            leaves[n] = _Held.apply(one, *held)
            break
    return _pytree.tree_unflatten(leaves, structure)


class _Held(torch.autograd.Function):
    """Its first argument, and saves the others."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        ctx.count = len(kept)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], *(None,) * ctx.count


def _contexts(kept: list[Any]) -> tuple[Any, Any]:
    """kept: where the mode goes that keeps the results."""
    pair = create_selective_checkpoint_contexts(_policy)
    kept.append(pair[0])
    return pair


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = getattr(getattr(operator, "overloadpacket", None), "__name__", "")
    keeps = name in _KEPT or name.startswith(_ATTENTION)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _tensors(storage: Any) -> Iterator[Tensor]:
    for results in storage.values():
        for one in results.values():
            for leaf in _pytree.tree_leaves(one):
                value = getattr(leaf, "val", None)
                if isinstance(value, Tensor):
                    yield value


def set_forward(module: nn.Module, selective: bool) -> None:
    module.__dict__["forward"] = Recomputed(module, selective)


def is_set(module: nn.Module) -> bool:
    return "forward" in module.__dict__


def remove_forward(module: nn.Module) -> None:
    if isinstance(module.__dict__.get("forward"), Recomputed):
        del module.__dict__["forward"]
