"""Convolutions of one to three dimensions, also transposed ones, with operands in formats.

The forward pass contracts input channels and the kernel, dgrad contracts output channels and the
kernel, wgrad contracts the batch and space. Blocks of operands lie along
input channels, output channels and the batch, as Microsoft's microxcaling has them; so does the
Hadamard transform of wgrad's operands along the batch.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from torch_cgx.emulate.gemm.linear import autocast, wgrad_operands, widened
from torch_cgx.emulate.gemm.lowering import lowered, lowered_backward
from torch_cgx.emulate.gemm.rounding import Call, Cast, Facts, caster, facts_of


class Geometry(NamedTuple):
    """The arguments of torch.convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def input_channels(self) -> int:
        """The weight's dimension of them."""
        return 0 if self.transposed else 1


def _cast(cast: Cast, facts: Facts, x: torch.Tensor, operand: str, axis: int) -> torch.Tensor:
    """A format with rectangles of blocks sees a matrix of x's first dimension."""
    if operand in facts.rectangles:
        return cast(x.reshape(x.shape[0], -1), operand, 1).reshape(x.shape)
    return cast(x, operand, axis)


class Convolution(torch.autograd.Function):
    """x [N, C, ...], weight, bias or None, a Call and a Geometry."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        call: tuple[Any, ...],
        geometry: tuple[Any, ...],
    ) -> torch.Tensor:
        ctx.call, ctx.geometry = Call(*call), Geometry(*geometry)
        facts, cast = facts_of(ctx.call.number), caster(ctx.call)
        xq = _cast(cast, facts, widened(x), "forward.input", 1)
        channels = ctx.geometry.input_channels
        wq = _cast(cast, facts, widened(weight), "forward.weight", channels)
        ctx.save_for_backward(xq if facts.keep_input else x, wq if facts.keep_weight else weight)
        ctx.dtypes = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        wide_bias = None if bias is None else widened(bias)
        if facts.fp32:
            return torch.convolution(xq, wq, wide_bias, *ctx.geometry).to(x.dtype)
        y = lowered(ctx.call.number, xq, wq, ctx.geometry)
        if wide_bias is not None:
            y = y + wide_bias.view(-1, *[1] * (y.dim() - 2))
        return y.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        facts, cast = facts_of(ctx.call.number), caster(ctx.call)
        x, weight = (widened(one) for one in ctx.saved_tensors)
        grad = widened(grad)
        dx = dw = db = gq = None
        if ctx.needs_input_grad[0]:
            gq = _cast(cast, facts, grad, "dgrad.gradient", 1)
            wq = weight
            if not facts.keep_weight:
                channels = 1 - ctx.geometry.input_channels
                wq = _cast(cast, facts, weight, "dgrad.weight", channels)
            dx = _gradient(ctx.call.number, gq, x, wq, ctx.geometry, 0).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            flat = functools.partial(_cast, cast, facts)
            a, b = wgrad_operands(ctx.call.number, facts, flat, grad, x, gq)
            dw = _gradient(ctx.call.number, a, b, weight, ctx.geometry, 1).to(ctx.dtypes[1])
        if ctx.needs_input_grad[2]:
            db = grad.sum([0, *range(2, grad.dim())]).to(ctx.dtypes[2])
        return dx, dw, db, None, None


def _gradient(
    number: int,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: Geometry,
    which: int,
) -> torch.Tensor:
    """Of x (which = 0) or of the weight (1)."""
    if not facts_of(number).fp32:
        return lowered_backward(number, grad, x, weight, geometry, which)
    mask = [which == 0, which == 1, False]
    stride, padding, dilation, transposed, output_padding, groups = geometry
    found: torch.Tensor = torch.ops.aten.convolution_backward(
        *(grad, x, weight, None, stride, padding, dilation, transposed, output_padding, groups),
        mask,
    )[which]
    return found


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    call: Call,
    geometry: Geometry,
) -> torch.Tensor:
    """As torch.convolution, which is called where dtypes differ, for its error; also of x without a
    batch [C, ...]. Under autocast operands are first cast to its dtype.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight = autocast(x, dtype), autocast(weight, dtype)
        bias = None if bias is None else autocast(bias, dtype)
        with torch.autocast(kind, enabled=False):
            return convolution(x, weight, bias, call, geometry)
    if x.dim() == weight.dim() - 1:
        return convolution(x[None], weight, bias, call, geometry)[0]
    if x.dtype != weight.dtype or not x.is_floating_point() or x.dim() != weight.dim():
        return torch.convolution(x, weight, bias, *geometry)  # an error
    channels = weight.shape[0] if geometry.transposed else weight.shape[1] * geometry.groups
    if x.shape[1] != channels:
        return torch.convolution(x, weight, bias, *geometry)  # an error
    call = call._replace(size=x.element_size())
    found: torch.Tensor = Convolution.apply(x, weight, bias, tuple(call), tuple(geometry))
    return found


def of_module(module: Any, x: torch.Tensor, call: Call) -> torch.Tensor:
    """What the forward pass of a torch.nn.Conv1d, 2d or 3d does, with its padding."""
    spatial = len(module.kernel_size)
    padding = module.padding
    if module.padding_mode != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
        padding = (0,) * spatial
    elif isinstance(padding, str):  # "valid", or "same", which may pad one place more at the ends
        pairs = module._reversed_padding_repeated_twice
        padding = pairs[::2][::-1]
        if pairs[1::2] != pairs[::2]:
            more = zip(pairs[::2], pairs[1::2], strict=True)
            x = F.pad(x, [one for begin, end in more for one in (0, end - begin)])
    geometry = Geometry(
        module.stride, tuple(padding), module.dilation, False, (0,) * spatial, module.groups
    )
    return convolution(x, module.weight, module.bias, call, geometry)


def of_transposed_module(
    module: Any, x: torch.Tensor, call: Call, output_size: list[int] | None
) -> torch.Tensor:
    """What the forward pass of a torch.nn.ConvTranspose1d, 2d or 3d does."""
    spatial = len(module.kernel_size)
    output_padding = module._output_padding(
        x, output_size, module.stride, module.padding, module.kernel_size, spatial, module.dilation
    )
    geometry = Geometry(
        module.stride,
        tuple(module.padding),
        module.dilation,
        True,
        tuple(output_padding),
        module.groups,
    )
    return convolution(x, module.weight, module.bias, call, geometry)
