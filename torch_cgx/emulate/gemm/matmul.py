"""Matrix products as hardware with few bits computes them."""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx._constant import constant
from torch_cgx.emulate.gemm.formats import OPERANDS, GemmFormats, Scaled, gemm_formats
from torch_cgx.emulate.gemm.operand import Key, cast_along
from torch_cgx.emulate.gemm.product import Accumulation, of_product


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Any = None,
    accumulate: Any = "fp32",
    kahan: bool = False,
    order: str = "sequential",
    block: int | None = None,
    *,
    seed: int = 0,
    step: int = 0,
) -> torch.Tensor:
    """a b with operands and partial sums in formats; both GEMMs of its backward pass, too.

    a: [..., M, K] or [K]. b: [..., K, N] or [K]. As torch.matmul's, of one dtype: float32, float64,
        float16 or bfloat16, on one device. The result has this dtype; formats of accumulation
        compute in float32, 16-bit operands are widened to it.
    inputs: the operands' format, or a dict of formats by GEMM and operand, as a recipe's "gemm"
        (`apply`); b is the "weight". Blocks lie along each contraction: K in the forward pass, N in
        that of a's gradient, M in that of b's. None: exact.
    accumulate, kahan, order, block: see `Accumulation`: "fp32", as torch.matmul adds; a Float or
        Fixed, in which each product and each partial sum is rounded; "hopper14".
    seed, step: of stochastic formats, as of `cast`.

    ValueError, TypeError: an argument is not allowed, shapes do not fit (torch's own error).
    """
    chosen: dict[str, Any] = {} if block is None else {"block": block}
    accumulation = Accumulation(accumulate, kahan, order, **chosen)
    formats = _formats(inputs) if isinstance(inputs, str) else gemm_formats(inputs, "inputs")
    _check(a, b, formats)
    if not formats.accumulation.fp32 or formats.hadamard:
        raise ValueError(
            "inputs has accumulate or hadamard; allowed: accumulate, kahan, order, block as "
            "arguments of matmul"
        )
    if a.dim() < 2 or b.dim() < 2:
        if a.dim() == 0 or b.dim() == 0:
            return torch.matmul(a, b)  # an error
        left, right = a[None] if a.dim() == 1 else a, b[:, None] if b.dim() == 1 else b
        y = matmul(left, right, inputs, accumulate, kahan, order, block, seed=seed, step=step)
        y = y.squeeze(-2) if a.dim() == 1 else y
        return y.squeeze(-1) if b.dim() == 1 else y
    if a.dtype != b.dtype or a.shape[-1] != b.shape[-2]:
        return torch.matmul(a, b)  # an error
    found: torch.Tensor = _Matmul.apply(a, b, formats, accumulation, seed, step)
    return found


@constant
def _formats(name: str) -> GemmFormats:
    return gemm_formats(name, "inputs")


def _check(a: Any, b: Any, formats: GemmFormats) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}, allowed: a torch.Tensor")
        if not tensor.is_floating_point() or tensor.element_size() == 1:
            raise TypeError(
                f"{name}.dtype is {tensor.dtype}, allowed: float32, float64, float16, bfloat16"
            )
    for operand, format in formats.operands:
        if isinstance(format, Scaled) and format.scale == "delayed":
            raise ValueError(
                f"inputs: {operand} has scale='delayed', which remembers earlier tensors; allowed: "
                "scale='current', or a layer (QuantLinear, emulate.apply)"
            )


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        a: torch.Tensor,
        b: torch.Tensor,
        formats: GemmFormats,
        accumulation: Accumulation,
        seed: int,
        step: int,
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.how = (formats, accumulation, seed, step)
        return _product(ctx.how, (a, "forward.input", -1), (b, "forward.weight", -2), a.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        da = db = None
        if ctx.needs_input_grad[0]:
            transposed = (b.transpose(-1, -2), "dgrad.weight", -2)
            da = _product(ctx.how, (grad, "dgrad.gradient", -1), transposed, a.dtype)
            da = da.sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            transposed = (a.transpose(-1, -2), "wgrad.input", -1)
            db = _product(ctx.how, transposed, (grad, "wgrad.gradient", -2), b.dtype)
            db = db.sum_to_size(b.shape)
        return da, db, None, None, None, None


def _product(how: Any, left: Any, right: Any, dtype: torch.dtype) -> torch.Tensor:
    """left, right: (values, the operand's name, its contraction's dimension)."""
    formats, accumulation, seed, step = how
    cast = []
    for x, operand, axis in (left, right):
        x = x.float() if x.element_size() < 4 else x
        format = formats.by_name.get(operand)
        if format is not None:
            key = Key(seed, step, OPERANDS.index(operand))
            x = cast_along(x, format, axis, key).values
        cast.append(x)
    if accumulation.fp32:
        return torch.matmul(*cast).to(dtype)
    return of_product(cast[0].float(), cast[1].float(), accumulation).to(dtype)
