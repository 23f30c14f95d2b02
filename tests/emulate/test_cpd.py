"""`variant="cpd"`: vectors of CPD's casts, V1 to V5."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.emulate.oracles import same, spread
from torch_cgx import emulate

NAN, INF, PI = math.nan, math.inf, math.pi
VECTORS = {
    # V1
    (5, 2): [
        (1.1, 1.0),
        (1.125, 1.0),
        (1.126, 1.25),
        (1.375, 1.5),
        (-1.375, -1.5),
        (57345.0, 57344.0),
        (61439.0, 57344.0),
        (61440.0, 65536.0),
        (65536.0, INF),
        (2.0**-15, 2.0**-15),
        (2.0**-16, 2.0**-16),
        (2.0**-17, 0.0),
        (1.5 * 2.0**-17, 2.0**-16),
        (-1e-9, -0.0),
        (1e-40, 0.0),
        (NAN, NAN),
        (-0.0, -0.0),
    ],
    # V2
    (4, 3): [
        (1.0625, 1.0),
        (1.0626, 1.125),
        (0.3, 0.3125),
        (247.0, 240.0),
        (248.0, 256.0),
        (256.0, INF),
        (2.0**-9, 2.0**-9),
        (2.0**-10, 0.0),
        (1.5 * 2.0**-10, 2.0**-9),
    ],
    # V3
    (3, 0): [
        (1.49, 1.0),
        (1.5, 2.0),
        (3.0, 4.0),
        (5.0, 4.0),
        (6.0, 8.0),
        (12.0, 16.0),
        (16.0, INF),
        (0.25, 0.25),
        (0.125, 0.0),
        (0.13, 0.25),
        (0.3, 0.25),
        (0.375, 0.5),
    ],
    # V4
    (8, 7): [(PI, 3.140625), (3.4e38, INF), (1.01171875, 1.015625)],
    (8, 23): [(PI, float(np.float32(PI))), (1e-40, 0.0)],
}


def _cpd(exponent, mantissa):
    return emulate.Float(exponent, mantissa, variant="cpd")


@pytest.mark.parametrize("shape", VECTORS)
def test_vectors(shape):
    given, expected = (np.array(row, np.float32) for row in zip(*VECTORS[shape], strict=True))
    found = emulate.cast(torch.from_numpy(given), _cpd(*shape)).numpy()
    assert same(found, expected).all(), (given, found, expected)
    # -1e-40 loses its sign, too; other values are odd functions.
    if shape != (8, 23):
        odd = emulate.cast(torch.from_numpy(-given), _cpd(*shape)).numpy()
        tiny = np.abs(given) == np.float32(1e-40)
        assert same(odd, np.where(tiny, np.float32(0), -expected)).all()


@pytest.mark.parametrize("shape, numbers", [((5, 2), 125), ((4, 3), 121), ((3, 0), 8)])
def test_magnitudes_that_are_reached(shape, numbers):
    """V5: with 0, and 65536 of (5, 2)."""
    y = emulate.cast(torch.from_numpy(spread(1 << 12)), _cpd(*shape))
    assert len(y[y.isfinite()].abs().unique()) == numbers


def test_it_is_the_ieee_format_where_it_does_not_overflow_or_underflow():
    x = torch.from_numpy(spread(1 << 12))
    x = x[(x.abs() > 2**-13) & (x.abs() < 61440)]
    assert torch.equal(emulate.cast(x, _cpd(5, 2)), emulate.cast(x, "e5m2"))
