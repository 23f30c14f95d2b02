"""What autograd keeps for backward while a model runs: who saved it, and in which storage.

Hooks on saved tensors see a tensor but not the node that saves it, only the node's number (see
next_node); a walk over the graph gives the names of numbers afterwards. Nothing is unpacked for
that, so that checkpointed regions are not computed again.

What hooks of others pack (of `compress_saved`, `save_on_cpu` or a checkpoint inside the model, or
around the call) is counted as they hold it.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional
import torch.utils.checkpoint
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from torch_cgx.activations._history import next_node
from torch_cgx.activations._weights import frozen_of, is_cast_of
from torch_cgx.activations.report.graph import Graph, producer_of, tensors_in, walk

LOSS = "(loss)"  # the module of what is saved outside of the model

_RUNS = str(Path(__file__).with_name("memory.py"))  # whose frame calls the model


@dataclasses.dataclass(eq=False)
class Save:
    """One tensor that one node keeps. call: number of the module's call. extent: offset and number
    of elements in its storage. producer: number of the node that made the tensor, views skipped.
    made_by: its name. shape: of the node's output. node: its name, "" where it is unknown.
    """

    sequence: int
    module: str
    cls: str
    call: int
    dtype: torch.dtype
    numel: int
    extent: tuple[int, int]
    size: tuple[int, ...]
    requires_grad: bool
    boundary: bool = False
    function: str = ""  # of torch.nn.functional, where one was called
    cast: bool = False
    plain: bool = True  # kept as it is, not packed by hooks of others
    producer: int | None = None
    made_by: str = ""
    node: str = ""
    shape: tuple[int, ...] = ()
    kind: str = ""
    storage: int = 0  # identity


@dataclasses.dataclass(frozen=True)
class Stored:
    """A storage that is kept, and the saves that share it, the first one first."""

    nbytes: int
    numel: int
    dtype: torch.dtype
    device: torch.device
    saves: tuple[Save, ...]

    @property
    def kind(self) -> str:
        return self.saves[0].kind


class _Handle:
    """Stands in a node for what the node keeps; dies with it."""

    __slots__ = ("__weakref__", "owner", "packed", "save", "storages")

    def __init__(self, packed: Any, save: Save, owner: Saves) -> None:
        self.packed, self.save, self.owner = packed, save, owner
        self.storages = [t.untyped_storage() for t in tensors_in(packed)]
        owner.born(self.storages)

    def __del__(self) -> None:
        self.owner.died(self.storages)


class Saves:
    """Records a forward pass of `model`. peak: the largest number of bytes that lived at once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._thread = threading.get_ident()
        self.own = _storages_of(model)
        self.frozen = frozen_of(model.parameters())
        self.parameters = {id(p) for p in model.parameters()}
        self.start = next_node()
        self.peak = 0
        self._live: dict[int, list[int]] = {}
        self._bytes = 0
        self._handles: list[weakref.ref[_Handle]] = []
        self._calls = 0
        self._stack: list[tuple[str, str, int]] = [(LOSS, "", 0)]
        self._moments: list[tuple[int, tuple[str, str, int]]] = [(self.start, self._stack[0])]

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, what this thread saves is recorded. No hook is left, whatever happens."""
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
        pack, unpack = outer if outer is not None else (None, lambda packed: packed)
        removable = []
        warned = warnings.catch_warnings()
        warned.__enter__()
        try:
            # Modules that torch.compile has made are entered twice, which does no harm here.
            warnings.filterwarnings("ignore", message="Using `torch.compile")
            # Hooks of all modules: one that has hooks of its own may take another path.
            enter, leave = self._hooks()
            removable.append(register_module_forward_pre_hook(enter))
            removable.append(register_module_forward_hook(leave, always_call=True))
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(tensor, pack), lambda handle: unpack(handle.packed)
            ):
                yield
        finally:
            warned.__exit__(None, None, None)
            for one in removable:
                one.remove()

    def _hooks(self) -> tuple[Any, Any]:
        def is_ours(module: torch.nn.Module) -> bool:
            return module in self._names and threading.get_ident() == self._thread

        def enter(module: torch.nn.Module, _: Any) -> None:
            if not torch.compiler.is_compiling() and is_ours(module):
                self._calls += 1
                self._stack.append((self._names[module], type(module).__name__, self._calls))
                self._mark()

        def leave(module: torch.nn.Module, *_: Any) -> None:
            if not torch.compiler.is_compiling() and is_ours(module):
                self._stack.pop()
                self._mark()

        return enter, leave

    def _mark(self) -> None:
        number = next_node()
        self._moments.append((number, self._stack[-1]))

    def _pack(self, tensor: torch.Tensor, pack: Any) -> _Handle:
        number = next_node() - 1
        save = _save_of(tensor, number, self._stack[-1])
        save.boundary, save.function = _callers()
        producer, copied = producer_of(tensor)
        if producer is not None:
            save.producer, save.made_by = producer._sequence_nr(), producer.name()
        origin = copied if copied is not None else producer
        leaf = getattr(origin, "variable", None)
        save.cast = leaf is not None and id(leaf) in self.parameters
        # A frozen parameter's cast has no graph.
        alone = not (tensor.requires_grad or tensor.is_meta) and tensor.is_floating_point()
        save.cast = save.cast or (alone and is_cast_of(tensor, self.frozen))
        save.plain = pack is None
        # Detached: a node that kept its own output with its grad_fn would never die.
        packed = tensor.detach() if pack is None else pack(tensor)
        handle = _Handle(packed, save, self)
        self._handles.append(weakref.ref(handle))
        return handle

    def born(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            if storage._cdata not in self.own:
                entry = self._live.setdefault(storage._cdata, [0, storage.nbytes()])
                self._bytes += entry[1] if entry[0] == 0 else 0
                entry[0] += 1
        self.peak = max(self.peak, self._bytes)

    def died(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            entry = self._live.get(storage._cdata)
            if entry is not None:
                entry[0] -= 1
                if entry[0] == 0:
                    self._bytes -= self._live.pop(storage._cdata)[1]

    def graph(self, roots: Iterable[torch.Tensor]) -> Graph:
        """Behind `roots`, as far as this pass has made it."""
        return walk(roots, self.start, _Handle)

    def stored(self, graph: Graph) -> list[Stored]:
        """What lives now, in the order in which it was first saved. Storages of the model's
        parameters and buffers are left out.
        """
        own = self.own | _storages_of(self.model)
        found: dict[int, tuple[torch.UntypedStorage, torch.Tensor, list[Save]]] = {}
        pairs = [(h.packed, h.save) for h in (ref() for ref in self._handles) if h is not None]
        for number, packed in graph.foreign:
            place = bisect.bisect_right(self._moments, number, key=lambda one: one[0]) - 1
            for tensor in tensors_in(packed):
                save = _save_of(tensor, number, self._moments[place][1])
                save.plain = False
                pairs.append((tensor, save))
        for packed, save in pairs:
            save.node, save.shape = graph.nodes.get(save.sequence, ("", ()))
            for tensor in tensors_in(packed):
                storage = tensor.untyped_storage()
                if storage._cdata not in own and storage.nbytes():
                    save.storage = storage._cdata
                    found.setdefault(storage._cdata, (storage, tensor, []))[2].append(save)
        return [
            Stored(
                storage.nbytes(),
                storage.nbytes() // tensor.element_size(),
                tensor.dtype,
                tensor.device,
                tuple(saves),
            )
            for storage, tensor, saves in found.values()
        ]


def _storages_of(model: torch.nn.Module) -> set[int]:
    """Identities of the storages of parameters and buffers: they live as long as the model."""
    every = [*model.parameters(), *model.buffers()]
    return {part.untyped_storage()._cdata for tensor in every for part in tensors_in(tensor)}


def _save_of(tensor: torch.Tensor, number: int, place: tuple[str, str, int]) -> Save:
    offset = tensor.storage_offset() if tensor.layout == torch.strided else 0
    return Save(
        number,
        *place,
        tensor.dtype,
        tensor.numel(),
        (int(offset), tensor.numel()),
        tuple(tensor.shape),
        tensor.requires_grad,
    )


def _callers() -> tuple[bool, str]:
    """Whether a checkpoint saves; and the function of torch.nn.functional that does, or ""."""
    frame, boundary, function = sys._getframe(2), False, ""
    while frame is not None and frame.f_code.co_filename != _RUNS:
        code = frame.f_code
        boundary = boundary or code.co_filename == torch.utils.checkpoint.__file__
        if not function and code.co_filename == torch.nn.functional.__file__:
            function = code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return boundary, function
