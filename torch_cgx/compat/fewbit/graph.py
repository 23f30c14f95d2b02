"""What autograd's graph of a tensor holds: its nodes, tensors and bytes, by FewBit's names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_cgx.activations.report.graph import tensors_in


def traverse(var: Tensor, cb: Callable[[Any], object]) -> None:
    """Calls cb once with each node of the graph behind var, from the node of var on."""
    stack: list[Any] = [var.grad_fn]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        cb(node)
        stack += [before for before, _ in reversed(node.next_functions)]


def teniter(
    var: Tensor, include_ordinary: bool = True, include_saved: bool = False
) -> Iterator[Tensor]:
    """The tensors of the graph behind var, each once.

    include_ordinary: the leaves, which get a gradient, such as parameters. include_saved: what
    nodes have saved and not freed; a hook on saved tensors is called for it.
    """
    nodes: list[Any] = []
    traverse(var, nodes.append)
    if var.grad_fn is None and var.requires_grad and include_ordinary:
        yield var
    seen: set[int] = set()
    kept: list[Tensor] = []  # so that no id is used again
    for node in nodes:
        for tensor in _of(node, include_ordinary, include_saved):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                kept.append(tensor)
                yield tensor


def _of(node: Any, ordinary: bool, saved: bool) -> Iterator[Tensor]:
    leaf = getattr(node, "variable", None)
    if isinstance(leaf, Tensor):
        if ordinary:
            yield leaf
        return
    if not saved:
        return
    if hasattr(node, "saved_tensors"):  # of an autograd function in Python
        with contextlib.suppress(RuntimeError):  # freed
            yield from (one for one in node.saved_tensors if one is not None)
        return
    for name in dir(node):
        if name.startswith("_saved_"):
            with contextlib.suppress(RuntimeError):
                yield from tensors_in(getattr(node, name))


def estimate_memory_usage(var: Tensor, saved_only: bool = False) -> int:
    """Bytes of the leaves behind var, or, with saved_only, of what nodes have saved for backward.
    Each storage counts once, and as far as tensors have values in it.

    `activations.memory` counts what a step keeps, by module and kind.
    """
    sizes: dict[tuple[torch.device, int], int] = {}
    for tensor in teniter(var, not saved_only, saved_only):
        for part in tensors_in(tensor):
            storage = part.untyped_storage()
            key = part.device, storage.data_ptr()
            sizes[key] = max(sizes.get(key, 0), min(part.nbytes, storage.nbytes()))
    return sum(sizes.values())


class HookedMemoryUsage:
    """Bytes of tensors that nodes save. forward: when they save them. backward: when they read
    them again. value: forward - backward, what has not been read yet. Parameters, and tensors that
    several nodes save, count each time.
    """

    def __init__(self) -> None:
        self.forward = 0
        self.backward = 0

    @property
    def value(self) -> int:
        return self.forward - self.backward

    def __repr__(self) -> str:
        return f"HookedMemoryUsage(forward={self.forward}, backward={self.backward})"

    def _pack(self, tensor: Tensor) -> Tensor:
        self.forward += tensor.nbytes
        return tensor

    def _unpack(self, tensor: Tensor) -> Tensor:
        self.backward += tensor.nbytes
        return tensor


@contextlib.contextmanager
def memory_usage_hooks() -> Iterator[HookedMemoryUsage]:
    """Counts what nodes save inside, and what they read of that, there or later."""
    usage = HookedMemoryUsage()
    with torch.autograd.graph.saved_tensors_hooks(usage._pack, usage._unpack):
        yield usage


__all__ = [
    "HookedMemoryUsage",
    "estimate_memory_usage",
    "memory_usage_hooks",
    "teniter",
    "traverse",
]
