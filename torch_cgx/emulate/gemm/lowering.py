"""Convolutions as matrix products, for accumulation in a format: each output is a sum of products
in the order of channels, then of the kernel's places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from torch_cgx.emulate.gemm.rounding import product

if TYPE_CHECKING:
    from torch_cgx.emulate.gemm.convolution import Geometry


def check(transposed: bool, dimensions: int) -> None:
    """NotImplementedError unless it is a convolution of one or two dimensions."""
    if transposed or dimensions > 2:
        raise NotImplementedError(
            "accumulation in a format: allowed for Conv1d and Conv2d; accumulate='fp32' for "
            "Conv3d and transposed convolutions"
        )


def _flat(geometry: Geometry) -> tuple[tuple[int, ...], ...]:
    """Stride, padding and dilation in two dimensions."""
    found = (geometry.stride, geometry.padding, geometry.dilation)
    missing = 2 - len(geometry.stride)
    return tuple((fill,) * missing + one for fill, one in zip((1, 0, 1), found, strict=True))


def _columns(x: torch.Tensor, kernel: torch.Size, geometry: Geometry) -> torch.Tensor:
    """[N, groups, C / groups * kernel places, outputs]."""
    stride, padding, dilation = _flat(geometry)
    if x.dim() == 3:
        x = x.unsqueeze(2)
    sizes = tuple(kernel) if len(kernel) == 2 else (1, *kernel)
    found = F.unfold(x, sizes, dilation, padding, stride)
    rows = found.shape[1] // geometry.groups  # explicit, as there may be no images
    return found.view(x.shape[0], geometry.groups, rows, found.shape[-1])


def _output_shape(x: torch.Tensor, kernel: torch.Size, geometry: Geometry) -> list[int]:
    stride, padding, dilation = geometry.stride, geometry.padding, geometry.dilation
    return [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(len(stride))
    ]


def lowered(number: int, x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """The convolution without its bias. number: of the layer's Rounding. NotImplementedError: see
    `check`.
    """
    check(geometry.transposed, weight.dim() - 2)
    kernel, groups = weight.shape[2:], geometry.groups
    columns = _columns(x, kernel, geometry)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    y = product(number, rows.float(), columns.float())
    shape = (x.shape[0], weight.shape[0], *_output_shape(x, kernel, geometry))
    return y.reshape(shape).to(x.dtype)


def lowered_backward(
    number: int,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: Geometry,
    which: int,
) -> torch.Tensor:
    """The gradient of x (which = 0), whose overlapping windows are added in float32, or of the
    weight (1), whose contraction runs over outputs, then the batch.
    """
    kernel, groups = weight.shape[2:], geometry.groups
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    outputs = grad[0, 0].numel() if grad.numel() else 0
    g = grad.reshape(x.shape[0], groups, weight.shape[0] // groups, outputs).float()
    if which == 0:
        columns = product(number, rows.transpose(1, 2).float(), g)
        stride, padding, dilation = _flat(geometry)
        size = x.shape[2:] if x.dim() == 4 else (1, *x.shape[2:])
        sizes = tuple(kernel) if len(kernel) == 2 else (1, *kernel)
        folded = F.fold(columns.flatten(1, 2), tuple(size), sizes, dilation, padding, stride)
        return folded.reshape(x.shape).to(x.dtype)
    columns = _columns(x, kernel, geometry).float()
    # One product over the batch and the outputs.
    g = g.permute(1, 2, 0, 3).flatten(2)
    columns = columns.permute(1, 0, 3, 2).flatten(1, 2)
    return product(number, g, columns).reshape(weight.shape).to(weight.dtype)
