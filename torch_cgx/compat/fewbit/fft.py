"""The discrete cosine transform of types 2 and 3, by torch.fft, as SciPy defines it.

With c = cos(pi k (2 n + 1) / (2 N)), type 2 is y_k = 2 sum_n x_n c, and type 3, which is its
inverse times 2 N, is y_n = x_0 + 2 sum_(k > 0) x_k c. The method: Makhoul, "A fast cosine transform
in one and two dimensions" (1980): one transform of N values in another order.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

_NORMS = ("backward", "ortho", "forward")


def dct(
    x: Tensor, type: int = 2, n: int | None = None, dim: int = -1, norm: str = "backward"
) -> Tensor:
    """The transform along a dimension: x's dtype, device and shape, but for n. Differentiable.

    x: float32 or float64; float16 and bfloat16 are computed in float32. type: 2 or 3. n: the length
    to which the dimension is cut, or filled up with zeros. norm: "backward" is the formula above,
    "forward" divides it by 2 N, "ortho" is an orthogonal matrix. ValueError, TypeError.
    """
    values = _checked(x, type, n, dim, norm)
    found = _two(values, norm) if type == 2 else _three(values, norm)
    return found.to(x.dtype).movedim(-1, dim)


def idct(
    x: Tensor, type: int = 2, n: int | None = None, dim: int = -1, norm: str = "backward"
) -> Tensor:
    """The inverse of `dct` of the same type and norm; arguments as there. In FewBit its first
    coefficient is wrong for "backward" and "forward".
    """
    values = _checked(x, type, n, dim, norm)
    other = {"backward": "forward", "forward": "backward", "ortho": "ortho"}[norm]
    found = _three(values, other) if type == 2 else _two(values, other)
    return found.to(x.dtype).movedim(-1, dim)


def _checked(x: Any, type: Any, n: Any, dim: int, norm: Any) -> Tensor:
    """The values, of n along the last dimension."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        what = x.dtype if isinstance(x, Tensor) else x.__class__.__name__
        raise TypeError(f"x is {what}; allowed: tensors of float32, float64, float16, bfloat16")
    if type not in (2, 3):
        raise ValueError(f"type={type!r}; allowed: 2, 3")
    if norm not in _NORMS:
        raise ValueError(f"norm={norm!r}; allowed: {', '.join(_NORMS)}")
    if not x.ndim:
        raise ValueError("x has no dimension; allowed: at least one")
    values = x.movedim(dim, -1)
    size = values.shape[-1] if n is None else n
    if isinstance(size, bool) or not isinstance(size, numbers.Integral) or int(size) < 1:
        raise ValueError(f"n={size!r}; allowed: integers from 1")
    size = int(size)
    if x.dtype not in (torch.float32, torch.float64):
        values = values.float()
    return torch.nn.functional.pad(values[..., :size], (0, max(0, size - values.shape[-1])))


def _turns(x: Tensor) -> Tensor:
    """exp(-i pi k / (2 N))"""
    n = x.shape[-1]
    k = torch.arange(n, dtype=x.dtype, device=x.device)
    return torch.polar(torch.ones_like(k), k * (-math.pi / (2 * n)))


def _two(x: Tensor, norm: str) -> Tensor:
    n = x.shape[-1]
    order = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], -1)
    y = 2 * (torch.fft.fft(order) * _turns(x)).real
    if norm == "forward":
        return y / (2 * n)
    return y if norm == "backward" else y * _orthogonal(x)


def _three(x: Tensor, norm: str) -> Tensor:
    n = x.shape[-1]
    if norm == "ortho":
        x = x / (_orthogonal(x) * (2 * n))
    mirrored = torch.cat([torch.zeros_like(x[..., :1]), x[..., 1:].flip(-1)], -1)
    spectrum = torch.complex(x, -mirrored) * _turns(x).conj()
    order = torch.fft.ifft(spectrum).real * n
    y = torch.empty_like(order)
    y[..., ::2], y[..., 1::2] = order[..., : (n + 1) // 2], order[..., (n + 1) // 2 :].flip(-1)
    return y / (2 * n) if norm == "forward" else y


def _orthogonal(x: Tensor) -> Tensor:
    """By what type 2 is multiplied to be an orthogonal matrix."""
    n = x.shape[-1]
    scale = torch.full((n,), (2 * n) ** -0.5, dtype=x.dtype, device=x.device)
    scale[0] = (4 * n) ** -0.5
    return scale


__all__ = ["dct", "idct"]
