"""Named formats whose oracle is a model in NumPy, and how many values of a cast differ from it. The
table of docs/formats.md counts by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.emulate.models import integers, s2fp8, zscore
from tests.emulate.models.draws import words
from tests.emulate.oracles import same
from torch_cgx import emulate

Floats = npt.NDArray[np.float32]
Sure = npt.NDArray[np.bool_]


def matrix() -> Floats:
    """2^18 values of N(0, 1), rows of which are scaled by powers of two; zeros among them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 512)) * np.exp2(rng.integers(-3, 4, (512, 1)))
    x[::8, ::5] = 0
    return x.astype(np.float32)


def _integers(bits: int, size: int) -> Callable[[Floats], tuple[Floats, Sure]]:
    def cast(x: Floats) -> tuple[Floats, Sure]:
        rows = x.reshape(-1, size)
        found = integers.groups(rows, integers.Integers(bits), size)
        return found.reshape(x.shape), np.ones(x.shape, bool)

    return cast


def _smaq(x: Floats) -> tuple[Floats, Sure]:
    of = zscore.SmaQ(rounding="stochastic")
    return zscore.cast(x.ravel(), of).reshape(x.shape), np.ones(x.shape, bool)


def _s2fp8(x: Floats) -> tuple[Floats, Sure]:
    found, sure = s2fp8.cast(x.ravel(), "nearest", words(x.size, 0, 0))
    return found.astype(np.float32).reshape(x.shape), sure.reshape(x.shape)


MODELS: dict[str, Callable[[Floats], tuple[Any, Sure]]] = {
    "int8": _integers(8, 512 * 512),
    "int4": _integers(4, 128),
    "smaq": _smaq,
    "s2fp8": _s2fp8,
}


def differ(name: str) -> tuple[int, int]:
    """How many values differ from the model's, and of how many."""
    x = matrix()
    expected, sure = MODELS[name](x)
    found = emulate.cast(torch.from_numpy(x), name).numpy()
    if name == "s2fp8":  # logarithms of float64 differ in the last bit, and so may float32 numbers
        steps = np.abs(found.view(np.int32).astype(np.int64) - expected.view(np.int32))
        return int((steps[sure] > 1).sum()), int(sure.sum())
    return int((~same(found, expected))[sure].sum()), int(sure.sum())
