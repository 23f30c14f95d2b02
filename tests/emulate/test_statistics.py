"""Statistics of a cast against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torch_cgx import emulate

NAMES = ("e4m3fn", "e5m2", "e2m1", "mxfp4", "mxfp8_e4m3", "nvfp4", "fp8_block128")


def _expected(x, y):
    """x, y: float64. Values that became infinite are no noise."""
    finite = np.isfinite(x)
    v, w = x[finite], y[finite]
    kept = np.isfinite(w)
    noise = float(((w[kept] - v[kept]) ** 2).sum())
    return {
        "values": x.size,
        "nonfinite": int((~finite).sum()),
        "underflows": int(((v != 0) & (w == 0)).sum()),
        "amax": float(np.abs(v).max(initial=0)),
        "signal": float((v**2).sum()),
        "noise": noise,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_of_numpy(name, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(37, 100, generator=generator, dtype=torch.float64)
    x *= torch.exp2(torch.randint(-9, 9, (37, 1), generator=generator))
    x[5, ::7] = 0
    x = x.to(dtype)
    y, found = emulate.cast(x, name, statistics=True)
    assert torch.equal(y, emulate.cast(x, name))
    # The errors are the format's: a scale in float32 has numbers that 16 bits lack.
    exact = y if dtype == torch.float64 else emulate.cast(x.float(), name)
    wide = x.double().numpy()
    expected = _expected(wide, exact.double().numpy())
    for key in ("values", "nonfinite", "underflows", "amax"):
        assert getattr(found, key) == expected[key], key
    assert found.underflowed == found.underflows / x.numel()
    sqnr = 10 * math.log10(expected["signal"] / expected["noise"])
    assert found.sqnr == pytest.approx(sqnr, abs=1e-6)
    if emulate.preset(name).elementwise:
        largest = emulate.preset(name).info().largest
        assert found.saturations == int((np.abs(wide) > largest).sum())
    assert found.saturated == found.saturations / x.numel()


def test_values_that_saturate_in_blocks():
    """By the floor rule, above 7 / 8 of the next power of two in e2m1: 6 of 8."""
    x = torch.zeros(3, 32)
    x[0, :4] = torch.tensor([7.9, 6.1, 6.0, -7.0])
    x[1, 0] = 5.9
    _, found = emulate.cast(x, "mxfp4", statistics=True)
    assert (found.saturations, found.values, found.underflows) == (3, 96, 0)
    ceil = emulate.preset("mxfp4", scale_rounding="ceil")
    assert emulate.cast(x, ceil, statistics=True)[1].saturations == 0


def test_values_that_are_not_finite():
    x = torch.tensor([1.0, math.nan, math.inf, -math.inf, 500.0, 1e-9, 0.0, -0.0])
    y, found = emulate.cast(x, "e4m3fn", statistics=True)
    assert (found.values, found.nonfinite, found.saturations, found.underflows) == (8, 3, 1, 1)
    assert found.amax == 500 and found.sqnr == pytest.approx(
        10 * math.log10((1 + 500**2 + 1e-18) / (52**2 + 1e-18))
    )
    _, found = emulate.cast(torch.tensor([1.0, 1e6]), "e5m2", statistics=True)
    assert (found.nonfinite, found.saturations, found.amax) == (0, 1, 1e6)
    assert found.sqnr == math.inf  # an infinity is no noise


@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 0)])
def test_few_values(shape):
    y, found = emulate.cast(torch.ones(shape), "mxfp4", statistics=True)
    assert found.values == y.numel() and found.amax == float(y.numel() > 0)
    assert math.isinf(found.sqnr) if y.numel() else math.isnan(found.sqnr)
    assert math.isnan(emulate.cast(torch.zeros(3), "e5m2", statistics=True)[1].sqnr)
    assert "values=" in repr(found)


@pytest.mark.parametrize("name", ["e4m3fn", "mxfp4", "nvfp4"])
def test_threads_do_not_change_a_bit(name):
    x = torch.randn(300, 700, generator=torch.Generator().manual_seed(0))
    numbers = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            numbers.append(emulate.cast(x, name, statistics=True)[1].numbers)
            into = torch.empty_like(x)
            numbers.append(emulate.cast(x, name, out=into, statistics=True)[1].numbers)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, numbers[0]) for one in numbers)
    # In another order sums may differ.
    turned = emulate.cast(x.t().contiguous().t(), name, statistics=True)[1]
    assert torch.equal(turned.numbers[:5], numbers[0][:5])
    assert torch.allclose(turned.numbers, numbers[0], rtol=1e-12)
    along = emulate.cast(x.t(), emulate.preset("mxfp4", axis=0), statistics=True)[1].numbers
    assert name != "mxfp4" or torch.equal(along, numbers[0])
