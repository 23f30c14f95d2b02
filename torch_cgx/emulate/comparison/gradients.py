"""Gradients of micro-batches, summed as a recipe says, over the nodes of a process and over ranks.

process:  node 0 .. node K-1  ->  sum in float32, or in the recipe's format  ->  / K
ranks:    mean over ranks by `torch_cgx.all_reduce`, exact, or by the codec `float`  (ranks.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from torch_cgx._format_sums import FormatSum

Exchange = Callable[[Sequence[torch.Tensor], float], float]
"""Replaces gradients by their means over the ranks; (gradients, loss) -> the mean loss."""


class Gradients:
    """The gradients of a step. nodes: whose gradients are summed here. sums: how; None: in float32.
    exchange: over ranks; None: there is one. Not thread-safe.
    """

    def __init__(
        self, model: nn.Module, nodes: int, sums: FormatSum | None, exchange: Exchange | None
    ):
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._nodes, self._sums, self._exchange = nodes, sums, exchange
        self._kept: list[list[torch.Tensor]] = [[] for _ in self._named]
        self._loss = 0.0

    def add(self, loss: torch.Tensor) -> None:
        """Takes what `backward` has left in the parameters. TypeError: a gradient cannot be
        summed in a format or over ranks.
        """
        self._loss += float(loss.detach())
        for (name, parameter), kept in zip(self._named, self._kept, strict=True):
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                continue
            self._check(name, gradient)
            if kept and self._sums is None:
                kept[0] = kept[0] + gradient
            else:
                kept.append(gradient)

    def _check(self, name: str, gradient: torch.Tensor) -> None:
        if self._sums is None and self._exchange is None:
            return
        if gradient.layout != torch.strided or gradient.is_complex():
            kind = "complex" if gradient.is_complex() else str(gradient.layout)
            raise TypeError(f"the gradient of {name} is {kind}; allowed: dense real gradients")

    def finish(self, step: int) -> float:
        """Leaves the means in the parameters, and returns that of the losses."""
        means = []
        for number, ((_, parameter), kept) in enumerate(zip(self._named, self._kept, strict=True)):
            if not kept:
                continue
            mean = kept[0]
            if self._sums is not None:
                # Steps key random numbers: each tensor draws its own.
                total = self._sums.run(kept, step * len(self._named) + number)
                mean = total.to(parameter.dtype)
            parameter.grad = mean / self._nodes if self._nodes > 1 else mean
            means.append(parameter.grad)
            kept.clear()
        loss, self._loss = self._loss / self._nodes, 0.0
        return loss if self._exchange is None else self._exchange(means, loss)
