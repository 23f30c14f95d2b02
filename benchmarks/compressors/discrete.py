"""Values of which few differ, or that repeat: dequantised rows, palettes, decimals, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.compressors import fields
from benchmarks.compressors.cell import EVERY, Cell, Maker, Sizes, by_range
from benchmarks.compressors.compressor import Array

Values = Callable[[Sizes, np.random.RandomState], Array]

_LOSSLESS = (0.0,)
_SEED = 5


def _dequantised(sizes: Sizes, random: np.random.RandomState) -> Array:
    """Rows of int8 times a scale of their own, as quantised weights are after loading."""
    x = 0.02 * random.standard_normal((sizes.numel // 1024, 1024)).astype(np.float32)
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    return np.asarray(np.rint(x / scale) * scale, np.float32)


def _palette(sizes: Sizes, random: np.random.RandomState) -> Array:
    levels = np.sort(random.standard_normal(16)).astype(np.float32)
    return levels[random.randint(0, 16, (sizes.numel // 1024, 1024))]


def _walk(sizes: Sizes, random: np.random.RandomState) -> Array:
    """As prices: two decimals."""
    return np.round(100 + 0.05 * np.cumsum(random.standard_normal(sizes.numel)), 2)


def _short_walk(sizes: Sizes, random: np.random.RandomState) -> Array:
    return _walk(sizes, random).astype(np.float32)


def _uniform(sizes: Sizes, random: np.random.RandomState) -> Array:
    return np.round(random.uniform(1, 1000, sizes.numel), 2).astype(np.float32)


def _rows(sizes: Sizes, random: np.random.RandomState) -> Array:
    """16 rows in any order, 1024 of 1024 values where there are 2^20: as rows of an embedding."""
    rows = random.standard_normal((16, 1024)).astype(np.float32)
    return rows[random.randint(0, 16, sizes.numel // 1024)]


def _many_rows(sizes: Sizes, random: np.random.RandomState) -> Array:
    """Of 100 rows; a row is no power of two long."""
    rows = random.standard_normal((100, 700)).astype(np.float32)
    return rows[random.randint(0, 100, sizes.numel // 700)]


def _stack(sizes: Sizes, random: np.random.RandomState) -> Array:
    """float64, 0 to 255: smooth pictures one above another, with a camera's noise."""
    side = round((sizes.numel / 32) ** 0.5)
    x = fields.field((32, side, side), 2.5, 7).astype(np.float64)
    x = 255 * (x - x.min()) / (x.max() - x.min())
    return np.clip(x + 1.5 * random.standard_normal(x.shape), 0, 255)


def _bytes(sizes: Sizes, random: np.random.RandomState) -> Array:
    return np.rint(_stack(sizes, random)).astype(np.uint8)


def _words(sizes: Sizes, random: np.random.RandomState) -> Array:
    """Of 12 bits."""
    return np.rint(16 * _stack(sizes, random)).astype(np.uint16)


def _nearly_constant(sizes: Sizes, random: np.random.RandomState) -> Array:
    """2^22 values where there are 2^20 otherwise."""
    x = np.full(4 * sizes.numel, 0.5, np.float32)
    x[::100003] += 1
    return x


def _maker(values_of: Values, shares: tuple[float, ...]) -> Maker:
    def make(name: str, sizes: Sizes) -> Iterator[Cell]:
        values = torch.from_numpy(values_of(sizes, np.random.RandomState(_SEED)))
        yield from by_range(name, values, shares)

    return make


CORPORA: dict[str, Maker] = {
    "int8 rows, dequantised": _maker(_dequantised, (1e-3, 0.0)),
    "palette of 16": _maker(_palette, (1e-3, 0.0)),
    "decimals, walk": _maker(_short_walk, EVERY),
    "decimals, walk f64": _maker(_walk, EVERY),
    "decimals, uniform": _maker(_uniform, EVERY),
    "rows of 1024, 16 different": _maker(_rows, (1e-3, 0.0)),
    "rows of 700, 100 different": _maker(_many_rows, (1e-3, 0.0)),
    "image stack uint8": _maker(_bytes, _LOSSLESS),
    "image stack uint16": _maker(_words, _LOSSLESS),
    "nearly constant": _maker(_nearly_constant, (1e-3, 0.0)),
}
