"""Vectors V1 to V9 of SmaQ: codes, bits and results of small tensors, errors of N(0, 1)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from torch_cgx import emulate

D = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 20.0]
SPIKE = [0.0] * 9 + [1.0]
RANGE = 19 / math.sqrt(2 * math.log(10))  # sigma by the range


def smaq(main: int, outlier: int, **changes: Any) -> emulate.ZScore:
    """Rounds toward zero, as SmaQ does where it is not stochastic."""
    return emulate.ZScore(main, outlier, **{"rounding": "zero", **changes})


def codes(format: emulate.ZScore, x: list[float], mean: float, sigma: float) -> list[int]:
    """Of what a cast leaves, the integers in units of a step from the mean, or from one sigma."""
    rates = (
        2.0 ** (format.main_bits - 2) - 1,
        (2.0 ** (format.outlier_bits - 2) - 1) / 1.5,
    )
    found = []
    for value, y in zip(x, emulate.cast(torch.tensor(x), format).tolist(), strict=True):
        outlier = abs(value - mean) > sigma
        z = (y - mean) / sigma
        k = (z - math.copysign(outlier, z)) * rates[outlier]
        assert abs(k - round(k)) < 1e-4
        found.append(round(k))
    return found


# V1 to V5, and V7: format, values, mean, sigma, codes, bits.
VECTORS = {
    "V1": (smaq(6, 8), D, 6.5, 5.4006171, [0, -12, -9, -6, -4, -1, 1, 4, 6, 62], 64),
    "V2": (smaq(5, 7), D, 6.5, 5.4006171, [0, -5, -4, -3, -1, 0, 0, 1, 3, 30], 54),
    "V3": (smaq(4, 6), D, 6.5, 5.4006171, [0, -2, -1, -1, 0, 0, 0, 0, 1, 14], 44),
    "V4": (smaq(3, 5), D, 6.5, 5.4006171, [0, 0, 0, 0, 0, 0, 0, 0, 0, 6], 34),
    "V5": (
        smaq(6, 8, statistics="range"),
        D,
        6.5,
        8.8538218,
        [-9, -7, -5, -4, -2, 0, 0, 2, 4, 22],
        62,
    ),
    "V7": (smaq(6, 8, clamp=False), SPIKE, 0.1, 0.3162278, [-4] * 9 + [77], 62),
}


@pytest.mark.parametrize("name", VECTORS)
def test_codes_and_bits(name):
    format, x, mean, sigma, expected, bits = VECTORS[name]
    assert codes(format, x, mean, sigma) == expected
    info = format.info(torch.tensor(x))
    assert info.total_bits - info.side_bits == bits
    assert info.side_bits == 64  # the mean and sigma, which SmaQ did not count


def test_results():
    """V1, V2, V4, V7."""
    assert pytest.approx(8.8538218, abs=5e-7) == RANGE
    expected = [1.0993829, 2.1795063, 3.2596295, 4.3397532, 5.0598354]
    expected += [6.1399589, 6.8600411, 7.9401646, 8.6602468, 19.8729572]
    given = torch.tensor(D, dtype=torch.float64)
    assert emulate.cast(given, smaq(6, 8)).tolist() == pytest.approx(expected, abs=1e-6)
    assert emulate.cast(given, smaq(5, 7))[9].item() == pytest.approx(19.7402229, abs=1e-6)
    assert emulate.cast(given, smaq(3, 5))[1:9].tolist() == [6.5] * 8
    spike = emulate.cast(torch.tensor(SPIKE), smaq(6, 8, clamp=False)).tolist()
    assert spike == pytest.approx([0.0156726] * 9 + [0.9959787], abs=5e-7)
    # Within its bits the last code is 63.
    assert codes(smaq(6, 8), SPIKE, 0.1, 0.3162278) == [-4] * 9 + [63]


def test_tensors_that_stay():
    """V6: constant tensors and tensors of fewer than 8 values keep their bits."""
    for x in (torch.full((9,), 3.3), torch.tensor(D[:7])):
        for rounding in ("zero", "nearest", "stochastic"):
            assert torch.equal(emulate.cast(x, smaq(6, 8, rounding=rounding)), x)
    info = smaq(6, 8).info(torch.tensor(D[:7]))
    assert (info.bits, info.total_bits, info.side_bits) == (32, 7 * 32, 0)
    assert smaq(6, 8).info(torch.tensor(D[:7]).bfloat16()).total_bits == 7 * 16
    assert smaq(6, 8).info(torch.full((9,), 3.3)).total_bits == 9 * 6 + 64
    assert smaq(6, 8).info(torch.empty(0)).total_bits == 0


def test_the_mean_of_stochastic_draws_is_the_value():
    """V8: a main step is .36, so .002 is 1.6 standard errors of 20000 draws, where that is most."""
    x = torch.tensor(D, dtype=torch.float64)
    total = torch.zeros_like(x)
    for step in range(20_000):
        total += emulate.cast(x, emulate.smaq, step=step)
    assert ((total / 20_000 - x).abs() < 0.002).all()


# V9: of 10^6 values from N(0, 1), bits, errors toward zero and stochastic, in sigmas.
NORMAL = {
    (6, 8): (4.823, 0.0326, 0.0231),
    (5, 7): (5.678, 0.0694, 0.0495),
    (4, 6): (6.903, 0.1589, 0.1150),
    (3, 5): (8.802, 0.450, 0.343),
}


@pytest.fixture(scope="module")
def normal() -> torch.Tensor:
    return torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", NORMAL)
def test_errors_and_ratios_of_normal_values(normal, bits):
    ratio, zero, stochastic = NORMAL[bits]
    for rounding, expected in (("zero", zero), ("stochastic", stochastic)):
        y = emulate.cast(normal, smaq(*bits, rounding=rounding, clamp=False))
        error = float((y - normal).double().square().mean().sqrt())
        assert error == pytest.approx(expected, rel=0.01), rounding
    assert 32 / smaq(*bits).info(normal).bits == pytest.approx(ratio, rel=0.001)
    assert 32 / smaq(*bits).info().bits == pytest.approx(ratio, rel=0.001)
    outliers = float((normal.abs() > 1).double().mean())
    assert outliers == pytest.approx(0.3177, rel=0.01)


def test_what_clamped_codes_add_to_the_error(normal):
    """1.2 % of values are farther than 2.5 sigmas away, and become 2.5 of them."""
    clamped = emulate.cast(normal, emulate.smaq)
    far = normal.abs() > 2.5
    assert float(far.double().mean()) == pytest.approx(0.0124, abs=0.0005)
    grown = emulate.cast(normal, smaq(6, 8, rounding="stochastic", clamp=False))
    most = float(clamped.abs().max())
    assert most == pytest.approx(2.5, abs=0.01) and float(grown.abs().max()) > 4
    near = normal.abs() < 2.4
    assert torch.equal(clamped[near], grown[near])
