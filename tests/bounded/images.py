"""Tensors that become fields, and masks of what they do not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def smooth(shape: tuple[int, ...], seed: int = 0, noise: float = 3e-3) -> Array:
    """Waves of all dimensions, and noise of that deviation; magnitudes of about 1."""
    rng = np.random.default_rng(seed)
    made = np.ones(shape)
    for dim, size in enumerate(shape):
        place = np.arange(size).reshape([-1 if i == dim else 1 for i in range(len(shape))])
        made = made * np.cos(place / rng.uniform(4, 12) + rng.uniform(0, 6))
    tilt = np.arange(made.size).reshape(shape) / max(made.size, 1)
    return made + tilt + noise * rng.standard_normal(shape)


def image(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0, noise: float = 3e-3
) -> torch.Tensor:
    """Integers: up to a quarter of what the type holds, but 30 000."""
    made = smooth(shape, seed, noise)
    if not dtype.is_floating_point:
        made = made * min(torch.iinfo(dtype).max / 8, 1e4)
        made = made if dtype.is_signed else np.abs(made)
    return torch.from_numpy(np.ascontiguousarray(made)).to(dtype)


def mask(shape: tuple[int, ...], share: float, contiguous: bool, seed: int = 0) -> torch.Tensor:
    """True in about that share of all places."""
    made = smooth(shape, seed + 100, 0.0 if contiguous else 100.0)
    return torch.from_numpy(made <= np.quantile(made, share))
