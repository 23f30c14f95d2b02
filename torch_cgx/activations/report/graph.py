"""The graph that autograd has made: names of nodes, leaves, and tensors inside of what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_cgx.activations._history import COPIES, VIEWS, behind


@dataclasses.dataclass
class Graph:
    """nodes: name and output's shape by number. leaves: which get a gradient. foreign: number of a
    node and what hooks of others have packed for it.
    """

    nodes: dict[int, tuple[str, tuple[int, ...]]]
    leaves: list[torch.Tensor]
    foreign: list[tuple[int, Any]]


def walk(roots: Iterable[torch.Tensor], start: int, ours: type) -> Graph:
    """The graph behind `roots`, as far as its nodes were made from number `start` on.

    ours: the type of what our own hooks pack.
    """
    graph = Graph({}, [], [])
    names: dict[type, list[str]] = {}
    stack = [root.grad_fn for root in roots]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            graph.leaves.append(leaf)
            continue
        number = node._sequence_nr()
        if number < start:
            continue
        output = [one.shape for one in getattr(node, "_input_metadata", ())]
        graph.nodes[number] = (node.name(), tuple(output[0]) if output else ())
        if type(node) not in names:
            names[type(node)] = [name for name in dir(node) if name.startswith("_raw_saved_")]
        for name in names[type(node)]:
            raw = getattr(node, name)
            for one in raw if isinstance(raw, (tuple, list)) else (raw,):
                packed = getattr(one, "data", None)
                if packed is not None and not isinstance(packed, (torch.Tensor, ours)):
                    graph.foreign.append((number, packed))
        stack += [next_node for next_node, _ in node.next_functions]
    return graph


def tensors_in(value: Any, depth: int = 4) -> list[torch.Tensor]:
    """The tensors with a storage in containers, dataclasses and attributes of objects; of sparse
    tensors and subclasses that wrap tensors, those that hold their values.
    """
    if isinstance(value, torch.Tensor):
        return _parts(value)
    if depth == 0 or value is None or isinstance(value, (str, bytes, int, float, type)):
        return []
    if isinstance(value, Mapping):
        inside: Iterable[Any] = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = value
    elif callable(value) or isinstance(value, torch.nn.Module):
        return []
    else:
        slots = [s for cls in type(value).__mro__ for s in _slots(cls)]
        inside = [getattr(value, s, None) for s in slots]
        inside += list(getattr(value, "__dict__", {}).values())
    return [tensor for one in inside for tensor in tensors_in(one, depth - 1)]


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    plain = tensor.detach()
    if plain.layout == torch.strided:
        return [plain]
    if plain.layout == torch.sparse_coo:
        return [plain._indices(), plain._values()]
    if plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [plain.crow_indices(), plain.col_indices(), plain.values()]
    if plain.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [plain.ccol_indices(), plain.row_indices(), plain.values()]
    return []  # of an accelerator's own layout, which has no storage


def producer_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The node that made the tensor, views skipped; and, where that copies a leaf, the leaf's."""
    node = behind(tensor.grad_fn, VIEWS)
    if node is not None and node.name() in COPIES:
        return node, behind(node, VIEWS | COPIES)
    return node, None
