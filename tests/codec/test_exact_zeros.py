"""`maxmin` with exact_zeros: a value that is zero decodes to zero, within the stated bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests import oracle
from tests.codec.helpers import TORCH, decode, encode, same_bits
from tests.oracle import Spec
from torch_cgx.codecs import MaxMin

WIDTHS = range(2, 9)
TINY = np.float32(2.0**-149)


def check(x: oracle.Floats, spec: Spec, shift: int = 0) -> oracle.Floats:
    """The payload is the model's, and what comes back is within the bound, zeros as zeros."""
    payload = encode(x, spec, shift=shift)
    assert payload == oracle.encode(x, spec), (len(x), spec)
    values = decode(payload, len(x), spec)
    assert same_bits(values, oracle.decode(payload, len(x), spec)), (len(x), spec)
    assert not values[x == 0].any(), (len(x), spec)
    assert (np.abs(values.astype(np.float64) - x) <= oracle.bound(x, spec)).all(), (len(x), spec)
    return values


def sparse(n: int, seed: int) -> oracle.Floats:
    """Half of the values are zeros of either sign."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n).astype(np.float32) + np.float32(rng.uniform(-2, 2))
    return np.where(rng.random(n) < 0.5, np.float32(0) * x, x).astype(np.float32)


@pytest.mark.parametrize("bucket_size", (7, 64, 100, 512))
def test_all_small_sizes(level: str, bucket_size: int) -> None:
    x = sparse(400, bucket_size)
    for n in range(401):
        bits = WIDTHS[n % 7]
        for width, stochastic in {(bits, n % 3 == 0), (4, n % 2 == 0)}:
            spec = Spec(width, bucket_size, stochastic, index=n, exact_zeros=True)
            check(x[:n], spec, shift=n % 16)


@pytest.mark.parametrize("code", (1, 2))
def test_16_bit_input(level: str, code: int) -> None:
    for n, bits in itertools.product((1, 9, 64, 257, 400, 1500), (2, 4, 8)):
        x = torch.from_numpy(sparse(n, n)).to(TORCH[code])
        spec = Spec(bits, 64, n % 2 == 1, exact_zeros=True)
        assert encode(x, spec, shift=1) == oracle.encode(x.float().numpy(), spec)


def test_every_place_of_zero_between_the_extremes(level: str) -> None:
    """Zero at each fraction of the range, at the borders of levels too, and at every magnitude."""
    rng = np.random.default_rng(1)
    for bits, stochastic in itertools.product(WIDTHS, (False, True)):
        places = np.concatenate([np.arange(1, 2**bits) / 2**bits, rng.random(200), [1e-6, 1e-30]])
        low = -places.astype(np.float32) * np.exp2(rng.integers(-140, 120, len(places)))
        high = (low / -places * (1 - places)).astype(np.float32)
        x = np.stack([low, np.zeros_like(low), high, low / 3, high / 7], 1).astype(np.float32)
        check(x.ravel(), Spec(bits, 5, stochastic, seed=3, exact_zeros=True))


def test_the_ends_of_float32(level: str) -> None:
    big = np.finfo(np.float32).max
    for bits, stochastic in itertools.product(WIDTHS, (False, True)):
        spec = Spec(bits, 4, stochastic, exact_zeros=True)
        for a in (1, 2, 3, 255, 2**16 - 1, 2**16, 2**23 - 1, 2**23):
            check(np.array([-a * TINY, 0, TINY, -0.0], np.float32), spec)
            check(np.array([a * TINY, 0, -3 * TINY, 7 * TINY], np.float32), spec)
            check(np.array([-a * TINY, 0, 1e30, 1e-30], np.float32), spec)
        # The largest range that has a grid with zero: levels - 1 steps of it fit.
        check(np.array([-big / 4, 0, big / 4, 1], np.float32), spec)
        # Of an overflow bucket the zeros are coded as ever.
        x = np.array([-big, 0, big / 2, 5], np.float32)
        assert encode(x, spec) == encode(x, Spec(bits, 4, stochastic))


def test_buckets_that_need_no_other_grid(level: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(640).astype(np.float32)
    one_sign = np.abs(x) * (rng.random(640) < 0.5)
    for values in (x, one_sign, np.zeros(640, np.float32)):
        for bits in WIDTHS:
            with_zeros, without = (Spec(bits, 64, exact_zeros=on) for on in (True, False))
            assert encode(values, with_zeros) == encode(values, without)


def test_zero_is_the_maximum(level: str) -> None:
    x = -np.abs(sparse(640, 7))
    for bits, stochastic in itertools.product(WIDTHS, (False, True)):
        check(x, Spec(bits, 64, stochastic, exact_zeros=True))


def test_stochastic_rounding_moves_no_zero(level: str) -> None:
    x = sparse(1 << 16, 5)
    for bits, seed in itertools.product(WIDTHS, range(4)):
        spec = Spec(bits, 128, True, seed, exact_zeros=True)
        values = decode(encode(x, spec), len(x), spec)
        assert not values[x == 0].any()


def test_one_bit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exact_zeros.*bits=1.*allowed: bits from 2 to 8"):
        MaxMin(bits=1, exact_zeros=True).encode(torch.ones(3))
