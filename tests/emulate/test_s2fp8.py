"""S2FP8 against a model in float64; its vectors, and tensors that are hard for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.emulate.models import s2fp8 as model
from tests.emulate.models.draws import words
from torch_cgx import emulate

SIZES = (*range(41), 63, 64, 65, 127, 128, 129, 255, 256, 257, 399, 400, 4095, 4096, 4097, 70_001)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def values(n: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Of many magnitudes, with zeros."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    x *= torch.exp2(torch.randint(-12, 12, (n,), generator=generator).double())
    x[::7] = 0
    return x.to(dtype)


def compare(x: torch.Tensor, rounding: str = "nearest", bits: int = 24) -> None:
    wide = x.double().numpy()
    format = emulate.S2FP8(rounding, bits)
    expected, sure = model.cast(wide, rounding, words(len(wide), 3, 5), bits)
    found = emulate.cast(x, format, seed=3, step=5)
    assert found.dtype == x.dtype and sure.sum() >= 0.9 * len(x) - 1
    exact = emulate.cast(x.double(), format, seed=3, step=5).numpy()
    np.testing.assert_allclose(exact[sure], expected[sure], rtol=1e-11)
    # Those of other types are rounded once more.
    if x.dtype != torch.float64:
        assert torch.equal(found, torch.from_numpy(exact).float().to(x.dtype))


@pytest.mark.parametrize("rounding", ["nearest", "zero", "stochastic"])
def test_it_is_the_model(rounding):
    for n in SIZES if rounding == "nearest" else SIZES[::7]:
        compare(values(n), rounding)
    for dtype in DTYPES:
        compare(values(3000, dtype), rounding, 8)


def test_vectors():
    """V12 of SmaQ's vectors, which had S2FP8 as a baseline."""
    # mean 1.5, greatest 3: alpha 10, beta -15, all numbers of e5m2.
    x = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert model.squeeze(x.double().numpy()) == (10, -15)
    assert torch.equal(emulate.cast(x, "s2fp8"), x)
    x = torch.tensor([0.001, -0.002, 0.004, 0.016, -0.0005])
    assert model.squeeze(x.double().numpy()) == pytest.approx((5.357144, 46.95957), rel=1e-6)
    expected = [0.00100175, -0.00201857, 0.00401879, 0.016, -0.00050701]
    assert emulate.cast(x, "s2fp8").tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-30, 1e30])
def test_no_scale_overflows(scale):
    """V12: beta is 150 for these values near 1e-6, and 2^150 is no float32."""
    x = torch.tensor([1e-6, 2e-6, -3e-6, 1e-5], dtype=torch.float64) * (scale * 1e6)
    y = emulate.cast(x, "s2fp8")
    alpha, _ = model.squeeze(x.numpy())
    assert y.isfinite().all()
    assert ((y / x).log2().abs() <= math.log2(1.125) / alpha + 1e-9).all()
    if scale == 1e-6:
        beta = model.squeeze(x.float().double().numpy())[1]
        assert beta == pytest.approx(150.02, abs=0.01)
    assert torch.equal(emulate.cast(x.float(), "s2fp8").sign(), x.float().sign())


@pytest.mark.parametrize("value", [0.3, 3.3, 1e-6, 123.456, 1e20, 1e-30])
def test_equal_magnitudes_stay(value):
    """Also where the mean of their logarithms is rounded."""
    for n in (1, 2, 3, 9, 10, 100, 1000, 10_007):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = torch.full((n,), value, dtype=dtype)
            x[::2] *= -1
            x[1::5] = 0
            assert torch.equal(emulate.cast(x, "s2fp8"), x), (n, dtype)


@pytest.mark.parametrize("value", [0.3, 123.456, 1e20, 1e-30, 3e38])
def test_magnitudes_that_hardly_differ_are_kept_to_a_few_bits_of_float32(value):
    """beta, a float32, is then as large as alpha times their logarithm."""
    for ulps in (1, 5, 100, 10_000):
        x = torch.full((10,), value)
        x[3] = (x[:1].view(torch.int32) + ulps).view(torch.float32)[0]
        y = emulate.cast(x, "s2fp8")
        assert ((y - x).abs() <= 4e-6 * x).all(), ulps


def test_values_that_are_not_finite_stay_and_do_not_count():
    x = values(100, torch.float32)
    expected = emulate.cast(x, "s2fp8")
    for value in (math.nan, math.inf, -math.inf):
        more = torch.cat([x[:50], torch.tensor([value, -0.0]), x[50:]])
        y = emulate.cast(more, "s2fp8")
        np.testing.assert_array_equal(y[50].item(), value)
        assert torch.equal(torch.cat([y[:50], y[52:]]), expected)
        assert y[51] == 0 and y[51].signbit()
    for rest in ([], [0.0], [-0.0, 0.0], [math.nan], [math.inf, 2.0], [-5.0]):
        x = torch.tensor(rest)
        assert torch.equal(emulate.cast(x, "s2fp8").view(torch.int32), x.view(torch.int32))


def test_it_costs_8_bits_and_two_numbers():
    info = emulate.s2fp8.info(torch.empty(10, 100))
    assert (info.bits, info.side_bits) == (8.064, 64)
    assert emulate.s2fp8.info().bits == 8


def test_subnormal_numbers_of_float64_stay():
    x = torch.tensor([1.0, -3.0, 2.0**-1030, -(2.0**-1074), 0.1], dtype=torch.float64)
    y = emulate.cast(x, "s2fp8")
    assert torch.equal(y[2:4], x[2:4])
    kept = torch.tensor([1.0, -3.0, 0.1], dtype=torch.float64)
    assert torch.equal(y[[0, 1, 4]], emulate.cast(kept, "s2fp8"))
