"""Integers with a scale against a model: scales, roundings, types, sizes, ends of ranges."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.emulate.integer_cases import SCALES, compare, integers, matrix
from tests.emulate.models import integers as model
from tests.emulate.models.draws import words
from torch_cgx import emulate

ROUNDINGS = ("nearest", "zero", "stochastic")
BITS = (2, 3, 4, 8, 16)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bits", BITS)
def test_each_row_is_the_models(bits, scale, rounding):
    for dtype in (np.float32, np.float64):
        for columns in (1, 2, 33, 400):
            x = matrix(22, columns, dtype)
            draws = words(x.size, 3, 5)
            of = model.Integers(bits, scale, rounding)
            expected = model.groups(x, of, columns, draws)
            found = emulate.cast(
                torch.from_numpy(x), integers(bits, scale, "row", rounding), seed=3, step=5
            )
            compare(found, expected, bits, scale, rounding, dtype, columns)


@pytest.mark.parametrize("scale", SCALES)
def test_sizes(scale):
    of = model.Integers(scale=scale)
    x = matrix(2, 401)[1]
    for n in (*range(401), 4095, 4096, 4097, 70_001):
        given = x[:n] if n <= 400 else matrix(2, n)[1]
        found = emulate.cast(torch.from_numpy(given), integers(8, scale, "tensor"))
        compare(found, model.integers(given, of), scale, n)


@pytest.mark.parametrize("scale", SCALES)
def test_16_bits_are_their_values_in_float32(scale):
    for dtype, per in itertools.product(
        (torch.float16, torch.bfloat16), ("tensor", "row", "block")
    ):
        x = torch.from_numpy(matrix(22, 33).clip(-6e4, 6e4)).to(dtype)
        format = integers(8, scale, per, size=16)
        wide = emulate.cast(x.float(), format).to(dtype)
        assert torch.equal(emulate.cast(x, format), wide)


@pytest.mark.parametrize("scale", ["absmax", "minmax"])
def test_zero_stays_zero_and_results_are_finite(scale):
    """With a power of two as scale, a value may round to 2^128."""
    for bits in BITS:
        x = matrix(66, 50)
        y = emulate.cast(torch.from_numpy(x), integers(bits, scale, "row")).numpy()
        assert (y[x == 0] == 0).all() and np.isfinite(y).all()
        y = emulate.cast(torch.from_numpy(x), integers(bits, scale, "tensor")).numpy()
        assert np.isfinite(y).all()


@pytest.mark.parametrize("scale", SCALES)
def test_float64_beyond_float32_saturates(scale):
    """Scales are float32."""
    for unit in (1e300, 1e-300):
        x = np.array([1.0, -2.0, 0.5, 0.0]) * unit
        found = emulate.cast(torch.from_numpy(x), integers(8, scale, "tensor"))
        compare(found, model.integers(x, model.Integers(scale=scale)), scale, unit)
        assert found.isfinite().all()


def test_the_mean_of_stochastic_draws_is_the_value():
    x = torch.from_numpy(matrix(2, 4000)[1:])
    for scale in SCALES:
        format = integers(4, scale, "tensor", "stochastic")
        numbers = emulate.cast(x, format).unique()
        step = float(numbers.diff().min())
        # The zero point is an integer, so minmax moves the ends by up to half a step.
        inside = (x >= numbers[0]) & (x <= numbers[-1])
        assert int(inside.sum()) > 3990
        total = torch.zeros(x.shape, dtype=torch.float64)
        for number in range(200):
            total += emulate.cast(x, format, step=number)
        error = ((total / 200 - x) / step)[inside]
        assert abs(float(error.mean())) < 4 * 0.41 / math.sqrt(200 * 4000), scale
        assert float(error.abs().max()) < 5 * 0.5 / math.sqrt(200), scale
