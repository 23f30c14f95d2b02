"""Stochastic rounding: its random bits, its mean, and that a key repeats it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulate.models.draws import words
from tests.emulate.oracles import borders, format_of_gfloat, same
from torch_cgx import emulate


@pytest.mark.parametrize("bits", [8, 16, 24])
@pytest.mark.parametrize("name", ["fp16", "e5m2", "e4m3fn", "e3m2", "e2m3", "e2m1", "binary8p4"])
def test_every_value_rounds_as_gfloat_rounds_it_with_the_same_bits(name, bits):
    gfloat = pytest.importorskip("gfloat")
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000) * np.exp2(rng.integers(-30, 20, 4000))
    x = np.concatenate([borders(name)[:2000], x]).astype(np.float32)
    x = x[np.isfinite(x)]
    format = emulate.preset(name, rounding="stochastic", random_bits=bits, overflow="saturate")
    draws = (words(len(x), 5, 7) >> np.uint64(32 - bits)).astype(np.int64)
    mode = gfloat.RoundMode.StochasticFastest
    for dtype in (np.float32, np.float64):
        given = x.astype(dtype)
        theirs = gfloat.round_ndarray(
            format_of_gfloat(name), given.astype(np.float64), mode, True, draws, bits
        )
        ours = emulate.cast(torch.from_numpy(given), format, seed=5, step=7).numpy()
        assert same(ours, theirs).all(), (name, dtype)


def _stochastic(name, **changes):
    return emulate.preset(name, rounding="stochastic", **changes)


@pytest.mark.parametrize("name", ["e5m2", "e2m1", "mxfp4", "nvfp4", "fp8_block128"])
def test_the_mean_is_the_value(name):
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).clamp(-2.9, 2.9)
    x[:, 0] = 3  # the scale of every block
    x[:, 16::16] = 3
    format = _stochastic(name)
    sums = torch.zeros_like(x, dtype=torch.float64)
    count = 200
    for step in range(count):
        sums += emulate.cast(x, format, seed=1, step=step)
    error = sums / count - x
    spread = float(error.std())
    assert 0 < spread < 0.5
    # The mean over all elements is five standard deviations or less away.
    assert abs(float(error.mean())) < 5 * spread / len(x.flatten()) ** 0.5
    # As far as nearest rounding is off, the mean is not.
    nearest = emulate.cast(x, emulate.preset(name)) - x
    assert spread < 0.3 * float(nearest.std())


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_few_random_bits_bias_toward_zero(bits):
    """By half of 2^-bits steps, of places that are spread evenly."""
    x = 1 + torch.rand(1 << 18, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = emulate.cast(x, emulate.Float(8, 0, rounding="stochastic", random_bits=bits))
    step = 1.0
    assert float((y - x).mean()) == pytest.approx(-step * 2.0**-bits / 2, abs=0.004)


def test_a_key_repeats_a_result_and_each_part_of_it_changes_it():
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    format = _stochastic("e4m3fn")
    first = emulate.cast(x, format, seed=3, step=4, number=5)
    assert torch.equal(first, emulate.cast(x, format, seed=3, step=4, number=5))
    keys = [(0, 4, 5), (3, 0, 5), (3, 4, 0), (4, 3, 5), (3, 5, 4), (2**64 - 1, 4, 5)]
    others = [emulate.cast(x, format, seed=a, step=b, number=c) for a, b, c in keys]
    found = [first, *others]
    for i, one in enumerate(found):
        for other in found[:i]:
            # Of two independent draws, between values that differ evenly, a third differs.
            assert 0.2 < float((one != other).float().mean()) < 0.5
    assert torch.equal(emulate.cast(x, format), emulate.cast(x, format, seed=0, step=0, number=0))


def test_an_element_draws_by_its_number():
    x = torch.full((4, 5), 1.1)
    format = _stochastic("e2m1")
    y = emulate.cast(x.expand(4, 5), format)
    assert torch.equal(emulate.cast(x.reshape(20), format).reshape(4, 5), y)
    turned = torch.full((5, 4), 1.1).t()
    assert torch.equal(emulate.cast(turned, format), y)
    assert len(emulate.cast(torch.full((1000,), 1.1), format).unique()) == 2
    assert torch.equal(emulate.cast(torch.full((1000,), 1.0), format), torch.ones(1000))


@pytest.mark.parametrize("name", ["e4m3fn", "mxfp4", "nvfp4"])
def test_threads_and_dtypes_do_not_change_the_draws(name):
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(0)).bfloat16()
    format = _stochastic(name)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = emulate.cast(x, format, seed=9)
        torch.set_num_threads(2)
        two = emulate.cast(x, format, seed=9)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)
    assert torch.equal(one, emulate.cast(x.float(), format, seed=9).bfloat16())
