"""`catch_gradients`: the identity, which keeps the gradient that comes back through it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class GradientStorage:
    """gradient: of the latest backward pass through `catch_gradients`, detached; None before it
    and after clear().
    """

    def __init__(self) -> None:
        self.gradient: Tensor | None = None

    def clear(self) -> None:
        self.gradient = None

    def __repr__(self) -> str:
        found = "None" if self.gradient is None else f"{tuple(self.gradient.shape)}"
        return f"GradientStorage(gradient={found})"


class _Caught(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, storage: GradientStorage) -> Tensor:  # type: ignore[override]
        ctx.storage = storage
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.storage.gradient = grad.detach()
        return grad, None


def catch_gradients(x: Tensor, storage: GradientStorage) -> Tensor:
    """x, of any shape and dtype that has gradients, as a view. In backward the storage gets the
    gradient of the result, which goes on to x unchanged. TypeError: another storage.
    """
    if not isinstance(storage, GradientStorage):
        raise TypeError(f"storage is a {type(storage).__name__}; allowed: GradientStorage")
    found: Tensor = _Caught.apply(x, storage)
    return found


__all__ = ["GradientStorage", "catch_gradients"]
