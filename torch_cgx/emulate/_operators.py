"""The operators of emulation on tensors without values: shapes, dtypes and checks, as
torch_cgx/_operators.py has them for codecs; and what functorch's transforms do with them. Importing
this module loads the engine.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._operators import _check_out, _check_tensor, _fake

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
STATISTICS = 7


def _check_floating(what: str, tensor: torch.Tensor) -> None:
    _check_tensor(what, tensor)
    if tensor.dtype not in FLOATING:
        raise TypeError(
            f"{what}.dtype is {tensor.dtype}, allowed: float32, float64, float16, bfloat16"
        )


def _statistics(tensor: torch.Tensor) -> torch.Tensor:
    device = "meta" if tensor.is_meta else "cpu"
    return tensor.new_empty((STATISTICS,), dtype=torch.float64, device=device)


@_fake("cast")
def _cast(
    tensor: torch.Tensor, format: str, seed: int = 0, step: int = 0, number: int = 0
) -> torch.Tensor:
    _check_floating("tensor", tensor)
    _C.cast_facts(format)  # ValueError: no cast has this text
    return torch.empty_like(tensor)


@_fake("cast.out")
def _cast_out(
    tensor: torch.Tensor,
    format: str,
    seed: int = 0,
    step: int = 0,
    number: int = 0,
    *,
    out: torch.Tensor,
) -> None:
    _check_floating("tensor", tensor)
    _C.cast_facts(format)
    _check_out(tensor, out)


@_fake("cast_statistics")
def _cast_statistics(
    tensor: torch.Tensor, format: str, seed: int = 0, step: int = 0, number: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    return _cast(tensor, format, seed, step, number), _statistics(tensor)


@_fake("cast_statistics.out")
def _cast_statistics_out(
    tensor: torch.Tensor,
    format: str,
    seed: int = 0,
    step: int = 0,
    number: int = 0,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    _cast_out(tensor, format, seed, step, number, out=out)
    return _statistics(tensor)


__all__: list[Any] = []
