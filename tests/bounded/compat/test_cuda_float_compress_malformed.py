"""Payloads of the original format that are cut, altered or forged are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.bounded.compat import cuda_float_compress_model as model
from tests.bounded.compat.cuda_float_compress_calls import compress, data_of, decompress, tensor_of
from torch_cgx.compat.cuda_float_compress import (
    CuszplusError,
    cuszplus_decompress,
)


@pytest.fixture(scope="module")
def small():
    return data_of(compress(np.random.RandomState(4).randn(50), 1e-4))


def test_payloads_as_the_original_writes_them_are_read():
    for n in (1, 5000, 300000):
        x = (np.random.RandomState(n).randn(n) * 0.02).astype(np.float32)
        step = np.float32(2e-4)
        raw = model.shuffled(model.zigzag_of(model.original_quotients(x, step)))
        assert np.array_equal(decompress(model.payload(raw, n, step)), model.decoded(raw, n, step))


def test_a_payload_that_is_cut_anywhere_is_an_error(small):
    for end in range(len(small)):
        with pytest.raises(CuszplusError):
            decompress(small[:end])
    with pytest.raises(CuszplusError, match="2 bytes behind"):
        decompress(small + b"\0\0")
    with pytest.raises(CuszplusError):
        decompress(small + small[12:])


def test_flipped_bits_are_an_error_or_change_nothing(small):
    """But for those of count and step, which no checksum covers."""
    expected = decompress(small)
    unnoticed = set()
    for place in range(len(small)):
        for bit in range(8):
            changed = bytearray(small)
            changed[place] ^= 1 << bit
            try:
                y = decompress(changed)
            except CuszplusError:
                continue
            if y.size != expected.size or not np.array_equal(y, expected, equal_nan=True):
                unnoticed.add(place)
    assert {4, 5, 8} <= unnoticed <= {*range(4, 12)}


def _frame(size, blocks):
    """A Zstandard frame that claims `size` bytes. blocks: (kind, size in its header, content)."""
    data = b"\x28\xb5\x2f\xfd" + bytes([0xC0, 0x38]) + size.to_bytes(8, "little")
    for i, (kind, length, content) in enumerate(blocks):
        head = (i == len(blocks) - 1) | kind << 1 | length << 3
        data += head.to_bytes(3, "little") + content
    return data


RAW, REPEATED = 0, 1


ZEROS = (REPEATED, 131072, b"\0")


def test_blocks_that_repeat_a_byte_are_read():
    y = decompress(model.header(100 * 32768, 1.0) + _frame(100 * 131072, [ZEROS] * 100))
    assert y.shape == (100 * 32768,) and not y.any()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes"),
        (b"\3\2\1\0" + bytes(7), "11 bytes"),
        (b"\0\1\2\3" + bytes(30), "0x03020100, not with 0x00010203"),
        (model.header(2**31, 1.0) + _frame(0, [ZEROS]), "claims 2147483648 values"),
        (model.header(1, 0.0) + _frame(131072, [ZEROS]), "step is 0.0"),
        (model.header(1, -1.0) + _frame(131072, [ZEROS]), "step is -1.0"),
        (model.header(1, np.nan) + _frame(131072, [ZEROS]), "step is nan"),
        (model.header(1, np.inf) + _frame(131072, [ZEROS]), "step is inf"),
        (model.header(1, 1.0), "no Zstandard frame"),
        (model.header(0, 1.0), "no Zstandard frame"),
        (model.header(1, 1.0) + b"\x50\x2a\x4d\x18\4\0\0\0abcd", "no Zstandard frame"),
        (model.header(1, 1.0) + b"\x28\xb5\x2f\xfd", "malformed"),
        (model.header(32769, 1.0) + _frame(131072, [ZEROS]), "131072 bytes, .* 262144"),
        (model.header(0, 1.0) + _frame(131072, [ZEROS]), "131072 bytes, .* 0"),
        (model.header(2**31 - 1, 1.0) + _frame(65536 * 131072, [ZEROS]), "1 blocks, too few"),
        (model.header(40000, 1.0) + _frame(262144, [ZEROS, (RAW, 0, b"")]), "malformed|less"),
        (model.header(40000, 1.0) + _frame(262144, [ZEROS] * 3), "malformed|more"),
        (model.header(1, 1.0) + _frame(131072, [(RAW, 131072, b"abc")]), "is cut"),
        (model.header(1, 1.0) + _frame(131072, [(3, 4, b"abcd")]), "malformed"),
        (model.header(1, 1.0) + _frame(131072, [(2, 4, b"abcd")]), "malformed"),
    ],
)
def test_malformed_payloads_are_named(data, words):
    with pytest.raises(CuszplusError, match=words):
        decompress(data)


def test_forged_counts_allocate_nothing(monkeypatch, small):
    forged = [
        model.header(2**31 - 1, 1.0) + small[12:],
        model.header(2**31 - 1, 1.0) + _frame(65536 * 131072, [ZEROS] * 100),
        model.header(10**6, 1.0) + _frame(31 * 131072, [(RAW, 0, b"")] * 30),
    ]
    payloads = [tensor_of(data) for data in forged]
    monkeypatch.setattr(torch, "empty", None)
    monkeypatch.setattr(np, "empty", None)
    for payload in payloads:
        with pytest.raises(CuszplusError, match="claims|too few"):
            cuszplus_decompress(payload, "cpu")


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_never_crash(seed):
    random = np.random.default_rng(seed)
    data = bytearray(
        data_of(compress(random.normal(size=40000) * 10.0 ** random.integers(4), 1e-3))
    )
    for _ in range(30):
        changed = bytearray(data)
        for place in random.integers(4, len(data), random.integers(1, 5)):
            changed[place] = random.integers(256)
        try:
            y = decompress(changed)
        except CuszplusError:
            continue
        assert y.dtype == np.float32
