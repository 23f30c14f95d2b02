"""Gradients, weights and optimizer state, rounded around an optimizer's step by its hooks."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from torch_cgx import _format_sums
from torch_cgx.emulate._dtensor import is_dtensor
from torch_cgx.emulate._format import Format
from torch_cgx.emulate._formats import ZScore
from torch_cgx.emulate.gemm.operand import Key, cast_along
from torch_cgx.emulate.training.notes import Notes
from torch_cgx.emulate.training.settings import MemoryFormat, Settings

KINDS = ("gradients", "weights", "optimizer_state")
_FIRST = 1 << 40  # numbers of these tensors begin here
_NUMBERS = (type(None), bool, int, float)


class OptimizerHooks:
    """Casts for the parameters of a model that an optimizer steps. optimizer: None: any that has
    some of them. step: of the optimizer, which keys random numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        settings: Settings,
        notes: Notes,
    ):
        self._model, self._settings, self._notes = weakref.ref(model), settings, notes
        self.step = 0
        pre, post = _Pre(self), _Post(self)
        if optimizer is None:
            self._handles = [
                torch_optimizer.register_optimizer_step_pre_hook(pre),
                torch_optimizer.register_optimizer_step_post_hook(post),
            ]
        else:
            self._handles = [
                optimizer.register_step_pre_hook(pre),
                optimizer.register_step_post_hook(post),
            ]

    def __deepcopy__(self, memo: object) -> OptimizerHooks:
        return self

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _format(self, kind: str) -> MemoryFormat | None:
        return self._settings.memory.get(kind)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[_Parameter]:
        """The model's, in its order, that the optimizer has and the filter takes."""
        model = self._model()
        if model is None:
            return
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        classes = {
            id(one): {cls.__name__ for cls in type(module).__mro__}
            for module in model.modules()
            for one in module.parameters(recurse=False)
        }
        for index, (name, one) in enumerate(model.named_parameters()):
            if id(one) in own and self._settings.takes(name):
                yield _Parameter(index, name, one, classes.get(id(one), set()))

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Casts gradients. TypeError: one is sparse or complex; then none is changed."""
        wanted = self._format("gradients")
        if wanted is None:
            return
        found = [one for one in self._parameters(optimizer) if one.tensor.grad is not None]
        for one in found:
            check_gradient(one.name, one.tensor.grad)
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides by it later
        with torch.no_grad():
            for one in found:
                grad = local(one.tensor.grad)
                if scale is not None:
                    grad.div_(scale.to(grad.device))
                self._gradient(one, grad, wanted)
                if scale is not None:
                    grad.mul_(scale.to(grad.device))

    def _gradient(self, one: _Parameter, grad: torch.Tensor, wanted: MemoryFormat) -> None:
        if not wanted.aps:
            return self._cast(one, "gradients", grad, wanted.format)
        total = _format_sums.FormatSum(wanted.format, aps=True).run([grad], self.step)
        self._notes.note(one.name, "gradients", grad, wanted.format, -1, None)
        grad.copy_(total)
        return None

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Casts weights and state. TypeError: a part of the state is no floating-point tensor;
        then neither is changed.
        """
        if any(self._format(kind) is not None for kind in ("weights", "optimizer_state")):
            infinite = getattr(optimizer, "found_inf", None)
            if infinite is None or not bool(infinite):  # else the step has changed nothing
                self._after(optimizer)
        self.step += 1

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        weights, states = self._format("weights"), self._format("optimizer_state")
        found = list(self._parameters(optimizer))
        if states is not None:
            for one in found:
                check_state(one.name, optimizer.state.get(one.tensor, {}))
        with torch.no_grad():
            for one in found:
                if weights is not None and not one.classes & set(weights.excepted):
                    self._cast(one, "weights", local(one.tensor.detach()), weights.format)
                if states is None:
                    continue
                for key, value in optimizer.state.get(one.tensor, {}).items():
                    if isinstance(value, torch.Tensor) and key != "step":
                        format = _non_negative(states.format, local(value))
                        self._cast(one, f"optimizer_state.{key}", local(value), format)

    def _cast(self, one: _Parameter, tensor: str, x: torch.Tensor, format: Format) -> None:
        """In place."""
        kinds = [kind for kind in KINDS if tensor.startswith(kind)]
        place = KINDS.index(kinds[0]) + (hash_of(tensor) if tensor not in KINDS else 0)
        seed = self._settings.seed + (_rank() << 32 if is_dtensor(one.tensor) else 0)
        key = Key(seed, self.step, _FIRST + one.index * 4096 + place)
        found = cast_along(x, format, -1, key, self._notes.measure)
        self._notes.note(one.name, tensor, x, format, -1, found.statistics)
        x.copy_(found.values)


@dataclasses.dataclass
class _Parameter:
    index: int
    name: str
    tensor: torch.Tensor
    classes: set[str]  # of its module, with their bases


class _Pre:
    def __init__(self, hooks: OptimizerHooks):
        self._hooks = hooks

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """A closure computes the gradients in the step: they are cast behind it."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._hooks.before(optimizer)

        def then() -> Any:
            loss = closure()
            self._hooks.before(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], then, *args[2:]), kwargs
        return args, {**kwargs, "closure": then}


class _Post:
    def __init__(self, hooks: OptimizerHooks):
        self._hooks = hooks

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._hooks.after(optimizer)


def hash_of(name: str) -> int:
    """A number of 3 to 4095 of a name, the same in every process."""
    found = 0
    for letter in name:
        found = (found * 31 + ord(letter)) % 4093
    return found + 3


def local(tensor: Any) -> torch.Tensor:
    """A shard of a DTensor, which shares its memory; other tensors as they are."""
    found: torch.Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return found


def _rank() -> int:
    dist = torch.distributed
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _non_negative(format: Format, state: torch.Tensor) -> Format:
    """A state without negative values, as a mean of squares, keeps none: its root is taken."""
    if isinstance(format, ZScore) and not format.all_positive and bool((state >= 0).all()):
        return dataclasses.replace(format, all_positive=True)
    return format


def check_gradient(name: str, grad: Any) -> None:
    """TypeError unless a gradient can be cast."""
    if grad.layout != torch.strided:
        raise TypeError(
            f"the gradient of {name!r} has the layout {grad.layout}; allowed with formats of "
            "gradients: torch.strided (an Embedding with sparse=False), or filter= without it"
        )
    if not grad.is_floating_point():
        raise TypeError(f"the gradient of {name!r} is {grad.dtype}; allowed: floating-point types")


def check_state(name: str, state: Any) -> None:
    """TypeError unless all of a parameter's state are floating-point tensors, but for numbers."""
    for key, value in state.items():
        if key == "step" or isinstance(value, _NUMBERS):
            continue
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"the optimizer's state {key!r} of {name!r} is of type {type(value).__name__}; "
                "allowed with formats of optimizer_state: tensors and numbers"
            )
        if value.layout != torch.strided or not value.is_floating_point():
            raise TypeError(
                f"the optimizer's state {key!r} of {name!r} is {value.dtype}, {value.layout}; "
                "allowed with formats of optimizer_state: strided floating-point tensors"
            )
