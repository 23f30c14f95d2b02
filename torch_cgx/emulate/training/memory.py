"""Outputs of modules and the gradients of them, rounded where memory would hold them."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree

from torch_cgx.emulate._format import Format
from torch_cgx.emulate.gemm.operand import Key, cast_along
from torch_cgx.emulate.gemm.rounding import Clock, in_backward
from torch_cgx.emulate.training.notes import Notes

_FIRST = 1 << 20  # numbers of these places begin here; GEMMs have the ones before


class Place:
    """The output of one module. activations, gradient_maps: formats, None: exact."""

    def __init__(
        self,
        name: str,
        activations: Format | None,
        gradient_maps: Format | None,
        clock: Clock,
        index: int,
        notes: Notes,
    ):
        self.name, self.clock, self._notes = name, clock, notes
        self._formats = {"activations": activations, "gradient_maps": gradient_maps}
        self._index = _FIRST + index
        self._occasion = 0  # of the last forward pass

    def __deepcopy__(self, memo: object) -> Place:
        return self

    def cast(self, x: torch.Tensor, kind: str, step: int, number: int) -> torch.Tensor:
        """number: of the tensor among the module's outputs."""
        format = self._formats[kind]
        if format is None:
            return x
        index = (self._index * 64 + number) * 2 + (kind == "gradient_maps")
        key = Key(self.clock.rank_seed, step, index)
        found = cast_along(x, format, -1, key, self._notes.measure)
        if kind == "gradient_maps" or not in_backward():  # else a checkpoint's repetition
            occasion = step if kind == "gradient_maps" else self._occasion
            self._notes.note(self.name, kind, x, format, -1, found.statistics, occasion)
        return found.values

    def store(self, output: Any, training: bool) -> Any:
        """A module's output with its tensors cast, but for those that are results of a cast, or
        views of one, and those of one value without dimensions, as losses are.
        """
        if dataclasses.is_dataclass(output) and _pytree.tree_is_leaf(output):
            names = [one.name for one in dataclasses.fields(output) if one.init]
            changed = self.store({name: getattr(output, name) for name in names}, training)
            replace: Any = dataclasses.replace
            return replace(output, **changed)
        wanted = [
            one
            for one in _pytree.tree_leaves(output)
            if isinstance(one, torch.Tensor) and _is_wanted(one) and one not in _results
        ]
        if not wanted:
            return output
        counts = training or torch.is_grad_enabled()
        step = self.clock.begin(self._index, counts)
        self._occasion = self.clock.occasion(step, counts)
        results: dict[int, torch.Tensor] = {}
        for one in wanted:
            if id(one) not in results:
                results[id(one)] = self._stored(one, step, len(results))
                _results.add(results[id(one)])
        return _pytree.tree_map(lambda one: results.get(id(one), one), output)

    def _stored(self, x: torch.Tensor, step: int, number: int) -> Any:
        if not torch.is_inference_mode_enabled():
            return _Stored.apply(x, self, step, number)
        # Tensors made in inference mode do not count their changes.
        with torch.inference_mode(False), torch.no_grad():
            y = self.cast(x, "activations", step, number)
            return y.clone() if y is x else y


def _is_wanted(tensor: torch.Tensor) -> bool:
    floating = tensor.is_floating_point() and tensor.element_size() > 1
    return floating and tensor.layout == torch.strided and not tensor.is_nested and tensor.dim() > 0


class _Results:
    """Memory that holds results of casts, with the version of each: what is changed in place is no
    result any more. Views share it, and what a checkpoint has kept of a tensor.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[StorageWeakRef, int]] = {}
        self._limit = 256

    def add(self, tensor: torch.Tensor) -> None:
        if len(self._found) >= self._limit:
            kept = {key: one for key, one in self._found.items() if not one[0].expired()}
            self._found, self._limit = kept, max(256, 2 * len(kept))
        reference = StorageWeakRef(tensor.untyped_storage())
        self._found[reference.cdata] = reference, tensor._version

    def __contains__(self, tensor: torch.Tensor) -> bool:
        if tensor.is_inference():
            return False
        found = self._found.get(tensor.untyped_storage()._cdata)
        return found is not None and not found[0].expired() and found[1] == tensor._version


_results = _Results()


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, place: Place, step: int, number: int
    ) -> torch.Tensor:
        ctx.place, ctx.step, ctx.number = place, step, number
        y = place.cast(x, "activations", step, number)
        return y.clone() if y is x else y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.place.cast(grad, "gradient_maps", ctx.step, ctx.number), None, None, None


_WHY = (
    "torch.compile of a model whose outputs torch_cgx.emulate.apply casts; allowed: recipes of "
    "GEMMs, or an uncompiled model"
)


class Hook:
    """A forward hook of a module that can be copied with it. A pickled one does nothing: formats
    belong to the process."""

    def __init__(self, place: Place | None):
        self._place = place
        self._untraced: Any = None

    @property
    def casts(self) -> bool:
        return self._place is not None

    def end(self) -> None:
        """It does nothing from now on, also in copies of its module."""
        self._place = self._untraced = None

    def __reduce__(self) -> Any:
        return Hook, (None,)

    def __deepcopy__(self, memo: object) -> Hook:
        return self

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if self._place is None:
            return None
        if torch.compiler.is_compiling():
            raise NotImplementedError(_WHY)
        if "torch._dynamo" not in sys.modules:  # whose import takes a second
            return self._place.store(output, module.training)
        if self._untraced is None:
            self._untraced = torch.compiler.disable(self._place.store, reason=_WHY)
        return self._untraced(output, module.training)
