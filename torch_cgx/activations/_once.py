"""Gradients that can be computed once: differentiating them again is an error by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        name: str, gradient: torch.Tensor, *depends_on: torch.Tensor
    ) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.name = inputs[0]
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[torch.Tensor, Any]:
        return _Once.apply(*inputs), in_dims[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{ctx.name} cannot be differentiated twice: its backward keeps too little for a "
            "second derivative. Use torch.nn's own for the modules that need one."
        )


def once(
    name: str,
    depends_on: Sequence[torch.Tensor | None],
    gradients: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a backward pass. With create_graph=True each gets a node that raises
    RuntimeError when it is differentiated, not when it is made. depends_on: the tensors from which
    the gradients were computed. torch.compile refuses second derivatives by itself."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return gradients
    tensors = [tensor for tensor in depends_on if tensor is not None]
    return tuple(
        None if gradient is None else _Once.apply(name, gradient, *tensors)
        for gradient in gradients
    )
