"""What autograd keeps, counted by torch's own hooks; values, gradients, and relative errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def saved_by(
    function: Callable[..., Any], *args: Any, **options: Any
) -> tuple[Any, list[torch.Tensor]]:
    """The result of a call, and the tensors that it saved for its backward pass."""
    kept: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        return function(*args, **options), kept


def kept(function: Callable[[], Any], but: Iterable[torch.Tensor] = ()) -> tuple[Any, int]:
    """The result of a call, and the bytes of the storages that it saved, each once, without those
    of the tensors in `but`.
    """
    result, saved = saved_by(function)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    for tensor in but:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return result, sum(storages.values())


def relative(x: torch.Tensor, exact: torch.Tensor) -> float:
    difference = x.detach().double() - exact.detach().double()
    return float(difference.norm() / exact.detach().double().norm())


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x, y)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of the gradients of all parameters, each of which must have one."""
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
    return found
