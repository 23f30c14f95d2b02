"""The gradient of a model's loss for one batch, again and again, and the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from torch_cgx._unchanged import Unchanged

Loss = Callable[[Any], torch.Tensor]


class Gradient:
    """What blame, choose and fit compare: float64 norms of the whole gradient. names: of the
    parameters that have one. ValueError: the loss is not one value that requires a gradient, or the
    gradient is not finite or zero.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is of type {type(model).__name__}; allowed: a torch.nn.Module")
        if loss is not None and not callable(loss):
            raise TypeError(
                f"loss is of type {type(loss).__name__}; allowed: a function of the model's "
                "output, None"
            )
        self._model, self._loss = model, loss
        self._args, self._kwargs = arguments_of(batch)
        given = _pytree.tree_leaves((self._args, self._kwargs))
        self._tensors = [one for one in given if isinstance(one, torch.Tensor)]
        self._random = torch.get_rng_state()
        self.exact = self._compute()
        self._norm = _norm(self.exact.values())
        if not 0 < self._norm < float("inf"):
            raise ValueError(
                f"the exact gradient has the norm {self._norm}; allowed: finite ones above 0"
            )

    @property
    def names(self) -> list[str]:
        return list(self.exact)

    def _compute(self) -> dict[str, torch.Tensor]:
        named = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        with Unchanged(self._model, self._tensors), torch.enable_grad():
            torch.set_rng_state(self._random)
            value = _value(self._model(*self._args, **self._kwargs), self._loss)
            found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        pairs = zip(named, found, strict=True)
        return {name: grad.detach() for name, grad in pairs if grad is not None}

    def now(self) -> dict[str, torch.Tensor]:
        """The gradient as the model is now."""
        found = self._compute()
        return {name: found[name] for name in self.exact}

    def error(self) -> float:
        """Of the gradient as the model is now: relative L2, infinite if a value is not finite."""
        return self.relative(self.now())

    def relative(self, now: Mapping[str, torch.Tensor]) -> float:
        """Of a gradient, in which parameters without an entry are exact."""
        error = _norm(now[name].double() - self.exact[name].double() for name in now)
        return error / self._norm if error == error else float("inf")


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model's arguments and its named ones. TypeError: neither a tensor, a tuple nor a dict."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    raise TypeError(
        f"batch is of type {type(batch).__name__}; allowed: a tensor, a tuple of the model's "
        "arguments, a dict of its named ones"
    )


def _value(output: Any, loss: Loss | None) -> torch.Tensor:
    value: Any
    if loss is not None:
        value = loss(output)
    else:
        value = output.get("loss") if isinstance(output, Mapping) else None
        value = getattr(output, "loss", None) if value is None else value
        if value is None:
            value = _weighted(output)
    if isinstance(value, torch.Tensor) and not value.requires_grad:
        raise ValueError(
            "the loss requires no gradient; allowed: a model with parameters that require one, "
            "outside of torch.inference_mode()"
        )
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = type(value).__name__ if not isinstance(value, torch.Tensor) else tuple(value.shape)
        raise ValueError(f"the loss is {what}; allowed: a tensor of one value")
    return value.sum()


def _weighted(output: Any) -> torch.Tensor:
    """A sum of outputs with fixed random weights: no normalisation makes its gradient zero."""
    leaves = [one for one in _pytree.tree_leaves(output) if isinstance(one, torch.Tensor)]
    wanted = [one for one in leaves if one.requires_grad and one.is_floating_point()]
    if len(wanted) == 1 and wanted[0].numel() == 1:
        return wanted[0]
    if not wanted:
        raise ValueError("the model's output requires no gradient; allowed: one that does")
    total = wanted[0].new_zeros(())
    generator = torch.Generator("cpu").manual_seed(0)
    for one in wanted:
        weights = torch.randn(one.shape, generator=generator, dtype=torch.float32, device="cpu").to(
            one
        )
        total = total + (one * weights).sum() / one.numel() ** 0.5
    return total


def _norm(tensors: Any) -> float:
    squares = [float(one.double().square().sum()) for one in tensors]
    return sum(squares) ** 0.5
