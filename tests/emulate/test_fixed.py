"""Fixed point against a model in float64: ties, saturation, both ends, roundings, types."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.emulate.models.draws import words
from tests.emulate.models.integers import fixed
from tests.emulate.oracles import same, spread
from torch_cgx import emulate

WORDS = ((2, 0), (2, 100), (3, -5), (8, 4), (8, 7), (8, -3), (16, 8), (24, 23), (24, -100))


def borders(word: int, fraction: int) -> np.ndarray:
    """Integers and ties around 0 and both ends, in units of 2^-fraction, their neighbours in
    float32, and what is far beyond.
    """
    end = 2 ** (word - 1)
    near = np.arange(-8, 9) / 4
    k = np.concatenate([near, end + near, -end + near, [end / 2 + 0.5, 3 * end, -3 * end]])
    x = np.ldexp(k, -fraction).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(0))])
    return np.concatenate([x, np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 3e38, -1e-45])])


@pytest.mark.parametrize("rounding", ["nearest", "zero", "stochastic"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("word, fraction", WORDS)
def test_it_is_the_model(word, fraction, symmetric, rounding):
    rng = np.random.default_rng(0)
    inside = rng.uniform(-1.2, 1.2, 2000) * 2.0 ** (word - 1 - fraction)
    everywhere = spread(1 << 18)
    everywhere = everywhere[~np.isnan(everywhere)]
    x = np.concatenate([borders(word, fraction), everywhere, inside.astype(np.float32)])
    for bits in (24, 8) if rounding == "stochastic" else (24,):
        draws = words(len(x), 3, 5)
        format = emulate.Fixed(word, fraction, rounding, bits, symmetric)
        expected = fixed(x, word, fraction, rounding, symmetric, draws, bits)
        for dtype in (np.float32, np.float64):
            found = emulate.cast(torch.from_numpy(x.astype(dtype)), format, seed=3, step=5).numpy()
            bad = np.nonzero(~same(found, expected))[0]
            assert not len(bad), (format, dtype, x[bad[0]], found[bad[0]], expected[bad[0]])


@pytest.mark.parametrize("word, fraction", [(8, 4), (24, 20), (4, -60)])
def test_one_rounding_from_float64(word, fraction):
    """Values that float32 would round to a tie, or away from one."""
    ties = (np.arange(-9, 9) + 0.5) * 2.0**-fraction
    x = np.concatenate([ties * (1 + side * 2.0**-40) for side in (-1, 0, 1)])
    found = emulate.cast(torch.from_numpy(x), emulate.Fixed(word, fraction)).numpy()
    assert same(found, fixed(x, word, fraction)).all()


def test_sizes_and_16_bits():
    format = emulate.Fixed(8, 4)
    whole = np.random.default_rng(0).standard_normal(401).astype(np.float32) * 5
    for n in range(401):
        found = emulate.cast(torch.from_numpy(whole[:n]), format).numpy()
        assert same(found, fixed(whole[:n], 8, 4)).all(), n
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
        for other in (format, emulate.Fixed(16, 20), emulate.Fixed(5, -10, symmetric=True)):
            wide = emulate.cast(x.float(), other).to(dtype)
            assert same(emulate.cast(x, other).float().numpy(), wide.float().numpy()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_stochastic_draws_is_the_value(dtype):
    x = torch.linspace(-7, 7, 4001, dtype=dtype) / 3
    format = emulate.Fixed(8, 4, "stochastic")
    total = torch.zeros(4001, dtype=torch.float64)
    count = 400
    for step in range(count):
        total += emulate.cast(x, format, step=step)
    error = total / count - x
    step_size = 2.0**-4  # a draw's deviation is half of it at most, and .39 on average over places
    assert abs(float(error.mean())) < 4 * 0.41 * step_size / math.sqrt(count * 4001)
    assert float(error.abs().max()) < 5 * 0.5 * step_size / math.sqrt(count)


def test_what_it_costs_and_reaches():
    info = emulate.Fixed(8, 4).info(torch.empty(10))
    assert (info.bits, info.total_bits, info.side_bits) == (8, 80, 0)
    assert (info.largest, info.smallest_step) == (127 / 16, 1 / 16)
    y, found = emulate.cast(
        torch.tensor([-8.0, -8.1, 7.9, 7.9375, 8, math.inf]), emulate.Fixed(8, 4), statistics=True
    )
    assert y.tolist() == [-8, -8, 7.875, 7.9375, 7.9375, 7.9375]
    assert (found.saturations, found.nonfinite) == (2, 1)
    assert emulate.cast(torch.tensor(-8.0), emulate.Fixed(8, 4, symmetric=True)) == -7.9375
