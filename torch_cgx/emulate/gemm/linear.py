"""y = x weight^T + bias with operands in formats, and both GEMMs of its backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from torch_cgx.emulate.gemm.operand import rotate
from torch_cgx.emulate.gemm.rounding import (
    Call,
    Cast,
    Facts,
    caster,
    facts_of,
    hadamard_matrix,
    product,
)


def multiply(number: int, facts: Facts, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b, with the layer's accumulation; in float32 or float64, of a's dtype."""
    if facts.fp32:
        return torch.matmul(a, b)
    return product(number, a.float(), b.float()).to(a.dtype)


def widened(x: torch.Tensor) -> torch.Tensor:
    """float32 of 16-bit types, so that all numbers of formats are exact."""
    return x.float() if x.element_size() < 4 else x


def wgrad_operands(
    number: int,
    facts: Facts,
    cast: Cast,
    grad: torch.Tensor,
    x: torch.Tensor,
    cast_grad: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient and the input of wgrad, whose contraction begins with dimension 0. x: the saved
    input, which is cast already if `facts` keeps it. cast_grad: dgrad's gradient, if there is one.
    """
    a, b = grad, x
    if facts.hadamard:
        matrix = hadamard_matrix(number, grad)
        a, b = rotate(grad, matrix), rotate(x, matrix)
    if cast_grad is not None and facts.keep_gradient:
        a = cast_grad
    else:
        a = cast(a, "wgrad.gradient", 0)
    return a, b if facts.keep_input else cast(b, "wgrad.input", 0)


class Linear(torch.autograd.Function):
    """x [rows, K], weight [N, K], bias [N] or None, and a Call."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        call: tuple[Any, ...],
    ) -> torch.Tensor:
        ctx.call = Call(*call)
        facts, cast = facts_of(ctx.call.number), caster(ctx.call)
        xq = cast(widened(x), "forward.input", 1)
        wq = cast(widened(weight), "forward.weight", 1)
        ctx.save_for_backward(xq if facts.keep_input else x, wq if facts.keep_weight else weight)
        ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        wide_bias = None if bias is None else widened(bias)
        if facts.fp32:
            return F.linear(xq, wq, wide_bias).to(x.dtype)
        y = multiply(ctx.call.number, facts, xq, wq.t())
        return (y if wide_bias is None else y + wide_bias).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        facts, cast = facts_of(ctx.call.number), caster(ctx.call)
        x, weight = (widened(one) for one in ctx.saved_tensors)
        grad = widened(grad)
        dx = dw = db = gq = None
        if ctx.needs_input_grad[0]:
            gq = cast(grad, "dgrad.gradient", 1)
            wq = weight if facts.keep_weight else cast(weight, "dgrad.weight", 0)
            dx = multiply(ctx.call.number, facts, gq, wq).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            a, b = wgrad_operands(ctx.call.number, facts, cast, grad, x, gq)
            dw = multiply(ctx.call.number, facts, a.t(), b).to(ctx.dtypes[1])
        if ctx.needs_input_grad[2]:
            db = grad.sum(0).to(ctx.dtypes[2])
        return dx, dw, db, None


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: Call
) -> torch.Tensor:
    """As torch.nn.functional.linear, which is called where dtypes differ, for its error. Under
    autocast operands are first cast to its dtype.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight = autocast(x, dtype), autocast(weight, dtype)
        bias = None if bias is None else autocast(bias, dtype)
        with torch.autocast(kind, enabled=False):
            return linear(x, weight, bias, call)
    if x.dtype != weight.dtype or x.shape[-1:] != weight.shape[1:] or not x.is_floating_point():
        return F.linear(x, weight, bias)  # an error
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    found: torch.Tensor = Linear.apply(
        rows, weight, bias, tuple(call._replace(size=x.element_size()))
    )
    return found.reshape(*x.shape[:-1], weight.shape[0])


def autocast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As autocast does it: float64 and other types stay."""
    eligible = x.is_floating_point() and x.dtype != torch.float64
    return x.to(dtype) if eligible else x
