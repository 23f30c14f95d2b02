"""Every byte of `maxmin` against the numpy model: sizes, buckets, widths, types, levels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import oracle
from tests.codec.helpers import BITS, BUCKETS, TORCH, decode, encode, same_bits
from tests.oracle import Spec


def check(x: oracle.Floats, spec: Spec, shift: int = 0) -> None:
    expected = oracle.encode(x, spec)
    payload = encode(x, spec, shift=shift)
    assert payload == expected, (len(x), spec)
    values = decode(payload, len(x), spec)
    assert same_bits(values, oracle.decode(payload, len(x), spec)), (len(x), spec)
    assert (np.abs(values.astype(np.float64) - x) <= oracle.bound(x, spec)).all(), (len(x), spec)


@pytest.mark.parametrize("bucket_size", (7, 64, 100))
def test_all_small_sizes(level: str, bucket_size: int) -> None:
    x = np.random.default_rng(bucket_size).standard_normal(400).astype(np.float32)
    for n in range(401):
        bits = 1 + n % 8
        for width in {bits, 4}:
            check(x[:n], Spec(width, bucket_size, stochastic=n % 3 == 0, index=n), shift=n % 16)


@pytest.mark.parametrize("bucket_size", BUCKETS)
def test_borders(level: str, bucket_size: int) -> None:
    rng = np.random.default_rng(bucket_size)
    borders = {bucket_size * k + d for k in (1, 2, 3) for d in (-1, 0, 1)}
    borders |= {1023, 1024, 1025, 2048 + 17} if bucket_size > 3 else {97, 1025}
    x = rng.standard_normal(max(borders)).astype(np.float32)
    for bits in BITS:
        for n in sorted(borders):
            spec = Spec(
                bits, bucket_size, stochastic=(n + bits) % 2 == 0, seed=bits, rank=1, sequence=n
            )
            check(x[:n], spec, shift=bits)


@pytest.mark.parametrize("code", (1, 2))
@pytest.mark.parametrize("bucket_size", (1, 7, 33, 64, 512))
def test_16_bit_input_is_the_same_as_its_float32(level: str, code: int, bucket_size: int) -> None:
    torch.manual_seed(bucket_size)
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 400, 1024, 1500):
        x = torch.randn(n).to(TORCH[code])
        x[:1] = torch.finfo(TORCH[code]).tiny / 4  # a subnormal
        for bits in (1, 3, 4, 7, 8):
            spec = Spec(bits, bucket_size, stochastic=n % 2 == 1, seed=7)
            payload = encode(x, spec, shift=n % 4)
            assert payload == oracle.encode(x.float().numpy(), spec), (n, spec)
            values = decode(payload, n, spec, code=code)
            assert same_bits(values, oracle.decode(payload, n, spec))


@pytest.mark.parametrize("code", (0, 1, 2))
def test_skip_incomplete_buckets_sends_the_rest_raw(level: str, code: int) -> None:
    torch.manual_seed(code)
    for bucket_size in (3, 64, 100):
        for n in (0, 1, 2, 3, 5, 63, 64, 65, 99, 100, 101, 199, 200, 1111):
            spec = Spec(5, bucket_size)
            x = torch.randn(n).to(TORCH[code])
            full = n // bucket_size * bucket_size
            payload = encode(x, spec, skip=True, shift=1)
            head = oracle.encode(x[:full].float().numpy(), spec)
            assert payload == head + x[full:].view(torch.uint8).numpy().tobytes()
            values = decode(payload, n, spec, skip=True, code=code)
            assert same_bits(values[:full], oracle.decode(head, full, spec))
            assert same_bits(values[full:], x[full:].float().numpy())


def test_a_bucket_of_everything(level: str) -> None:
    x = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    for bits in BITS:
        check(x, Spec(bits, 10**9))


def test_counter_crosses_2_to_32_within_a_bucket(level: str) -> None:
    x = np.random.default_rng(1).standard_normal(3000).astype(np.float32)
    for index in (2**32 - 1, 2**32 - 700, 5 * 2**32 - 1500, 2**40 + 3):
        check(x, Spec(4, 512, stochastic=True, seed=9, rank=3, index=index))


@pytest.mark.parametrize(
    ("bits", "bucket_size", "expected"),
    [(4, 512, 0.117), (8, 512, 0.0069), (4, 1024, 0.123), (4, 128, 0.100)],
)
def test_relative_error_on_gaussian_values(bits: int, bucket_size: int, expected: float) -> None:
    x = np.random.default_rng(2).standard_normal(1 << 20).astype(np.float32)
    spec = Spec(bits, bucket_size)
    error = decode(encode(x, spec), len(x), spec) - x
    relative = np.linalg.norm(error) / np.linalg.norm(x)
    assert relative == pytest.approx(expected, rel=0.05)
