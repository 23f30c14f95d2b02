"""What autograd keeps, counted by torch's own hooks, and relative errors in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def kept(function: Callable[[], Any], but: Iterable[torch.Tensor] = ()) -> tuple[Any, int]:
    """The result of a call, and the bytes of the storages that it saved, each once, without those
    of the tensors in `but`."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    for tensor in but:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return result, sum(storages.values())


def relative(x: torch.Tensor, exact: torch.Tensor) -> float:
    difference = x.detach().double() - exact.detach().double()
    return float(difference.norm() / exact.detach().double().norm())


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x, y)
