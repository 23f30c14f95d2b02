"""Which modules keep the same tensors, which of them can be computed again, and what they get."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from torch_cgx._unchanged import Unchanged
from torch_cgx.activations.budget.recompute import is_set
from torch_cgx.activations.conversion.replaceable import Wanted, new_function, replacement
from torch_cgx.activations.report import kinds
from torch_cgx.activations.report.memory import tensors_of
from torch_cgx.activations.report.saves import LOSS, Save, Stored

_ENCODED = (torch.float32, torch.float16, torch.bfloat16)  # what wire codecs take
_WEIGHTS = (nn.Linear, nn.modules.conv._ConvNd)  # whose input only their own gradient needs


@dataclasses.dataclass
class Item:
    """Modules that keep storages together, so that one choice holds for all of them.

    names: of the modules. storages: what they keep, of which nbytes are counted for them.
    weights: those, if all others are `steps`, whose input only the gradient of their own weight
        needs. linears: those of them that torch.nn.Linear's replacement can stand for.
    steps: activation functions of few-bit form with an exact derivative. smooth: others; the item
        has nothing else then. block: the block that holds it all. floating: values to encode.
    """

    names: tuple[str, ...]
    storages: list[Stored]
    nbytes: int = 0
    weights: tuple[str, ...] = ()
    linears: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    smooth: tuple[str, ...] = ()
    block: str | None = None

    @property
    def encodable(self) -> bool:
        """Whether a codec takes all floating tensors."""
        return is_encodable(self.storages)


def is_encodable(stored: Iterable[Stored]) -> bool:
    """Whether wire codecs take all floating tensors."""
    return all(one.dtype in _ENCODED for one in stored if one.dtype.is_floating_point)


def items_of(stored: Iterable[Stored], model: nn.Module, blocks: Iterable[str]) -> list[Item]:
    """In the order in which they first keep something. A storage that the loss keeps, too, is no
    one's: no choice frees it."""
    stored = list(stored)
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    own = [one for one in stored if not is_fixed(one)]
    for one in own:
        first, *others = dict.fromkeys(save.module for save in one.saves)
        for other in (first, *others):
            parent[root(other)] = root(first)
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(root(name), []).append(name)
    modules = dict(model.named_modules())
    return [_item(tuple(names), own, modules, list(blocks)) for names in groups.values()]


def is_fixed(one: Stored) -> bool:
    """Whether the loss keeps it."""
    return any(save.module == LOSS for save in one.saves)


def bytes_by_item(stored: Iterable[Stored], items: list[Item]) -> tuple[list[int], int]:
    """Of each item, and of what belongs to none. A storage counts for whom saved it first."""
    place = {name: n for n, item in enumerate(items) for name in item.names}
    found, fixed = [0] * len(items), 0
    for one in stored:
        number = None if is_fixed(one) else place.get(one.saves[0].module)
        if number is None:
            fixed += one.nbytes
        else:
            found[number] += one.nbytes
    return found, fixed


def _item(
    names: tuple[str, ...], stored: list[Stored], modules: dict[str, nn.Module], blocks: list[str]
) -> Item:
    mine = [one for one in stored if any(save.module in names for save in one.saves)]
    saves: dict[str, list[Save]] = {name: [] for name in names}
    for one in mine:
        for save in one.saves:
            saves[save.module].append(save)
    item = Item(names, mine, sum(one.nbytes for one in mine))
    forms = {name: _few_bit(modules[name], saves[name]) for name in names}
    steps = tuple(name for name, form in forms.items() if form == "step")
    smooth = tuple(name for name, form in forms.items() if form == "smooth")
    weights = tuple(n for n in names if _only_weight(modules[n], saves[n]))
    if weights and len(weights) + len(steps) == len(names):
        item.weights, item.steps = weights, steps
        item.linears = tuple(n for n in weights if _is_replaceable(modules[n]))
    elif len(steps) + len(smooth) == len(names):
        item.steps, item.smooth = steps, smooth
    item.block = next((one for one in blocks if all(inside(n, one) for n in names)), None)
    return item


def inside(name: str, block: str) -> bool:
    return name == block or name.startswith(f"{block}.")


def _few_bit(module: nn.Module, saves: list[Save]) -> str | None:
    """step: its derivative has two values, so few bits are exact. smooth. None: nothing there."""
    if any(save.kind != kinds.ACTIVATION for save in saves):
        return None
    wanted = Wanted(3, False, False, False)
    if not callable(new_function(module, wanted)):
        if not isinstance(replacement(module, wanted), nn.Module):
            return None
    steps = all(kinds.operation(save) in kinds.STEP_NODES for save in saves)
    return "step" if steps else "smooth"


def _only_weight(module: nn.Module, saves: list[Save]) -> bool:
    if not isinstance(module, _WEIGHTS) or is_set(module):
        return False
    base = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn."))
    plain = type(module).forward is base.forward  # type: ignore[attr-defined]
    # Casts of the weight by autocast are never encoded.
    return plain and all(save.kind in (kinds.LINEAR, kinds.CAST) for save in saves)


def _is_replaceable(module: nn.Module) -> bool:
    from torch_cgx.activations.projection.function import checked

    wanted = Wanted(None, False, False, False, checked(0.5, "wta", "batch", None))
    return isinstance(replacement(module, wanted), nn.Module)


@dataclasses.dataclass
class Calls:
    """What a forward pass calls. count: of calls by name of module. inputs: shape, type and device
    of the first tensor that the first call got."""

    count: dict[str, int] = dataclasses.field(default_factory=dict)
    inputs: dict[str, tuple[torch.Size, torch.dtype, torch.device]] = dataclasses.field(
        default_factory=dict
    )
    differentiable: dict[str, bool] = dataclasses.field(default_factory=dict)


def watched(model: nn.Module, run: Callable[[], Any]) -> Calls:
    """What run() calls of the model's modules."""
    calls, hooks = Calls(), []

    def hook_of(name: str) -> Callable[..., None]:
        def seen(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if torch._C._current_graph_task_id() != -1:
                return  # computed again
            calls.count[name] = calls.count.get(name, 0) + 1
            given = tensors_of((args, kwargs))
            if given:
                first = given[0]
                calls.inputs.setdefault(name, (first.shape, first.dtype, first.device))
            calls.differentiable[name] = any(one.requires_grad for one in tensors_of(output))

        return seen

    with Unchanged(model, ()):
        for name, module in model.named_modules():
            hooks.append(module.register_forward_hook(hook_of(name), with_kwargs=True))
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
    return calls


def blocks_of(model: nn.Module, calls: Calls) -> list[str]:
    """Modules that a checkpoint may compute again: those of one class in a ModuleList or
    Sequential, two or more, each with more than one module inside and called once in a pass. Not
    those with running statistics, which would count twice, nor with a forward of the object.
    """
    found: list[str] = []
    for path, holder in model.named_modules():
        if not isinstance(holder, (nn.ModuleList, nn.Sequential)):
            continue
        if any(inside(path, block) for block in found):
            continue
        children = {f"{path}.{key}" if path else key: one for key, one in holder.named_children()}
        kinds_ = [type(one) for one in children.values()]
        for name, one in children.items():
            if kinds_.count(type(one)) > 1 and _is_block(name, one, calls):
                found.append(name)
    return found


def _is_block(name: str, module: nn.Module, calls: Calls) -> bool:
    leaves = [one for one in module.modules() if not list(one.children())]
    running = any(
        isinstance(one, nn.modules.batchnorm._NormBase) and one.track_running_stats
        for one in module.modules()
    )
    once = calls.count.get(name) == 1 and calls.differentiable.get(name, False)
    return len(leaves) > 1 and once and not running and not is_set(module)


def rows_of(save: Save) -> int:
    """Of a linear layer's input."""
    return save.numel // max(save.size[-1], 1) if save.size else 0
