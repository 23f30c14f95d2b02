"""Layer norm and RMS norm that keep their output for backward instead of their input.

The next linear layer keeps the same tensor as its input, so the norm adds one number a row (rstd)
to what is kept. Forward is torch's own, bit for bit. _norm_range says for which parameters the
normalised input can be computed from the output; with others the call keeps its input, as torch
does. _norm_backward has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F

from torch_cgx.activations._once import once
from torch_cgx.activations.layers import norm_backward
from torch_cgx.activations.layers.norm_backward import Kept
from torch_cgx.activations.layers.norm_range import in_range, in_range_when_traced

Keep = Literal["auto", "output", "input"]
Keeps = Literal["output", "input"]
_aten = torch.ops.aten


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        shape: list[int],
        eps: float,
    ) -> torch.Tensor:
        y, _, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(y, rstd, weight, bias)
        ctx.width = math.prod(shape)
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        y, rstd, weight, bias = ctx.saved_tensors
        kept = Kept(y, rstd, weight, bias, ctx.width, ctx.dtype)
        with torch.no_grad():
            found = norm_backward.gradients(kept, gradients[0], True, ctx.needs_input_grad[:3])
        return *once("layer_norm", (gradients[0], y, weight), found), None, None


def _cast_first(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and rstd, by the operations of transformers' LlamaRMSNorm."""
    wide = x.to(torch.float32)
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * rstd).to(x.dtype), rstd


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        shape: list[int],
        eps: float | None,
        cast_first: bool,
    ) -> torch.Tensor:
        dims = list(range(-len(shape), 0))
        if cast_first:
            assert weight is not None and eps is not None
            y, rstd = _cast_first(x, weight, eps)
        elif weight is None or weight.dtype == x.dtype:
            y, rstd = _aten._fused_rms_norm(x, shape, weight, eps)
        else:
            y = torch.rms_norm(x, shape, weight, eps)
            wide = x.to(norm_backward.computed_in(x.dtype))
            more = torch.finfo(wide.dtype).eps if eps is None else eps
            rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + more)
        ctx.save_for_backward(y, rstd, weight)
        ctx.width = math.prod(shape)
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        y, rstd, weight = ctx.saved_tensors
        kept = Kept(y, rstd, weight, None, ctx.width, ctx.dtype)
        needs = (*ctx.needs_input_grad[:2], False)
        with torch.no_grad():
            found = norm_backward.gradients(kept, gradients[0], False, needs)
        return *once("rms_norm", (gradients[0], y, weight), found[:2]), None, None, None


def choose(
    keep: Keep, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> Keeps:
    """What a call keeps. ValueError: no such keep."""
    check_keep(keep)
    if keep != "auto":
        return keep
    if weight is None:
        return "input" if bias is not None else "output"
    look = in_range_when_traced if torch.compiler.is_compiling() else in_range
    return "output" if look(weight, bias, x.dtype) else "input"


def _kept(*tensors: torch.Tensor | None) -> bool:
    """False also under torch.func's transforms, which torch's own functions serve."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return False
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def check_keep(keep: Any) -> None:
    if keep not in ("auto", "output", "input"):
        raise ValueError(f'keep={keep!r}; allowed: "auto", "output", "input"')


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    keep: Keep = "auto",
) -> torch.Tensor:
    """torch.nn.functional.layer_norm, with the same values, that keeps its output.

    keep: "auto" keeps the output if the parameters are in the range that LayerNorm describes, else
    the input; "output" does not look at the parameters; "input" is torch's own function. A bias
    without a weight keeps the input, and so do torch.func's transforms. Gradients cannot be
    differentiated again when the output is kept, and an operation that changes the result in
    place is torch's error in the backward pass, then: keep="input" allows it.
    """
    if choose(keep, input, weight, bias) == "input" or not _kept(input, weight, bias):
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    return _LayerNorm.apply(input, weight, bias, list(normalized_shape), eps)


def rms_norm(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
    *,
    keep: Keep = "auto",
) -> torch.Tensor:
    """torch.nn.functional.rms_norm, with the same values, that keeps its output. keep: as in
    layer_norm."""
    if choose(keep, input, weight, None) == "input" or not _kept(input, weight):
        return F.rms_norm(input, normalized_shape, weight, eps)
    return _RMSNorm.apply(input, weight, list(normalized_shape), eps, False)


def cast_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, keep: Keep = "auto"
) -> torch.Tensor:
    """weight * (x / rms(x)).to(x.dtype), the part in brackets in float32, over the last
    dimension."""
    if choose(keep, x, weight, None) == "input" or not _kept(x, weight):
        return _cast_first(x, weight, eps)[0]
    return _RMSNorm.apply(x, weight, [x.shape[-1]], eps, True)
