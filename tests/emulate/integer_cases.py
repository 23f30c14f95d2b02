"""Integers with a scale: the values that tests cast, and the comparison with a model."""

from __future__ import annotations

import numpy as np
import torch

from tests.emulate.oracles import same
from torch_cgx import emulate

SCALES = ("absmax", "power", "minmax")


def matrix(rows: int, columns: int, dtype: type = np.float32) -> np.ndarray:
    """Rows of N(0, 1) times powers of two; rows at borders: ties, zeros, of one sign, one value,
    subnormals and the ends of float32.
    """
    rng = np.random.default_rng(rows * 1000 + columns)
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-100, 100, (rows, 1)))
    for row in range(0, rows, 3):
        x[row] = (
            rng.integers(-14, 15, columns) / 2.0,  # ties of bits=4, where 7 is there
            np.abs(x[row]) + 1.0,
            -np.abs(x[row]) * 1e-3,
            np.where(np.arange(columns) == columns // 2, 5.5, 0.0),
            rng.integers(-5, 6, columns) * 2.0**-149,
            rng.choice([3.4e38, -3.4e38, 1e38, 0.0], columns),
            np.full(columns, -0.0),
        )[row // 3 % 7]
    return x.astype(dtype)


def compare(found: torch.Tensor, expected: np.ndarray, *what: object) -> None:
    wide = found.contiguous().numpy()
    bad = np.argwhere(~same(wide, expected))
    at = tuple(bad[0]) if len(bad) else ()
    assert not len(bad), (*what, len(bad), at, wide[at], expected[at])


def integers(bits: int, scale: str, per: str, rounding: str = "nearest", **more) -> emulate.Integer:
    return emulate.Integer(bits, scale, per, rounding=rounding, **more)
