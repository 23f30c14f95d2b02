"""SmaQ's casts against a model: statistics, roundings, types, sizes, and what is not finite."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.emulate.models import zscore as model
from tests.emulate.oracles import same
from torch_cgx import emulate

SIZES = (*range(20), *range(20, 401, 7), 31, 33, 399, 400, 4095, 4096, 4097, 70_001)
STATISTICS = ("full", "sampled", "range")
ROUNDINGS = ("nearest", "zero", "stochastic")


def values(n: int, dtype: type = np.float32) -> np.ndarray:
    """N(3, 1), some values far away."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n)
    x[::11] *= 5
    return (x + 3).astype(dtype)


def compare(x: np.ndarray, of: model.SmaQ, seed: int = 3, step: int = 5) -> None:
    found = emulate.cast(
        torch.from_numpy(x), emulate.ZScore(**dataclasses.asdict(of)), seed=seed, step=step
    ).numpy()
    expected = model.cast(x, of, seed, step)
    bad = np.nonzero(~same(found, expected))[0]
    assert not len(bad), (of, len(x), len(bad), x[bad[0]], found[bad[0]], expected[bad[0]])


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_it_is_the_model(statistics, rounding):
    of = model.SmaQ(statistics=statistics, rounding=rounding)
    for n in SIZES:
        compare(values(n), of)
        compare(values(n, np.float64), of)


@pytest.mark.parametrize(
    "changes",
    [
        {"main_bits": 3, "outlier_bits": 5},
        {"main_bits": 16, "outlier_bits": 16},
        {"main_bits": 3, "outlier_bits": 16, "rounding": "stochastic", "random_bits": 8},
        {"main_threshold": 0.5, "outlier_threshold": 6.0},
        {"main_threshold": 3.0, "outlier_threshold": 3.5},
        {"all_positive": True},
        {"clamp": False},
        {"clamp": False, "all_positive": True, "rounding": "stochastic"},
    ],
)
def test_parameters(changes):
    for statistics in STATISTICS:
        of = model.SmaQ(statistics=statistics, **changes)
        for n in (8, 100, 1023, 5000):
            compare(values(n) - 3, of)
            compare(values(n, np.float64), of)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_their_values_in_float32(dtype):
    for statistics in STATISTICS:
        format = emulate.ZScore(statistics=statistics)
        for n in (*range(60), 400, 5000):
            x = torch.from_numpy(values(n)).to(dtype)
            wide = emulate.cast(x.float(), format, seed=1)
            assert torch.equal(emulate.cast(x, format, seed=1), wide.to(dtype))


def test_an_outliers_code_stays_within_its_bits():
    """77 of 63: a word of 8 bits has a flag, a sign and 6 bits."""
    x = torch.zeros(10)
    x[9] = 1
    mean, sigma = 0.1, math.sqrt(0.1)
    y = emulate.cast(x, emulate.ZScore(rounding="zero"))
    assert y[9].item() == pytest.approx(mean + 2.5 * sigma, rel=1e-6)
    grown = emulate.cast(x, emulate.ZScore(rounding="zero", clamp=False))
    assert grown[9].item() == pytest.approx(mean + (1 + 77 / 42) * sigma, rel=1e-6)
    assert torch.equal(y[:9], grown[:9])
    for bits in (3, 6, 8, 12):
        z = torch.from_numpy(values(10_000, np.float64)) - 3
        y = emulate.cast(z, emulate.ZScore(min(bits, 6), bits, rounding="nearest"))
        most = float((y - z.mean()).abs().max() / z.std())
        assert most == pytest.approx(2.5, abs=1e-6)


def test_negative_results_become_zero_where_all_are_positive():
    x = torch.from_numpy(values(1000)).abs()
    plain = emulate.cast(x, emulate.ZScore(rounding="zero"))
    positive = emulate.cast(x, emulate.ZScore(rounding="zero", all_positive=True))
    x -= x.mean()
    assert torch.equal(positive, plain.clamp(min=0))
    y = emulate.cast(x, emulate.ZScore(rounding="zero", all_positive=True))
    assert 100 < int((y == 0).sum()) and not y.signbit().any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_all_nan(value):
    for place in (0, 8, 70_000):
        x = torch.from_numpy(values(70_001))
        x[place] = value
        for statistics in ("full", "range"):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                y = emulate.cast(x.to(dtype), emulate.ZScore(statistics=statistics))
                assert y.isnan().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clamp", [False, True])
def test_what_is_not_finite_and_no_sample_is_nan_itself(value, clamp):
    of = model.SmaQ(statistics="sampled", clamp=clamp)
    seen = set()
    for place in range(48):
        x = values(48)
        x[place] = value
        compare(x, of)
        compare(x.astype(np.float64), of)
        y = emulate.cast(torch.from_numpy(x), emulate.ZScore(**dataclasses.asdict(of)), seed=3)
        seen.add(int(y.isnan().sum()))
    assert seen == {1, 48}


@pytest.mark.parametrize("statistics", STATISTICS)
def test_tensors_without_a_sigma_stay(statistics):
    format = emulate.ZScore(statistics=statistics)
    for value in (3.3, -0.0, 1e-30, 1e20):
        for n in (0, 1, 7, 8, 9, 1000, 10_007):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                x = torch.full((n,), value, dtype=dtype)
                y = emulate.cast(x, format)
                assert torch.equal(x, y) and y.signbit().eq(x.signbit()).all()
    few = torch.from_numpy(values(7))
    assert torch.equal(emulate.cast(few, format), few)
    assert emulate.cast(few[:0].reshape(0, 3), format).shape == (0, 3)
    # Subnormal in float32: no mean and sigma describe them.
    tiny = torch.from_numpy(values(100)) * 1e-41
    assert torch.equal(emulate.cast(tiny, format), tiny)


def test_samples_follow_from_the_key():
    x = torch.from_numpy(values(5000))
    format = emulate.ZScore(statistics="sampled", rounding="zero")
    found = [
        emulate.cast(x, format, seed=seed, step=step) for seed, step in ((0, 0), (1, 0), (0, 1))
    ]
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert torch.equal(found[0], emulate.cast(x.reshape(50, 100), format).reshape(-1))
