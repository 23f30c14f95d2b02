"""What error-bounded compressors are measured on: tensors, and the bounds of each.

All are made anew from fixed seeds, so equal sizes give equal bits. Bounds of Adam's moments, of
gradients and of images are shares of the range of the values; every method gets the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from benchmarks.training import state

MEMORY = "N(0,.02), from memory"
_SHARES = (1e-3, 1e-4)  # of the range


@dataclass(frozen=True)
class Sizes:
    """large: values of the corpus that does not fit a cache; steps: of the training."""

    numel: int = 1 << 20
    round_numel: int = 10**6
    large: int = 1 << 26
    steps: int = state.STEPS


@dataclass(frozen=True)
class Cell:
    """A corpus at one bound. max_error: absolute, 0 is lossless; sigma: the standard deviation of
    Gaussian values.
    """

    corpus: str
    values: torch.Tensor
    max_error: float
    sigma: float | None = None

    @property
    def name(self) -> str:
        return f"{self.corpus}, {f'{self.max_error:g}' if self.max_error else 'lossless'}"

    @property
    def limit(self) -> float | None:
        """The ratio that the entropy of Gaussian values allows; None for other data."""
        if self.sigma is None or self.max_error == 0:
            return None
        return 8 * self.values.element_size() / gaussian_bits(self.sigma, self.max_error)


def gaussian_bits(sigma: float, max_error: float) -> float:
    """Entropy in bits of a Gaussian value that is rounded to steps of 2 max_error, where these are
    far below sigma: the differential entropy log2(sigma sqrt(2 pi e)) less log2 of the step (Cover
    and Thomas, Elements of Information Theory, theorem 8.3.1).
    """
    return math.log2(sigma * math.sqrt(2 * math.pi * math.e) / (2 * max_error))


def cells(names: list[str], sizes: Sizes) -> Iterator[Cell]:
    """The cells of these corpora of `CORPORA`, each made when it is wanted."""
    for name in names:
        yield from CORPORA[name](name, sizes)


# ---- the corpora


def _normal(
    sigma: float, bounds: tuple[float, ...], large: bool = False
) -> Callable[[str, Sizes], Iterator[Cell]]:
    def make(name: str, sizes: Sizes) -> Iterator[Cell]:
        values = _gaussian(sizes.large if large else sizes.numel, sigma)
        for bound in bounds:
            yield Cell(name, values, bound, sigma)

    return make


def _gaussian(numel: int, sigma: float) -> torch.Tensor:
    values = np.random.RandomState(0).standard_normal(numel).astype(np.float32)
    return torch.from_numpy(values * np.float32(sigma))


def _integers(name: str, sizes: Sizes) -> Iterator[Cell]:
    drawn = np.random.RandomState(0).normal(78000, 317, sizes.numel)
    yield Cell(name, torch.from_numpy(np.rint(drawn).astype(np.float32)), 0.5, 317)


def _sine(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield Cell(name, torch.from_numpy(np.sin(np.arange(sizes.round_numel) / 500)).float(), 1e-4)


def _zeros(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield Cell(name, torch.zeros(sizes.round_numel), 1e-4)


def _weights(name: str, sizes: Sizes) -> Iterator[Cell]:
    for bound in (1e-4, 1e-3, 0.0):
        yield Cell(name, _gpt(sizes.steps)["weights"], bound)


def _bf16_weights(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield Cell(name, _gpt(sizes.steps)["weights"].bfloat16(), 0.0)


def _of_training(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield from _by_range(name, _gpt(sizes.steps)[name])


def _digits(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield from _by_range(name, _images())


def _digits_uint8(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield Cell(name, _images().to(torch.uint8), 0.0)


def _by_range(name: str, values: torch.Tensor) -> Iterator[Cell]:
    low, high = (float(x) for x in values.aminmax())
    for share in _SHARES:
        yield Cell(name, values, float(f"{share * (high - low):.3g}"))


@cache
def _gpt(steps: int) -> state.State:
    return state.load(steps)


@cache
def _images() -> torch.Tensor:
    """float32 of shape (1797, 8, 8), integers from 0 to 16. Not repeated to be longer: repetitions
    would be found by those methods that look for them.
    """
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().images).float()


# Makers by name; each gives the cells of its corpus.
CORPORA: dict[str, Callable[[str, Sizes], Iterator[Cell]]] = {
    "N(0,1)": _normal(1.0, (1e-4, 1e-3)),
    "N(0,.02)": _normal(0.02, (1e-4, 1e-3)),
    "integers N(78000,317)": _integers,
    "sine": _sine,
    "zeros": _zeros,
    "weights": _weights,
    "weights bf16": _bf16_weights,
    "first moments": _of_training,
    "second moments": _of_training,
    "gradients": _of_training,
    "digits": _digits,
    "digits uint8": _digits_uint8,
    MEMORY: _normal(0.02, (1e-4,), large=True),
}
