"""The hooks of `compress_saved`: what they make of the tensors that nodes save."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_cgx.activations._history import next_node
from torch_cgx.activations._rank import rank_of_process
from torch_cgx.activations._samples import are_saved
from torch_cgx.activations._weights import has_storage, is_cast_of, is_weight
from torch_cgx.activations.saved import integers, masks
from torch_cgx.activations.saved.codings import Coding
from torch_cgx.activations.saved.ledger import Ledger
from torch_cgx.activations.saved.modules import Names, is_running, running
from torch_cgx.activations.saved.rules import Rules
from torch_cgx.activations.saved.sources import Decode, Handle, Kept, Packed, Part, Source
from torch_cgx.activations.saved.views import Region, region_of

_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_ROW = 16  # values of the shortest rows that have a statistic each


def unpack(packed: Packed) -> torch.Tensor:
    found: torch.Tensor = packed.unpack()
    return found


class Entry:
    """Packs what nodes save during one entry of a context. step keys stochastic rounding.
    names_of(root) returns the names of a model's modules, model() the model that was given to
    `compress_saved`, or None. frame: see `compress_saved.only_in`.
    """

    def __init__(
        self,
        rules: Rules,
        ledger: Ledger,
        step: int,
        names_of: Callable[[nn.Module], Names],
        model: Callable[[], nn.Module | None],
        measure: bool,
    ):
        self._rules, self._ledger, self._step = rules, ledger, step
        self._names_of, self._model, self._measure = names_of, model, measure
        self._lock = threading.RLock()  # several threads may settle what one has saved
        self._rank = rank_of_process() if rules.stochastic else 0
        self._number = 0
        self._of_module: dict[str, int] = {}  # floating tensors that each module has saved
        self.frame: FrameType | None = None
        self._sources: weakref.WeakValueDictionary[tuple[Any, ...], Source]
        self._sources = weakref.WeakValueDictionary()
        self._later: list[tuple[int, Part]] = []  # with next_node() when they were saved
        self._largest = 0  # values of a tensor so far
        # Of each model that runs in it.
        self._weights: dict[nn.Module, set[int]] = {}
        self._frozen: dict[nn.Module, dict[torch.Size, list[torch.Tensor]]] = {}

    def pack(self, tensor: torch.Tensor) -> Packed:
        rules = self._rules
        self.settle(next_node())
        if self.frame is not None and not is_running(self.frame):
            return Kept(tensor)
        by_name = rules.by_name
        stack, compiled = running() if by_name else ([], False)
        if rules.overrides and (root := self._root(stack)) is not None:
            # `check_names` sees the names of a model also if nothing of it is compressed.
            self._names_of(root)
        if (
            tensor.is_meta
            or tensor.numel() < rules.min_size
            or not has_storage(tensor)
            or tensor.layout != torch.strided
            or tensor.is_neg()
            or is_weight(tensor)
        ):
            return Kept(tensor)
        floating = tensor.dtype in _FLOATING
        if not floating and not integers.worth(tensor):
            return Kept(tensor)
        if not by_name and (not tensor.requires_grad or self._measure):
            stack, _ = running()
        if compiled and by_name:
            raise RuntimeError(
                "compress_saved: a compiled function saves tensors of several modules at once, so "
                "overrides and filter, which go by the module's name, do not apply to it; leave "
                "them out, or call the model without torch.compile"
            )
        if self._is_statistic(tensor):
            return Kept(tensor)
        root = self._root(stack)
        if not tensor.requires_grad and root is not None and self._is_held(tensor, root):
            return Kept(tensor)
        region = region_of(tensor)
        if region is None or region.numel < rules.min_size:
            return Kept(tensor)
        name = "" if root is None else self._names_of(root).of(stack)
        if rules.filter is not None and not rules.filter(name, tensor):
            return Kept(tensor)
        coding = rules.coding_for(name) if floating else rules.coding
        if coding is None:
            return Kept(tensor)
        with self._lock:
            return self._packed(tensor, region, coding, name)

    def _is_statistic(self, tensor: torch.Tensor) -> bool:
        """Whether it is a number a row of what a node computes with, as the scale of a norm or the
        sum of a softmax: rounded to few bits, it would change whole rows.
        """
        self._largest = max(self._largest, tensor.numel())
        if not tensor.is_floating_point() or tensor.numel() * _ROW > self._largest:
            return False
        alone = tensor.grad_fn is None and not tensor.requires_grad and not are_saved()
        return alone or tensor.shape[-1:] == (1,)

    def _root(self, stack: list[nn.Module]) -> nn.Module | None:
        model = self._model()
        if model is not None and (not stack or self._names_of(model).any_of(stack)):
            return model
        return stack[0] if stack else None

    def _is_held(self, tensor: torch.Tensor, root: nn.Module) -> bool:
        """Whether it is memory of the model: a buffer, a frozen parameter, or a cast of one."""
        names = self._names_of(root)
        if root not in self._weights:
            self._weights[root] = names.storages()
        if tensor.untyped_storage()._cdata in self._weights[root]:
            return True
        if root not in self._frozen:
            self._frozen[root] = names.frozen()
        return is_cast_of(tensor, self._frozen[root])

    def _packed(self, tensor: torch.Tensor, region: Region, coding: Coding, name: str) -> Packed:
        key = (
            tensor.untyped_storage()._cdata,
            tensor.dtype,
            tensor._version,
            coding.name,
        )
        source = self._sources.get(key)
        if source is None or not source.holds(tensor):
            source = Source(tensor)
        part = source.part_for(region)
        if part is None:
            values = tensor.detach().as_strided(region.sizes, region.strides, region.offset)
            self._number += 1
            label = self._label(name, values)
            fill = functools.partial(
                self._fill, values, coding, name, label, self._number, tensor.shape
            )
            part = Part(region, fill)
            if tensor.grad_fn is None and not tensor.requires_grad:
                # Some nodes save what they have yet to write, as the noise of rrelu.
                self._later.append((next_node(), part))
            elif not part.settle():
                return Kept(tensor)
            source.parts.append(part)
            self._sources[key] = source
        return Handle(source, part, tensor)

    def _label(self, name: str, values: torch.Tensor) -> str:
        """NAME, and NAME#2 for the second floating tensor that the module saves."""
        if not self._measure or not values.is_floating_point():
            return name
        number = self._of_module[name] = self._of_module.get(name, 0) + 1
        return name if number == 1 else f"{name}#{number}"

    def settle(self, node: int | None) -> None:
        """Encodes what was saved while next_node() was another number than `node`; None: all."""
        if not self._later:
            return
        with self._lock:
            ready = [part for number, part in self._later if number != node]
            self._later = [one for one in self._later if one[0] == node]
            for part in ready:
                part.settle()

    def _fill(
        self,
        values: torch.Tensor,
        coding: Coding,
        name: str,
        label: str,
        number: int,
        shape: torch.Size,
    ) -> tuple[Decode, torch.Tensor | None] | None:
        """What decodes the values, and their payload; None where that would not be shorter."""
        numel, dtype, device = values.numel(), values.dtype, values.device
        ledger = self._ledger
        if not dtype.is_floating_point:
            packed = integers.pack(values)
            if packed is None:
                return None
            nbytes = 0 if packed.codes is None else packed.codes.nbytes
            ledger.add(numel * values.itemsize, nbytes)
            return (lambda: integers.unpack(packed, numel, dtype, device)), packed.codes
        two = masks.pack(values)
        if two is not None:
            ledger.add(numel * values.itemsize, two.codes.nbytes)
            if self._measure:
                ledger.measure(label, values, None)
            return (lambda: masks.unpack(two, numel, dtype)), two.codes
        if dtype not in coding.dtypes:
            allowed = ", ".join(str(one).removeprefix("torch.") for one in coding.dtypes)
            raise TypeError(
                f"compress_saved: module {name or '(root)'!r} saves a tensor of {dtype} of shape "
                f"{list(shape)}; {coding.name} takes {allowed}; choose another codec, such "
                'as "bounded", or leave the tensor out by filter'
            )
        payload = coding.encode(values, self._step, number, self._rank)
        if payload.nbytes >= numel * values.itemsize:  # 16 bits as "half" would win nothing
            if self._measure:
                ledger.measure(label, values, None)
            return None

        def decode() -> torch.Tensor:
            return coding.decode(payload, numel, dtype, device)

        ledger.add(numel * values.itemsize, payload.nbytes)
        if self._measure:
            ledger.measure(label, values, decode().view(values.shape))
        return decode, payload
