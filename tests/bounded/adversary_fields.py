"""Tensors with rows and planes for tests/bounded/adversary.py: smooth fields, with holes, of few
values, of multiples, and of rows that are there again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]
_FILLS = (np.nan, 1e20, -9999.0, np.inf, -np.inf, -0.0, 0.0, 9.96921e36)


def shape_of(rng: np.random.Generator) -> tuple[int, ...]:
    """Of 1 to 4 dimensions, with up to some thousand values, or rarely with several blocks."""
    dims = int(rng.integers(1, 5))
    most = 6000 if rng.random() < 0.99 else 150_000
    width = int(rng.choice([rng.integers(1, 12), rng.integers(8, 80), rng.integers(60, 1500)]))
    rest = max(most // width, 1)
    shape = [width]
    while len(shape) < dims:
        size = int(rng.integers(1, max(2, min(rest, 70))))
        rest = max(rest // size, 1)
        shape.insert(0, size)
    return tuple(shape)


def _smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A sum of waves and of noise that is small or not."""
    x = np.zeros(shape)
    grids = np.meshgrid(*(np.arange(n) for n in shape), indexing="ij")
    for _ in range(int(rng.integers(1, 6))):
        phase = rng.uniform(0, 6)
        for grid in grids:
            phase = phase + grid * rng.uniform(0, rng.choice([0.01, 0.2, 2.0]))
        x = x + np.sin(phase) * rng.uniform(0.1, 1)
    return x + rng.standard_normal(shape) * rng.choice([0, 1e-6, 1e-3, 0.1])


def _holes(rng: np.random.Generator, x: Array) -> tuple[Array, str]:
    share = float(rng.choice([0.01, 0.06, 0.2, 0.5, 0.97]))
    scattered = rng.random() < 0.4
    mask = rng.random(x.shape) if scattered else _smooth(rng, x.shape)
    holes = mask <= np.quantile(mask, share) if x.size else mask < 0
    fills = rng.choice(_FILLS, int(rng.choice([1, 1, 1, 2, 5])))
    return np.where(holes, rng.choice(fills, x.shape), x), "scattered" if scattered else "masked"


def field(rng: np.random.Generator, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, str]:
    """Values of a floating-point type, and how they were made."""
    shape = shape_of(rng)
    kind = str(rng.choice(["smooth", "holes", "places", "rows", "palette", "again", "mostly"]))
    x = _smooth(rng, shape) * scale + rng.choice([0.0, 0.0, 300.0]) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "holes":
            x, how = _holes(rng, x)
            kind = how
        elif kind == "places":
            x = np.rint(x * 100) / rng.choice([1, 10, 100, 1e4, 64])
        elif kind == "rows":
            units = (rng.random((*shape[:-1], 1)) + 0.1) * scale / 127
            units = torch.from_numpy(units).to(dtype).double().numpy()
            x = np.rint(_smooth(rng, shape) * rng.choice([7, 127, 3000])) * units
        elif kind == "palette":
            colors = rng.standard_normal(int(rng.choice([2, 16, 300, 5000]))) * scale
            x = rng.choice(colors, shape)
        elif kind == "again":
            rows = rng.standard_normal((int(rng.integers(1, 9)), shape[-1])) * scale
            x = rows[rng.integers(0, len(rows), shape[:-1])]
        elif kind == "mostly":
            x = np.where(rng.random(shape) < rng.choice([1e-3, 0.02]), x, 0.5 * scale)
    values = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    if values.numel() > 0 and rng.random() < 0.1:
        rare = torch.tensor([torch.nan, torch.inf, -0.0, torch.finfo(dtype).max], dtype=dtype)
        values.view(-1)[:: int(rng.integers(7, 900))] = rare[int(rng.integers(4))]
    return values, f"field, {kind}"


def image(rng: np.random.Generator, dtype: torch.dtype) -> tuple[torch.Tensor, str]:
    """Whole numbers in rows and planes."""
    info = torch.iinfo(dtype)
    least, greatest = float(info.min), float(info.max)
    if dtype.itemsize == 8:
        greatest = float(np.nextafter(greatest, 0))
    x = _smooth(rng, shape_of(rng))
    if rng.random() < 0.3:
        # Around the middle of the type's range, up to both ends or beyond.
        x = (least + greatest) / 2 + x * greatest * rng.choice([0.1, 0.5, 2.0])
        kind = "image, both ends"
    else:
        reach = float(rng.choice([3, 100, 1e4, 1e9, 1e17]))
        x = np.where(x < rng.uniform(-2, 1), 0, x * reach)
        kind = "image"
    whole = np.clip(np.rint(x), least, greatest)
    return torch.from_numpy(whole.astype(torch.empty(0, dtype=dtype).numpy().dtype)), kind
