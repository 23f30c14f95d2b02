"""Values at the edges of float32: ranges that overflow, subnormals, NaN and Inf, zeros,
constants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests import _machinery, oracle
from tests.codec.conftest import LEVELS
from tests.codec.helpers import BITS, decode, encode, same_bits
from tests.oracle import Spec

MAX = np.finfo(np.float32).max
TINY = np.float32(2.0**-149)


def check(x: oracle.Floats, spec: Spec) -> oracle.Floats:
    payload = encode(x, spec)
    assert payload == oracle.encode(x, spec)
    values = decode(payload, len(x), spec)
    assert same_bits(values, oracle.decode(payload, len(x), spec))
    if np.isfinite(x).all():
        assert np.isfinite(values).all()
        assert (np.abs(values.astype(np.float64) - x) <= oracle.bound(x, spec)).all()
    return values


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("stochastic", (False, True))
def test_scale_does_not_matter(level: str, bits: int, stochastic: bool) -> None:
    x = np.random.default_rng(3).standard_normal(2048).astype(np.float32)
    spec = Spec(bits, 512, stochastic)
    reference = decode(encode(x, spec), len(x), spec)
    for exponent in (
        -100,
        -99,
        -30,
        30,
        99,
        100,
    ):  # 1e-30 to 1e30 and beyond: powers of two are exact
        scaled = check(x * np.float32(2.0**exponent), spec)
        assert same_bits(scaled, reference * np.float32(2.0**exponent))


@pytest.mark.parametrize("bits", BITS)
def test_ranges_that_overflow(level: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for low, high in (
        (-3e38, 3e38),
        (-MAX, MAX),
        (0.0, MAX),
        (-MAX, 0.0),
        (-MAX, 1e38),
        (-1e-30, MAX),
        (1e38, MAX),
    ):
        x = rng.uniform(0, 1, 300) * (np.float64(high) - low) + low
        x[17], x[211] = low, high
        for stochastic in (False, True):
            check(x.astype(np.float32), Spec(bits, 100, stochastic))
            check(x.astype(np.float32), Spec(bits, 300, stochastic))


@pytest.mark.parametrize("bits", BITS)
def test_subnormals(level: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for quanta in (1, 2, 3, 100, 357, 1000, 2**20, 2**23, 2**24, 2**31):
        x = (rng.integers(0, quanta + 1, 300).astype(np.float64) * 2.0**-149).astype(np.float32)
        x[5], x[6] = 0, np.float32(quanta * 2.0**-149)
        for stochastic in (False, True):
            check(x, Spec(bits, 100, stochastic))
            check(-x, Spec(bits, 64, stochastic))
            check(x + np.float32(2.0**-126), Spec(bits, 100, stochastic))


@pytest.mark.parametrize(
    "value", (0.0, -0.0, 1.0, -3.7, 1e-45, -1e-40, 1e30, float(MAX), -float(MAX))
)
def test_constant_buckets_are_exact(level: str, value: float) -> None:
    for n in (1, 5, 64, 130):
        for bits in BITS:
            x = np.full(n, value, np.float32)
            values = check(x, Spec(bits, 64, stochastic=bits % 2 == 0))
            assert same_bits(values, x + np.float32(0))


def test_zeros_of_either_sign_are_the_same(level: str) -> None:
    rng = np.random.default_rng(4)
    for other in ((), (1.0,), (-1.0,)):
        for _ in range(20):
            x = np.concatenate([rng.choice([0.0, -0.0], 40), other]).astype(np.float32)
            rng.shuffle(x)
            for bits in (1, 4, 8):
                check(x, Spec(bits, 64))
                assert encode(x, Spec(bits, 64)) == encode(x + np.float32(0), Spec(bits, 64))


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("bucket_size", (5, 33, 64, 100))
def test_nonfinite_values_stay_in_their_bucket(level: str, value: float, bucket_size: int) -> None:
    clean = np.random.default_rng(5).standard_normal(3 * bucket_size + 2).astype(np.float32)
    for position in range(len(clean)):
        bits = 1 + position % 8
        spec = Spec(bits, bucket_size, stochastic=position % 2 == 1)
        x = clean.copy()
        x[position] = value
        values = check(x, spec)
        bucket = slice(
            position // bucket_size * bucket_size, (position // bucket_size + 1) * bucket_size
        )
        hit = np.zeros(len(x), bool)
        hit[bucket] = True
        assert np.isnan(values[hit]).all()
        assert same_bits(values[~hit], decode(encode(clean, spec), len(x), spec)[~hit])


def test_signalling_and_negative_nans(level: str) -> None:
    for bits in (0x7F800001, 0xFFC00000, 0xFF800001, 0x7FFFFFFF):
        x = np.ones(100, np.float32)
        x.view(np.uint32)[37] = bits
        assert encode(x, Spec(4, 100)) == oracle.encode(x, Spec(4, 100))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_nonfinite_16_bit_values(level: str, dtype: torch.dtype) -> None:
    for value in (float("nan"), float("inf"), -float("inf")):
        for position in range(40):
            x = torch.ones(100, dtype=dtype)
            x[position] = value
            assert encode(x, Spec(3, 20)) == oracle.encode(x.float().numpy(), Spec(3, 20))


def test_spikes(level: str) -> None:
    rng = np.random.default_rng(6)
    for spike in (1e3, -1e6, 1e20, 1e38):
        x = rng.standard_normal(1024).astype(np.float32)
        x[rng.integers(0, 1024, 3)] = spike
        for bits in BITS:
            check(x, Spec(bits, 512))
            check(x, Spec(bits, 100, stochastic=True))


def test_representable_values_do_not_move(level: str) -> None:
    for bits in BITS:
        grid = (np.arange(2**bits) * 0.25 - 3).astype(np.float32)
        x = np.concatenate([grid, np.random.default_rng(7).choice(grid, 500)])
        for stochastic in (False, True):
            assert same_bits(check(x, Spec(bits, 10_000, stochastic)), x)


def test_ties_go_to_even_codes(level: str) -> None:
    x = np.array([0.0, 0.5, 1.5, 2.5, 3.0, 1.0, 2.0], np.float32)  # unit 1 with 2 bits
    assert decode(encode(x, Spec(2, 7)), 7, Spec(2, 7)).tolist() == [0, 0, 2, 2, 3, 1, 2]


def test_flush_to_zero_does_not_change_bytes(level: str) -> None:
    x = (np.arange(200) * 2.0**-147).astype(np.float32)
    y = (np.arange(200, 0, -1) * 2.0**-146).astype(np.float32)
    spec = Spec(5, 64)
    expected = encode(x, spec)
    total = decode(expected, 200, spec, add_to=y)
    torch.set_flush_denormal(True)
    try:
        flushed = encode(x, spec)
        flushed_total = decode(expected, 200, spec, add_to=y)
    finally:
        torch.set_flush_denormal(False)
    assert flushed == expected == oracle.encode(x, spec)
    assert same_bits(flushed_total, total)


@settings(max_examples=300, deadline=None)
@given(
    x=hnp.arrays(np.uint32, st.integers(1, 80), elements=st.integers(0, 2**32 - 1)),
    bits=st.integers(1, 8),
    bucket_size=st.integers(1, 90),
    stochastic=st.booleans(),
)
def test_any_bits_at_all(x: np.ndarray, bits: int, bucket_size: int, stochastic: bool) -> None:
    values, spec = x.view(np.float32), Spec(bits, bucket_size, stochastic)
    expected = oracle.encode(values, spec)
    for name in LEVELS:
        _machinery.pin_cpu_level(name)
        assert encode(values, spec) == expected, name
        assert same_bits(decode(expected, len(x), spec), oracle.decode(expected, len(x), spec)), (
            name
        )
    _machinery.pin_cpu_level("")
