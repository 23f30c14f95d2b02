"""What error-bounded compressors are measured on: tensors, and the bounds of each.

This file, `fields.py` and `discrete.py` make tensors anew from fixed seeds, so equal sizes give
equal bits. `packages.py` reads tensors from packages that `make bench-peers` downloads. Most bounds
are shares of the range of the values; every method gets the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from benchmarks.compressors import discrete, fields, packages
from benchmarks.compressors.cell import Cell, Maker, Sizes, by_range, gaussian_bits
from benchmarks.training import state

__all__ = ["CORPORA", "KINDS", "MEMORY", "Cell", "Sizes", "cells", "gaussian_bits"]

MEMORY = "N(0,.02), from memory"


def cells(names: list[str], sizes: Sizes) -> Iterator[Cell]:
    """The cells of these corpora of `CORPORA`, each made when it is wanted."""
    kinds = {name: kind for kind, makers in KINDS.items() for name in makers}
    for name in names:
        for cell in CORPORA[name](name, sizes):
            yield replace(cell, kind=kinds[name])


# ---- the corpora


def _normal(sigma: float, bounds: tuple[float, ...], large: bool = False) -> Maker:
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
    yield from by_range(name, _gpt(sizes.steps)[name])


def _digits(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield from by_range(name, _images())


def _digits_uint8(name: str, sizes: Sizes) -> Iterator[Cell]:
    yield Cell(name, _images().to(torch.uint8), 0.0)


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


# Makers by kind of data and by name; each gives the cells of its corpus.
KINDS: dict[str, dict[str, Maker]] = {
    "noise and tensors of a training": {
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
    },
    "smooth fields": fields.SMOOTH,
    "masked fields": fields.MASKED,
    "discrete values": discrete.CORPORA,
    "fields from packages": packages.FIELDS,
    "weights and images from packages": packages.WEIGHTS,
}
CORPORA = {name: maker for makers in KINDS.values() for name, maker in makers.items()}
