"""What several tests of bounded compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.bounded import adversary


def some(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        part = torch.randn((*shape, 2), generator=generator).to(adversary.COMPLEX[dtype])
        return torch.view_as_complex(part)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool((adversary.bits_of(a) == adversary.bits_of(b)).all())
    )


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(x: torch.Tensor, y: torch.Tensor) -> float:
    """The greatest difference, by NumPy in float64."""
    assert x.dtype == y.dtype and x.shape == y.shape
    a, b = (t.detach().to(torch.float64).numpy() for t in (x, y))
    return float(np.abs(a - b).max(initial=0.0))


def same(x: Any, y: Any) -> bool:
    """Equal in every type, order and bit."""
    if type(x) is not type(y):
        return False
    if isinstance(x, torch.Tensor):
        return x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
    if isinstance(x, dict):
        pairs = zip(x.items(), y.items(), strict=True)
        return len(x) == len(y) and all(same(a, b) and same(v, w) for (a, v), (b, w) in pairs)
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(map(same, x, y))
    return bool(x == y or (x != x and y != y))
