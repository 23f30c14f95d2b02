"""The autograd function of all few-bit activation functions: forward is torch's own, and backward
multiplies the gradient by a level of a table for the derivative (csrc/codec/levels).

Kept for backward: the codes, ceil(bits * n / 8) bytes. A NaN among the values makes NaN of its own
gradient: on the CPU a bit for each value is kept then, too. On a GPU and under torch.compile, where
the size of what is kept must not depend on values, one byte is kept, and any NaN makes NaN of the
whole gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_cgx.activations import _operators
from torch_cgx.activations._once import once
from torch_cgx.activations.tables.table import Table

_ops = torch.ops.torch_cgx


@dataclass(frozen=True, slots=True)
class Pieces:
    """A table as the operators take it. levels: by code."""

    borders: tuple[float, ...]
    levels: tuple[float, ...]
    magnitude: bool


def pieces_of(table: Table) -> Pieces:
    """Levels that take turns are kept once: hardtanh's derivative, (0, 1, 0), needs one bit."""
    levels = table.levels
    for turns in (2, 4, 8):
        if turns < len(levels) and all(
            level == levels[i % turns] for i, level in enumerate(levels)
        ):
            return Pieces(table.borders, levels[:turns], table.parity)
    return Pieces(table.borders, levels, table.parity)


def _in_memory_order(x: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which x is contiguous, where that is not its own; None: there is
    none, or it is its own.
    """
    if x.is_contiguous():
        return None
    order = x.dim_order()
    return order if x.permute(order).is_contiguous() else None


def _inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _anchor_of(x: torch.Tensor) -> torch.Tensor | None:
    """An empty tensor whose history is x: it keeps no memory, but the way to x."""
    if torch.compiler.is_compiling():  # which has no second derivatives, and says so
        return None
    return x.expand(0, *x.shape).clone()


class _FewBit(torch.autograd.Function):
    """Returns y, the codes, and whether a value is NaN where the codes don't say it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        x: torch.Tensor,
        function: Callable[..., torch.Tensor],
        arguments: tuple[Any, ...],
        pieces: Pieces,
        inplace: bool,
        anchor: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        order = _in_memory_order(x)
        values = x if order is None else x.permute(order)
        fixed = torch.compiler.is_compiling() or x.device.type != "cpu"
        codes = _ops.level_encode(
            values,
            pieces.borders,
            len(pieces.levels),
            magnitude=pieces.magnitude,
            mark_nans=not fixed,
        )
        nan = torch.isnan(x).any() if fixed else None
        return function(x, *arguments), codes, nan

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        x, _, _, pieces, inplace, anchor = inputs
        y, codes, nan = output
        if inplace:
            ctx.mark_dirty(x)
        ctx.mark_non_differentiable(codes, *([] if nan is None else [nan]))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(codes, nan, anchor)
        ctx.levels, ctx.order = pieces.levels, _in_memory_order(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        if grad is None:
            return (None,) * 6
        codes, nan, anchor = ctx.saved_tensors
        if ctx.order is not None:
            grad = grad.permute(ctx.order)
        result = _ops.level_multiply(grad, codes, ctx.levels)
        if ctx.order is not None:
            result = result.permute(_inverse(ctx.order))
        if nan is not None:
            result = torch.where(nan, math.nan, result)
        (result,) = once("a few-bit function", (grad, anchor), (result,))
        return result, None, None, None, None, None


def apply(
    function: Callable[..., torch.Tensor],
    x: torch.Tensor,
    arguments: tuple[Any, ...],
    table: Table,
    inplace: bool = False,
) -> torch.Tensor:
    """function(x, *arguments), with a derivative by `table`. inplace: the function writes to x, as
    the last of the arguments says.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return function(x, *arguments)
    if inplace and torch.compiler.is_compiling():  # which does not trace functions that write
        return x.copy_(apply(function, x, (*arguments[:-1], False), table))
    given = (x, function, arguments, pieces_of(table), inplace, _anchor_of(x))
    y: torch.Tensor = _FewBit.apply(*given)[0]
    return y


def check_input(name: str, x: Any) -> None:
    """TypeError unless x is a floating tensor that tables take."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: input is a {type(x).__name__}, allowed: a tensor")
    if x.dtype not in _operators.FLOATING:
        raise TypeError(f"{name}: input is {x.dtype}, allowed: float32, float64, float16, bfloat16")


def check_table(name: str, bits: Any, table: Any, default: int = 3) -> None:
    """Errors unless bits and table say one table. bits: `default` beside a table says nothing."""
    if isinstance(bits, bool) or not isinstance(bits, int):
        raise TypeError(f"{name}: bits={bits!r}; allowed: integers from 1 to 4")
    if not 1 <= bits <= 4:
        raise ValueError(f"{name}: bits={bits}; allowed: 1 to 4")
    if table is None:
        return
    if not isinstance(table, Table):
        raise TypeError(
            f"{name}: table is a {type(table).__name__}; allowed: torch_cgx.activations.Table, None"
        )
    if bits not in (default, table.bits):
        raise ValueError(f"{name}: bits={bits} with a table of {table.bits} bits; allowed: one")
