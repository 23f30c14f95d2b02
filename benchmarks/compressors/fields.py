"""Smooth random fields of two and three dimensions, whole and masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch

from benchmarks.compressors.cell import EVERY, Cell, Maker, Sizes, by_range
from benchmarks.compressors.compressor import Array

Shape = tuple[int, ...]

_MASK_SEED = 1


def _small(sizes: Sizes) -> Shape:
    return 200, 300


def _square(sizes: Sizes) -> Shape:
    """1024 x 1024 of 2^20 values."""
    side = round(sizes.numel**0.5)
    return side, side


def _box(sizes: Sizes) -> Shape:
    """64 x 128 x 128 of 2^20 values."""
    side = round((sizes.numel / 4) ** (1 / 3))
    return side, 2 * side, 2 * side


@cache
def field(shape: Shape, power: float = 3.0, seed: int = 0) -> Array:
    """float32: a Gaussian random field with the spectrum E(k) ~ k^-power, summed up over shells of
    equal |k|, as turbulence and weather have; periodic; its standard deviation is 1.
    """
    spectrum = np.fft.rfftn(np.random.RandomState(seed).standard_normal(shape))
    squares = np.zeros(spectrum.shape)
    for axis, n in enumerate(shape):
        last = axis == len(shape) - 1
        k = n * (np.fft.rfftfreq(n) if last else np.fft.fftfreq(n))
        squares += (k**2).reshape([-1 if other == axis else 1 for other in range(len(shape))])
    origin = (0,) * len(shape)
    squares[origin] = 1
    # The square of an amplitude, times the k^(d-1) of a shell.
    spectrum *= squares ** ((-power / 2 - (len(shape) - 1) / 2) / 2)
    spectrum[origin] = 0
    x = np.fft.irfftn(spectrum, shape, range(len(shape)))
    return (x / x.std()).astype(np.float32)


def masked(x: Array, share: float, fill: float) -> Array:
    """x with `fill` in this share of it, in patches: where another field is low, as land is in a
    field of the sea.
    """
    other = field(x.shape, seed=_MASK_SEED)
    y = x.copy()
    y[other < np.quantile(other, share)] = fill
    return y


def _smooth(shape_of: Callable[[Sizes], Shape], seed: int = 0) -> Maker:
    def make(name: str, sizes: Sizes) -> Iterator[Cell]:
        yield from by_range(name, torch.from_numpy(field(shape_of(sizes), seed=seed)), EVERY)

    return make


def _masked(shape_of: Callable[[Sizes], Shape], share: float, fill: float) -> Maker:
    def make(name: str, sizes: Sizes) -> Iterator[Cell]:
        values = torch.from_numpy(masked(field(shape_of(sizes)), share, fill))
        yield from by_range(name, values, EVERY, fill)

    return make


SMOOTH: dict[str, Maker] = {
    "field 2-D": _smooth(_square),
    "field 2-D, small": _smooth(_small, seed=3),
    "field 3-D": _smooth(_box),
}
# Every share and fill at least once.
MASKED: dict[str, Maker] = {
    "field 2-D, 5 % NaN": _masked(_square, 0.05, float("nan")),
    "field 2-D, 20 % 1e20": _masked(_square, 0.2, 1e20),
    "field 2-D, 45 % -9999": _masked(_square, 0.45, -9999.0),
    "field 3-D, 20 % 1e20": _masked(_box, 0.2, 1e20),
    "field 3-D, 45 % NaN": _masked(_box, 0.45, float("nan")),
}
