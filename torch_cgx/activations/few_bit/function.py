"""The autograd function of all few-bit activation functions: forward is torch's own, and backward
multiplies the gradient by a level of a table for the derivative (csrc/codec/levels).

Kept for backward: the codes, ceil(bits * n / 8) bytes. A NaN among the values makes NaN of its own
gradient: on the CPU a bit for each value is kept then, too. On a GPU, under torch.compile and under
torch.func's transforms, where the size of what is kept must not depend on values, one byte is kept,
and any NaN makes NaN of the whole gradient.
"""

from __future__ import annotations

import functools
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


_known_pieces_of = functools.lru_cache(256)(pieces_of)


def in_memory_order(x: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which x is contiguous, where that is not its own; None: there is
    none, or it is its own.
    """
    if x.is_contiguous():
        return None
    order = x.dim_order()
    return order if x.permute(order).is_contiguous() else None


def inverse(order: tuple[int, ...]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _anchor_of(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor whose history is x: it keeps no memory, but the way to x."""
    return x.expand(0, *x.shape).clone()


@dataclass(frozen=True, slots=True)
class _Call:
    """function(x, *arguments) is the value; order: of the codes, by in_memory_order."""

    function: Callable[..., torch.Tensor]
    arguments: tuple[Any, ...]
    levels: tuple[float, ...]
    order: tuple[int, ...] | None
    inplace: bool


def _keep(
    ctx: Any,
    x: torch.Tensor,
    codes: torch.Tensor,
    nan: torch.Tensor | None,
    anchor: torch.Tensor | None,
    call: _Call,
) -> None:
    if call.inplace:
        ctx.mark_dirty(x)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(codes, nan, anchor)
    ctx.call = call


class _FewBit(torch.autograd.Function):
    """nan: whether a value is NaN, where the codes don't say which."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *kept: Any) -> torch.Tensor:  # type: ignore[override]
        call = kept[-1]
        _keep(ctx, x, *kept)
        y: torch.Tensor = call.function(x, *call.arguments)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        if grad is None:
            return (None,) * 5
        codes, nan, anchor = ctx.saved_tensors
        order = ctx.call.order
        if order is not None:
            grad = grad.permute(order)
        result = _ops.level_multiply(grad, codes, ctx.call.levels)
        if order is not None:
            result = result.permute(inverse(order))
        if nan is not None:
            result = torch.where(nan, math.nan, result)
        (result,) = once("a few-bit function", (grad, anchor), (result,))
        return result, None, None, None, None


class _Transformed(torch.autograd.Function):
    """The same for torch.func, in the form that it asks for, which takes longer to call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, *kept: Any) -> torch.Tensor:  # type: ignore[override]
        y: torch.Tensor = kept[-1].function(x, *kept[-1].arguments)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _keep(ctx, *inputs)

    backward = _FewBit.backward


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
    compiling = torch.compiler.is_compiling()
    transformed = not compiling and torch._C._are_functorch_transforms_active()
    if inplace and (compiling or transformed):  # which take no function that writes
        return x.copy_(apply(function, x, (*arguments[:-1], False), table))
    pieces = pieces_of(table) if compiling else _known_pieces_of(table)
    values = x.detach()
    order = in_memory_order(values)
    fixed = compiling or transformed or x.device.type != "cpu"
    codes = _ops.level_encode(
        values if order is None else values.permute(order),
        pieces.borders,
        len(pieces.levels),
        magnitude=pieces.magnitude,
        mark_nans=not fixed,
    )
    nan = torch.isnan(values).any() if fixed else None
    # Second derivatives are refused by the anchor's history; torch.compile refuses them itself.
    anchor = None if compiling else _anchor_of(x)
    call = _Call(function, arguments, pieces.levels, order, inplace)
    form = _Transformed if transformed else _FewBit
    y: torch.Tensor = form.apply(x, codes, nan, anchor, call)
    return y


def check_input(name: str, x: Any) -> None:
    """TypeError unless x is a floating tensor that tables take."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: input is a {type(x).__name__}, allowed: a tensor")
    if x.dtype not in _operators.FLOATING:
        raise TypeError(f"{name}: input is {x.dtype}, allowed: float32, float64, float16, bfloat16")
    if x.layout != torch.strided:
        raise TypeError(f"{name}: input has the layout {x.layout}, allowed: torch.strided")


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
