"""Conversions, finiteness and division against torch, on every level; exhaustive where the domain
is small."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import _machinery
from tests.codec.helpers import TORCH

# The one that is written, of each type (csrc/base/nan.h).
NAN = {torch.float32: 0x7FC00000, torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}


def convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    codes = {t: c for c, t in TORCH.items()}
    y = torch.zeros(x.numel(), dtype=dtype)
    _machinery.codec_convert(x.data_ptr(), codes[x.dtype], x.numel(), y.data_ptr(), codes[dtype])
    return y


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32 if x.itemsize == 4 else torch.int16)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_every_16_bit_value(level: str, dtype: torch.dtype) -> None:
    x = torch.arange(-32768, 32768, dtype=torch.int16).view(dtype)
    wide = convert(x, torch.float32)
    finite = ~torch.isnan(x)
    assert torch.equal(bits(wide)[finite], bits(x.float())[finite])
    assert (bits(wide)[~finite] == NAN[torch.float32]).all()
    # And back, to the same bits; each NaN becomes one.
    back = bits(convert(wide, dtype))
    assert torch.equal(back[finite], bits(x)[finite])
    assert (back[~finite] == NAN[dtype]).all()


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_narrowing_rounds_to_nearest_even(level: str, dtype: torch.dtype) -> None:
    # Every 16-bit value, the middle to its neighbour, and one step to both sides of the middle.
    x = torch.arange(-32768, 32768, dtype=torch.int16).view(dtype)
    x = x[torch.isfinite(x)].double()
    ordered = x.unique()
    middle = (ordered[1:] + ordered[:-1]) / 2
    exact = middle[middle.float().double() == middle].float()
    borders = [
        exact,
        torch.nextafter(exact, torch.tensor(torch.inf)),
        torch.nextafter(exact, torch.tensor(-torch.inf)),
    ]
    limits = torch.tensor(
        [65504.0, 65519.996, 65520.0, 1e30, 3.4028235e38, 3.39e38, torch.inf, 1e-45, 1e-40, -0.0]
    )
    random = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0))
    every = torch.cat([*borders, limits, -limits, random.to(torch.int32).view(torch.float32)])
    every = every[~torch.isnan(every)]
    assert torch.equal(bits(convert(every, dtype)), bits(every.to(dtype)))


def test_every_nan_becomes_one(level: str) -> None:
    x = torch.tensor(
        [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001 - 2**32, 0xFFC12345 - 2**32] * 7,
        dtype=torch.int32,
    )
    for dtype in TORCH.values():
        narrow = convert(x.view(torch.float32), dtype)
        assert (bits(narrow) == NAN[dtype]).all()


@pytest.mark.parametrize("code", (0, 1, 2))
def test_all_finite(level: str, code: int) -> None:
    for n in (0, 1, 7, 8, 16, 17, 100, 1025, 2100):
        x = torch.randn(n).to(TORCH[code])
        x[:1] = torch.finfo(TORCH[code]).max
        assert _machinery.codec_all_finite(x.data_ptr(), code, n)
        for position in {0, 1, 5, 8, 15, 16, n // 2, n - 2, n - 1}:
            if 0 <= position < n:
                for value in (float("nan"), float("inf"), -float("inf")):
                    y = x.clone()
                    y[position] = value
                    assert not _machinery.codec_all_finite(y.data_ptr(), code, n), (
                        n,
                        position,
                        value,
                    )


@pytest.mark.parametrize("code", (0, 1, 2))
def test_add_divide_scan(level: str, code: int) -> None:
    for n in (1, 7, 8, 15, 16, 17, 33, 100, 1000):
        x = torch.randn(n).to(TORCH[code])
        y = torch.randn(n)
        expected = y + x.float()
        _machinery.codec_add(x.data_ptr(), code, n, y.data_ptr())
        assert torch.equal(y, expected)
        _machinery.codec_divide(y.data_ptr(), n, 3.0)
        assert torch.equal(y, expected / 3)
        assert _machinery.codec_scan(x.data_ptr(), code, n) == (float(x.min()), float(x.max()))


def test_unaligned_input(level: str) -> None:
    memory = np.zeros(4 * 40 + 1, np.uint8)
    x = np.arange(40, dtype=np.float32)
    memory[1:] = x.view(np.uint8)
    y = np.zeros(40, np.float32)
    _machinery.codec_convert(memory.ctypes.data + 1, 0, 40, y.ctypes.data, 0)
    assert (x == y).all()
