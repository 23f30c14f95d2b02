"""Gradients of a layer norm or RMS norm from its output y = xhat w + b.

With g = dy w and means over a row:

    layer norm:  dx = rstd (g - mean(g) - xhat mean(g xhat))
    RMS norm:    dx = rstd (g - xhat mean(g xhat))
    both:        dweight = sum of dy xhat over rows, dbias = sum of dy over rows

Computed in float32, or float64 for float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_cgx.activations import _operators  # noqa: F401, loads the engine
from torch_cgx.activations.layers.norm_range import inverse_weight

_Three = tuple[Tensor | None, Tensor | None, Tensor | None]
_aten = torch.ops.aten
_ops = torch.ops.torch_cgx


def computed_in(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True)
class Kept:
    """What a norm keeps. rstd: one number a row of `width` values. x_dtype: of dx."""

    y: Tensor
    rstd: Tensor
    weight: Tensor | None
    bias: Tensor | None
    width: int
    x_dtype: torch.dtype


def gradients(kept: Kept, dy: Tensor, centred: bool, needs: tuple[bool, bool, bool]) -> _Three:
    """dx, dweight and dbias, each where `needs` says so. centred: a layer norm."""
    dtype = computed_in(kept.y.dtype)
    if kept.y.is_cpu and dtype == torch.float32 and not torch.compiler.is_compiling():
        return _native(kept, dy, centred, needs)
    rows = dy.reshape(-1, kept.width).to(dtype)
    out = kept.y.reshape(-1, kept.width).to(dtype)
    inverse = _inverse(kept, dtype) if kept.weight is not None else None
    found = (_of_layer_norm if centred else _of_rms_norm)(kept, rows, out, inverse, needs)
    dx, dweight, dbias = found
    if dx is not None:
        # rstd is a factor of each row.
        dx = dx.mul_(kept.rstd.reshape(-1, 1)).to(kept.x_dtype).reshape(kept.y.shape)
    return dx, _as(kept.weight, dweight), _as(kept.bias, dbias)


def _native(kept: Kept, dy: Tensor, centred: bool, needs: tuple[bool, bool, bool]) -> _Three:
    """One pass over the rows, by the engine (csrc/codec/activations/norms)."""
    weight, bias = _wide(kept.weight, torch.float32), _wide(kept.bias, torch.float32)
    if weight is None:
        weight = torch.ones(kept.width, dtype=torch.float32, device=kept.y.device)
    if bias is None:
        bias = torch.zeros(kept.width, dtype=torch.float32, device=kept.y.device)
    rstd = kept.rstd.reshape(-1).float()
    found = _ops.norm_backward(
        dy, kept.y, rstd, weight, bias, weight.reciprocal(), centred, list(needs)
    )
    dx, dweight, dbias = (one if wanted else None for one, wanted in zip(found, needs, strict=True))
    if dx is not None:
        dx = dx.to(kept.x_dtype)
    return dx, _as(kept.weight, dweight), _as(kept.bias, dbias)


def _inverse(kept: Kept, dtype: torch.dtype) -> Tensor:
    assert kept.weight is not None
    if torch.compiler.is_compiling():
        weight = inverse_weight(kept.weight, kept.bias, kept.y.dtype)
        return weight.reshape(-1).to(dtype)
    return kept.weight.reshape(-1).to(dtype).reciprocal()


def _as(parameter: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if parameter is None or gradient is None:
        return None
    return gradient.to(parameter.dtype).reshape(parameter.shape)


def _wide(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else parameter.reshape(-1).to(dtype)


def _of_layer_norm(
    kept: Kept,
    rows: Tensor,
    out: Tensor,
    inverse: Tensor | None,
    needs: tuple[bool, bool, bool],
) -> _Three:
    """By torch's kernel, for a normalised input: mean 0, rstd 1."""
    weight, bias = _wide(kept.weight, rows.dtype), _wide(kept.bias, rows.dtype)
    if inverse is None or not any(needs[:2]):
        xhat = out
    elif bias is None:
        xhat = out * inverse
    else:
        xhat = torch.addcmul(-bias * inverse, out, inverse)
    mean = rows.new_zeros((len(rows), 1))
    dx, dweight, dbias = _aten.native_layer_norm_backward(
        rows, xhat, [kept.width], mean, mean + 1, weight, bias, list(needs)
    )
    return dx if needs[0] else None, dweight, dbias


def _of_rms_norm(
    kept: Kept,
    rows: Tensor,
    out: Tensor,
    inverse: Tensor | None,
    needs: tuple[bool, bool, bool],
) -> _Three:
    product = rows * out  # g xhat
    dx = dweight = None
    if needs[1] and inverse is not None:
        dweight = product.sum(0) * inverse
    if needs[0]:
        slope = -product.mean(-1, keepdim=True)
        weight = _wide(kept.weight, rows.dtype)
        if weight is None or inverse is None:
            dx = torch.addcmul(rows, out, slope)
        else:
            dx = torch.mul(rows, weight, out=product).addcmul_(out * inverse, slope)
    return dx, dweight, None
