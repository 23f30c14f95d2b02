"""Gradients, weights and optimizer state, rounded around an optimizer's step by its hooks."""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from torch_cgx._format_sums import Shift
from torch_cgx.activations.saved.modules import is_running
from torch_cgx.emulate._dtensor import is_dtensor
from torch_cgx.emulate._format import Format
from torch_cgx.emulate._formats import ZScore
from torch_cgx.emulate._statistics import Statistics
from torch_cgx.emulate.gemm.operand import Key, cast_along, times
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
        self._running: list[_Step] = []
        pre, post = _Pre(self), _Post(self)
        if optimizer is None:
            self._handles = [
                torch_optimizer.register_optimizer_step_pre_hook(pre),
                torch_optimizer.register_optimizer_step_post_hook(post),
            ]
            weakref.finalize(model, _remove, self._handles)
        else:
            self._handles = [
                optimizer.register_step_pre_hook(pre),
                optimizer.register_step_post_hook(post),
            ]

    def __deepcopy__(self, memo: object) -> OptimizerHooks:
        return self

    def remove(self) -> None:
        _remove(self._handles)

    def _format(self, kind: str) -> MemoryFormat | None:
        return self._settings.memory.get(kind)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[_Parameter]:
        """The model's, in its order, that the optimizer steps and the filter takes: those with a
        gradient.
        """
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
            if id(one) in own and one.grad is not None and self._settings.takes(name):
                yield _Parameter(index, name, one, classes.get(id(one), set()))

    def enter(self, optimizer: torch.optim.Optimizer) -> None:
        """A step begins."""
        self._running = [one for one in self._running if one.frame and is_running(one.frame)]
        self._running.append(_Step(optimizer, _frame_of_step()))

    def leave(self, optimizer: torch.optim.Optimizer) -> bool:
        """A step ends. False: in another step of this optimizer, as where a class of one's own
        calls its base's.
        """
        frame = _frame_of_step()
        while self._running and self._running.pop().frame is not frame:
            pass
        return not any(one.optimizer is optimizer for one in self._running)

    def forget(self) -> None:
        """A closure is to compute gradients anew."""
        for one in self._running:
            one.cast.clear()

    def before(self, optimizer: torch.optim.Optimizer) -> None:
        """Casts gradients, but for those that a step around this one has cast. TypeError: one is
        sparse or complex, or a part of the state is no floating-point tensor; then none is changed.
        """
        wanted = self._format("gradients")
        done = {number for one in self._running for number in one.cast}
        found = [one for one in self._parameters(optimizer) if id(one.tensor) not in done]
        if self._format("optimizer_state") is not None:
            for one in found:
                check_state(one.name, optimizer.state.get(one.tensor, {}))
        if wanted is None:
            return
        for one in found:
            check_gradient(one.name, one.tensor.grad)
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides by it later
        with torch.no_grad():
            for one in found:
                self._running[-1].cast.add(id(one.tensor))
                grad = local(one.tensor.grad)
                if scale is not None:
                    grad.div_(scale.to(grad.device))
                self._gradient(one, grad, wanted)
                if scale is not None:
                    grad.mul_(scale.to(grad.device))

    def _gradient(self, one: _Parameter, grad: torch.Tensor, wanted: MemoryFormat) -> None:
        if not wanted.aps:
            return self._cast(one, "gradients", grad, wanted.format)
        shift = Shift(wanted.format, [grad.float()], 1)
        shifted = shift.applied(grad.float())
        key = self._key(one, "gradients")
        found = cast_along(shifted, wanted.format, -1, key, self._notes.measure)
        statistics = found.statistics
        if statistics is not None:
            statistics = _in_units_of(statistics, grad)
        self._notes.note(one.name, "gradients", grad, wanted.format, -1, statistics, self.step)
        grad.copy_(shift.undone(found.values))
        return None

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """Casts weights and state. TypeError: a part of the state is no floating-point tensor;
        then neither is changed.
        """
        if not any(True for _ in self._parameters(optimizer)):
            return  # another model's optimizer
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
                    if is_cast(key, value, one.tensor):
                        format = _non_negative(states.format, local(value))
                        self._cast(one, f"optimizer_state.{key}", local(value), format)

    def _cast(self, one: _Parameter, tensor: str, x: torch.Tensor, format: Format) -> None:
        """In place."""
        found = cast_along(x, format, -1, self._key(one, tensor), self._notes.measure)
        self._notes.note(one.name, tensor, x, format, -1, found.statistics, self.step)
        x.copy_(found.values)

    def _key(self, one: _Parameter, tensor: str) -> Key:
        """Of random numbers: the same on ranks that hold the same values, others for each shard."""
        place = KINDS.index(tensor) if tensor in KINDS else hash_of(tensor)
        seed = (self._settings.seed + (shard_of(one.tensor) << 32)) % 2**64
        return Key(seed, self.step, _FIRST + one.index * 4096 + place)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()


@dataclasses.dataclass
class _Parameter:
    index: int
    name: str
    tensor: torch.Tensor
    classes: set[str]  # of its module, with their bases


@dataclasses.dataclass
class _Step:
    """A step that is running. frame: of its call; None in compiled code. cast: ids of parameters
    whose gradients it has cast.
    """

    optimizer: torch.optim.Optimizer
    frame: FrameType | None
    cast: set[int] = dataclasses.field(default_factory=set)


_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__


def _frame_of_step() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _STEP:
        frame = frame.f_back
    return frame


class _Hook:
    """Of an optimizer's step. torch.compile breaks its graph there."""

    def __init__(self, hooks: OptimizerHooks):
        self._hooks = hooks
        self._untraced: Any = None

    def _run(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:  # whose import takes a second
            return self._run(optimizer, args, kwargs)
        if self._untraced is None:
            self._untraced = torch.compiler.disable(self._run)
        return self._untraced(optimizer, args, kwargs)


class _Pre(_Hook):
    def _run(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """A closure computes the gradients in the step: they are cast behind it."""
        self._hooks.enter(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._hooks.before(optimizer)

        def then() -> Any:
            self._hooks.forget()
            loss = closure()
            self._hooks.before(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], then, *args[2:]), kwargs
        return args, {**kwargs, "closure": then}


class _Post(_Hook):
    def _run(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._hooks.leave(optimizer):
            self._hooks.after(optimizer)


def hash_of(name: str) -> int:
    """A number of 3 to 4095 of a name, the same in each process."""
    found = 0
    for letter in name:
        found = (found * 31 + ord(letter)) % 4093
    return found + 3


def local(tensor: Any) -> torch.Tensor:
    """A shard of a DTensor, which shares its memory; other tensors as they are."""
    found: torch.Tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    return found


def shard_of(tensor: Any) -> int:
    """The number of a DTensor's shard on this rank; 0 of other tensors."""
    if not is_dtensor(tensor):
        return 0
    found, mesh = 0, tensor.device_mesh
    for dimension, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            found = found * mesh.size(dimension) + mesh.get_local_rank(dimension)
    return int(found)


def _in_units_of(statistics: Statistics, grad: torch.Tensor) -> Statistics:
    """Of a gradient that was shifted by a power of two."""
    amax = float(grad.abs().amax()) if grad.numel() else 0.0
    return times(statistics, amax / statistics.amax) if 0 < amax < math.inf else statistics


def is_cast(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """Whether a part of a parameter's state is cast: not counters and other numbers of a step, as
    NAdam's product of momenta, also where they are tensors.
    """
    if not isinstance(value, torch.Tensor) or key == "step":
        return False
    return value.dim() > 0 or parameter.dim() == 0


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
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
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
