"""Stochastic rounding is unbiased, replayable, and independent between ranks, calls, stages and
seeds.

Seeds are fixed, so the tests either always pass or always fail; limits are 5 standard deviations.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests import _machinery, oracle
from tests.codec.helpers import BITS, decode, encode
from tests.oracle import Spec

N = 1 << 16


def moved_up(spec: Spec, fraction: float, n: int = N) -> np.ndarray:
    """Which of n equal values, `fraction` above code 0, were rounded up. Value 0 and 1 pin the
    bucket's range."""
    levels = 2**spec.bits - 1
    x = np.full(n, fraction, np.float32)
    x[0], x[1] = 0, levels
    values = decode(
        encode(x, dataclasses.replace(spec, bucket_size=n)),
        n,
        dataclasses.replace(spec, bucket_size=n),
    )
    return values[2:] > 0


@pytest.mark.parametrize("fraction", (0.001, 0.1, 0.25, 0.5, 0.9, 0.999))
def test_probability_is_the_fraction(fraction: float) -> None:
    for bits in BITS:
        up = moved_up(Spec(bits, stochastic=True, seed=bits), fraction)
        deviation = np.sqrt(fraction * (1 - fraction) / len(up))
        assert abs(up.mean() - fraction) < 5 * deviation


def test_mean_over_calls_is_the_value() -> None:
    x = np.random.default_rng(11).standard_normal(2048).astype(np.float32)
    calls = 400
    total = np.zeros(len(x))
    for sequence in range(calls):
        spec = Spec(2, 512, stochastic=True, sequence=sequence)
        total += decode(encode(x, spec), len(x), spec)
    meta = np.frombuffer(encode(x, Spec(2, 512)), np.float32, 8).reshape(4, 2)
    unit = np.repeat(meta[:, 0], 512)
    # At most half a unit of standard deviation for one value; and no common drift.
    error = (total / calls - x) / unit
    assert np.abs(error).max() < 5 * 0.5 / np.sqrt(calls)
    assert abs(error.mean()) < 5 * 0.5 / np.sqrt(calls * len(x))


@pytest.mark.parametrize("field", ("rank", "sequence", "stage", "seed", "index"))
def test_streams_are_independent(field: str) -> None:
    base = Spec(1, stochastic=True, seed=77)
    first = moved_up(base, 0.5).astype(np.float64) - 0.5
    for value in (1, 2, 3, 255, 1 << 16, 1 << 31 if field not in ("rank", "stage") else 1 << 30):
        other = moved_up(dataclasses.replace(base, **{field: value}), 0.5).astype(np.float64) - 0.5
        for lag in range(4):
            product = first[lag:] * other[: len(other) - lag]
            if field == "index" and lag == value:
                continue  # the same element's number: the same u, by contract
            assert abs(product.mean()) < 5 * 0.25 / np.sqrt(len(product)), (field, value, lag)


def test_an_index_is_the_number_of_the_value() -> None:
    a, b = oracle.uniform(Spec(index=0), 100), oracle.uniform(Spec(index=40), 60)
    assert (a[40:] == b).all()


def test_uniform_in_24_bits() -> None:
    for rank in range(3):
        u = oracle.uniform(Spec(rank=rank, seed=4), 1 << 20).astype(np.float64)
        assert u.min() >= 0 and u.max() < 1
        counts = np.histogram(u, 256, (0, 1))[0]
        expected = len(u) / 256
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
        for lag in (1, 2, 3, 4, 8, 16, 32, 64, 512, 4096):
            product = (u[lag:] - 0.5) * (u[:-lag] - 0.5)
            assert abs(product.mean()) < 5 / 12 / np.sqrt(len(product)), lag
            pairs = np.histogram2d(u[lag:], u[:-lag], 64, ((0, 1), (0, 1)))[0]
            expected = len(product) / 64**2
            chi2 = ((pairs - expected) ** 2 / expected).sum()
            assert abs(chi2 - 64**2) < 5 * np.sqrt(2 * 64**2), lag


def test_engine_and_model_share_the_generator() -> None:
    for index in (0, 1, 2**32 - 1, 2**32, 3 * 2**32 + 5, 2**63):
        spec = Spec(seed=2**64 - 1, sequence=2**63, rank=7, stage=2, index=index)
        bits = _machinery.codec_random_bits(spec.seed, spec.sequence, spec.rank, spec.stage, index)
        assert (~bits & 0xFFFFFFFF) // 2**8 * 2.0**-24 == oracle.uniform(spec, 1)[0]


def test_same_key_same_bytes() -> None:
    x = np.random.default_rng(12).standard_normal(5000).astype(np.float32)
    spec = Spec(4, 512, stochastic=True, seed=3, sequence=8, rank=2)
    assert encode(x, spec) == encode(x, spec)
    for field in ("seed", "sequence", "rank", "stage", "index"):
        assert encode(x, dataclasses.replace(spec, **{field: 9})) != encode(x, spec), field
