"""Runs encoded and decoded in parts, sums, and the raw codec."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests import _machinery, oracle
from tests.codec.helpers import (
    BITS,
    TORCH,
    arguments,
    check_guards,
    decode,
    encode,
    guarded,
    same_bits,
    tensor_bytes,
)
from tests.oracle import Spec
from torch_cgx import _C

CASES = list(itertools.product(BITS, (1, 3, 33, 64, 100)))


@pytest.mark.parametrize("skip", (False, True))
def test_parts_equal_the_whole(level: str, skip: bool) -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal(3333).astype(np.float32)
    y0 = rng.standard_normal(3333).astype(np.float32)
    for bits, bucket_size in CASES:
        spec = Spec(bits, bucket_size, stochastic=bits % 2 == 0, index=12345)
        args, n = arguments(spec, skip), len(x)
        whole = encode(x, spec, skip)
        block = args[0].block
        assert block % bucket_size == 0 and block % 8 == 0
        step = block * max(1, 700 // block)
        memory, payload = guarded(len(whole), 3)
        values, sums = np.zeros_like(x), y0.copy()
        # Last part first: a part must not touch its neighbours.
        for first in reversed(range(0, n, step)):
            size = min(step, n - first)
            _machinery.codec_encode(
                *args,
                x[first:].ctypes.data,
                0,
                size,
                0,
                0,
                payload.ctypes.data,
                index=12345,
                first=first,
                count=n,
            )
        check_guards(memory, len(whole), 3)
        assert payload.tobytes() == whole, spec
        for first in range(0, n, step):
            size = min(step, n - first)
            for out, add in ((values, False), (sums, True)):
                _machinery.codec_decode(
                    *args,
                    payload.ctypes.data,
                    0,
                    size,
                    out[first:].ctypes.data,
                    add,
                    first=first,
                    count=n,
                )
        expected = decode(whole, n, spec, skip)
        assert same_bits(values, expected)
        assert same_bits(sums, y0 + expected)


def test_decode_add_is_one_float32_sum(level: str) -> None:
    rng = np.random.default_rng(9)
    for n in (1, 7, 8, 15, 16, 17, 100, 513, 2000):
        y = rng.standard_normal(n).astype(np.float32)
        for bits, bucket_size in CASES:
            spec = Spec(bits, bucket_size)
            payload = oracle.encode(rng.standard_normal(n).astype(np.float32), spec)
            assert same_bits(
                decode(payload, n, spec, add_to=y), y + oracle.decode(payload, n, spec)
            )


def test_a_rank_s_shard_has_the_codes_of_the_whole(level: str) -> None:
    x = np.random.default_rng(10).standard_normal(2048).astype(np.float32)
    for bits in BITS:
        whole = Spec(bits, 64, stochastic=True, rank=1)
        values = decode(encode(x, whole), len(x), whole)
        for cut in (64, 640, 1984):
            tail = Spec(bits, 64, stochastic=True, rank=1, index=cut)
            assert same_bits(decode(encode(x[cut:], tail), len(x) - cut, tail), values[cut:])


@pytest.mark.parametrize(
    ("first", "n", "count"),
    [(4, 64, 128), (0, 65, 128), (64, 128, 128), (192, 1, 128), (0, 2**63, 128)],
)
def test_parts_off_the_grid_are_refused(first: int, n: int, count: int) -> None:
    with pytest.raises(ValueError, match="first=.*allowed"):
        _machinery.codec_encode(*arguments(Spec(4, 64)), 0, 0, n, 0, 0, 0, first=first, count=count)


@pytest.mark.parametrize("code", (0, 1, 2))
def test_raw(level: str, code: int) -> None:
    raw = (_C.Codec("raw"),)
    torch.manual_seed(0)
    for n in (0, 1, 5, 16, 17, 100):
        x = torch.randn(n).to(TORCH[code])
        size = _machinery.codec_encoded_bytes(*raw, n, code)
        assert size == n * x.itemsize
        memory, payload = guarded(size, 1)
        _machinery.codec_encode(*raw, x.data_ptr(), code, n, 0, 0, payload.ctypes.data)
        assert payload.tobytes() == tensor_bytes(x).tobytes()
        single = torch.randn(n)
        _machinery.codec_encode(
            *raw, single.data_ptr(), code, n, 0, 0, payload.ctypes.data, x_dtype_code=0
        )
        check_guards(memory, size, 1)
        assert payload.tobytes() == tensor_bytes(single.to(TORCH[code])).tobytes()
        y = torch.ones(n)
        _machinery.codec_decode(*raw, payload.ctypes.data, code, n, y.data_ptr(), True)
        assert torch.equal(y, 1 + single.to(TORCH[code]).float())
        _machinery.codec_decode(*raw, payload.ctypes.data, code, n, y.data_ptr(), False)
        assert torch.equal(y, single.to(TORCH[code]).float())


def test_rest_of_a_float32_sum_is_narrowed(level: str) -> None:
    x = torch.randn(130)
    args = arguments(Spec(4, 64), skip=True)
    payload = np.zeros(_machinery.codec_encoded_bytes(*args, 130, 2), np.uint8)
    _machinery.codec_encode(*args, x.data_ptr(), 2, 130, 0, 0, payload.ctypes.data, x_dtype_code=0)
    head = oracle.encode(x[:128].numpy(), Spec(4, 64))
    assert payload.tobytes() == head + tensor_bytes(x[128:].bfloat16()).tobytes()


def test_wrong_narrowing_is_refused() -> None:
    x = torch.zeros(16, dtype=torch.float16)
    with pytest.raises(ValueError, match="x_dtype is float16, allowed: float32 or bfloat16"):
        _machinery.codec_encode(
            _C.Codec("raw"),
            x.data_ptr(),
            2,
            16,
            0,
            0,
            x.data_ptr(),
            x_dtype_code=1,
        )
