"""Products of cast operands, by emulate.cast and plain torch: what layers are compared with. All is
float64, so that a result of other operands differs in its first digits.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx import emulate
from torch_cgx.emulate import Block

CURRENT = {"format": "e4m3fn", "scale": "current"}
FORMATS = {
    "e4m3fn": "e4m3fn",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "rectangles": emulate.preset("mxfp8_e4m3", axis=(4, 16)),
    "int8 rows": emulate.Integer(8, per="row"),
    "smaq": emulate.ZScore(6, 8, rounding="zero"),
    "current": CURRENT,
}
PARTS = {
    "forward": {"input": "e4m3fn", "weight": "mxfp4"},
    "dgrad": {"gradient": "mxfp6_e3m2", "weight": "nvfp4"},
    "wgrad": {"gradient": "mxfp4", "input": CURRENT},
}
"""Six operands that all differ."""


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Values of magnitudes that differ by place, so that a block's scale depends on its axis."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    for axis, size in enumerate(shape):
        powers = torch.randint(-2, 3, (size,), generator=generator).double().exp2()
        x = x * powers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return x.to(dtype)


def cast(x: torch.Tensor, format: Any, axis: int) -> torch.Tensor:
    """x in a format whose blocks lie along `axis`. The engine has them along the last dimension of
    a contiguous tensor: there they are brought."""
    if format is None:
        return x
    if isinstance(format, dict):
        largest = torch.tensor({"e4m3fn": 448.0, "e5m2": 57344.0}[format["format"]])
        scale = (largest / x.abs().max().float()).to(x.dtype)
        return emulate.cast(x * scale, format["format"]) / scale
    if isinstance(format, Block) and isinstance(format.axis, tuple):
        return emulate.cast(x.contiguous(), format)
    return emulate.cast(x.movedim(axis, -1).contiguous(), format).movedim(-1, axis)


def by_part(formats: Any) -> dict[str, dict[str, Any]]:
    """Of the six operands, from one format or from PARTS' form."""
    if isinstance(formats, dict) and "forward" in formats:
        return formats
    return {
        "forward": {"input": formats, "weight": formats},
        "dgrad": {"gradient": formats, "weight": formats},
        "wgrad": {"gradient": formats, "input": formats},
    }


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: Any, grad: torch.Tensor, formats: Any
) -> Any:
    """(y, dx, dweight) of y = x weight^T + bias by three products. x [rows, K], grad [rows, N]."""
    of = by_part(formats)
    y = cast(x, of["forward"]["input"], 1) @ cast(weight, of["forward"]["weight"], 1).T
    dx = cast(grad, of["dgrad"]["gradient"], 1) @ cast(weight, of["dgrad"]["weight"], 0)
    dw = cast(grad, of["wgrad"]["gradient"], 0).T @ cast(x, of["wgrad"]["input"], 0)
    return y if bias is None else y + bias, dx, dw
