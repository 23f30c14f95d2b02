"""A corpus at one bound, and how large the corpora are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.training import state

SHARES = (1e-3, 1e-4)  # of the range
EVERY = (*SHARES, 0.0)


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
    Gaussian values; share: of the range of the values, where the bound was chosen so; kind: of
    data, a name of `corpora.KINDS`.
    """

    corpus: str
    values: torch.Tensor
    max_error: float
    sigma: float | None = None
    share: float | None = None
    kind: str = ""

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


# By the corpus's name and the sizes: its cells.
Maker = Callable[[str, Sizes], Iterator[Cell]]


def by_range(
    name: str,
    values: torch.Tensor,
    shares: tuple[float, ...] = SHARES,
    fill: float | None = None,
) -> Iterator[Cell]:
    """Cells whose bounds are these shares of the range of the values; a share of 0 is lossless.
    fill: stands for "no value", as NaN does, and is no part of the range.
    """
    reach = span(values, fill) if any(shares) else 0.0
    for share in shares:
        yield Cell(name, values, float(f"{share * reach:.3g}"), share=share)


def span(values: torch.Tensor, fill: float | None = None) -> float:
    """The range of the values: the greatest less the least. Values that are not finite, or that
    are the fill, do not count. ValueError: no value counts.
    """
    valid = values[torch.isfinite(values)] if values.is_floating_point() else values
    if fill is not None:
        valid = valid[valid != torch.tensor(fill, dtype=values.dtype)]
    if valid.numel() == 0:
        raise ValueError("all values are masked")
    low, high = (float(x) for x in valid.aminmax())
    return high - low
