"""Blocks that share a scale, against a model in NumPy and against gfloat."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from tests.emulate.models import blocks as model
from tests.emulate.oracles import same
from torch_cgx import emulate

ROUNDINGS = ("floor", "ceil", "even", "rceil")


def matrix(columns: int, seed: int = 0) -> np.ndarray:
    """Rows of N(0, 1) times powers of two, and rows at borders: ties, zeros, one value, the ends of
    float32, subnormals.
    """
    rng = np.random.default_rng(seed)
    power = np.exp2(rng.integers(-120, 120, (24, 1)))
    normal = rng.standard_normal((24, columns)) * power
    steps = rng.integers(-16, 17, (8, columns)) / 8 * np.exp2(rng.integers(-8, 8, (8, 1)))
    ends = np.zeros((6, columns))
    ends[1, -1], ends[2] = 5.5, 2.0**-149
    ends[3], ends[4] = 3.4e38, -3e-39
    ends[5, ::2] = 1.9375
    with np.errstate(over="ignore"):
        return np.concatenate([normal, steps, ends]).astype(np.float32)


def compare(x: np.ndarray, format: emulate.Format, expected: np.ndarray) -> None:
    found = emulate.cast(torch.from_numpy(x), format).numpy()
    bad = np.argwhere(~same(found, expected))
    at = tuple(bad[0]) if len(bad) else ()
    assert not len(bad), (format, len(bad), x[at], found[at], expected[at])


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", model.MX)
def test_mx(name, rounding):
    format = emulate.preset(name, scale_rounding=rounding)
    one = partial(model.of_powers, element=model.MX[name], rounding=rounding)
    for columns in (1, 31, 32, 33, 100):  # with tails
        x = matrix(columns)
        expected = model.cast(x, 1, 32, one)
        if name == "mxint8":
            expected += 0.0  # it has no -0
        compare(x, format, expected)


@pytest.mark.parametrize("shape", [(1, 32), (16, 16), (3, 5), (128, 128)])
def test_two_dimensional_blocks(shape):
    rows, columns = shape
    x = matrix(100)
    one = partial(model.of_powers, element="e4m3fn", rounding="floor")
    format = emulate.Block("e4m3fn", axis=shape)
    compare(x, format, model.cast(x, rows, columns, one))
    two = np.stack([x, x[::-1] / 8])
    both = np.stack([model.cast(part, rows, columns, one) for part in two])
    compare(two, format, both)


@pytest.mark.parametrize("shape", [(1, 128), (128, 128), (16, 16)])
def test_float_scales(shape):
    one = partial(model.of_float_scale, element="e4m3fn")
    for columns in (5, 128, 200):
        x = matrix(columns)
        format = emulate.preset("fp8_block128", axis=shape)
        compare(x, format, model.cast(x, *shape, one))
    assert emulate.preset("fp8_block128", axis=(1, 128)) != emulate.fp8_block128
    compare(x, emulate.fp8_block128, model.cast(x, 1, 128, one))


@pytest.mark.parametrize("shape", [(1, 16), (16, 16)])
def test_nvfp4(shape):
    for seed, spread in ((0, 0), (1, 6), (2, 12)):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((40, 100)) * np.exp2(rng.integers(-spread, spread + 1, (40, 1)))
        x = x.astype(np.float32)
        x[3, :16] = 0
        one = partial(model.of_e4m3_scale, amax_of_tensor=float(np.abs(x).max()))
        format = emulate.nvfp4 if shape[0] == 1 else emulate.preset("nvfp4", axis=shape)
        compare(x, format, model.cast(x, *shape, one))


def test_blocks_along_a_dimension():
    x = torch.from_numpy(matrix(100)).reshape(2, 19, 10, 10)
    for axis in (-4, -3, 0, 1, 2, 3):
        moved = x.movedim(axis, -1).contiguous()
        expected = emulate.cast(moved, "mxfp4").movedim(-1, axis)
        format = emulate.preset("mxfp4", axis=axis)
        found = emulate.cast(x, format)
        assert torch.equal(found, expected) and found.stride() == x.stride()
        kept = x.clone()
        assert emulate.cast(kept, format, out=kept) is kept
        assert torch.equal(kept, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nan_spoils_its_block_alone(value):
    x = matrix(96)[:24]
    x[2, 40] = value
    for name in ("mxfp8_e4m3", "mxfp4", "mxint8"):
        clean = x.copy()
        clean[2, 40] = 0
        expected = emulate.cast(torch.from_numpy(clean), name).numpy().copy()
        expected[2, 32:64] = np.nan
        compare(x, emulate.preset(name), expected)
    assert emulate.cast(torch.from_numpy(x), "nvfp4").isnan().all()


@pytest.mark.parametrize("name", [name for name in model.MX if name != "mxint8"])
def test_gfloat_has_the_same_blocks(name):
    gfloat = pytest.importorskip("gfloat")
    import gfloat.formats as known

    format = getattr(known, f"format_info_{name if '_' in name else 'mxfp4_e2m1'}")
    x = np.random.default_rng(0).standard_normal((100, 32)).astype(np.float32)
    expected = np.stack(
        [gfloat.quantize_block(format, row, gfloat.compute_scale_amax) for row in x.astype(float)]
    )
    # Its elements saturate in the OCP formats only.
    compare(x, emulate.preset(name), expected.astype(np.float32))


# Relative L2 errors on N(0, 1); the fourth digit depends on the sample.
ERRORS = {
    ("mxfp8_e4m3", "floor"): 0.0294,
    ("mxfp8_e4m3", "rceil"): 0.0266,
    ("mxfp8_e5m2", "floor"): 0.0539,
    ("mxfp6_e2m3", "floor"): 0.0284,
    ("mxfp4", "floor"): 0.115,
}


@pytest.mark.parametrize("name, rounding", ERRORS)
def test_errors_on_normal_values(name, rounding):
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    y = emulate.cast(x, emulate.preset(name, scale_rounding=rounding))
    error = float((y - x).double().norm() / x.double().norm())
    assert error == pytest.approx(ERRORS[name, rounding], abs=1e-4 if name != "mxfp4" else 5e-4)


def test_float64_has_the_scale_of_its_own_values():
    x = torch.from_numpy(matrix(64)[:24]).double()
    x[0, 0] = x[0].abs().max() * (1 + 2**-40)
    narrow = emulate.cast(x.float(), "mxfp6_e3m2")
    assert torch.equal(emulate.cast(x, "mxfp6_e3m2").float()[1:], narrow[1:])
    # A maximum just above a power of two.
    y = torch.full((1, 32), 1.0, dtype=torch.float64)
    y[0, 0] = 1 + 2**-40
    ceil = emulate.preset("mxfp4", scale_rounding="ceil")
    assert emulate.cast(y, ceil)[0, 1] == 1 and emulate.cast(y, ceil)[0, 0] == 1
    element = dataclasses.replace(emulate.e2m1, rounding="zero")
    y[0, 1] = 1 - 2**-40
    assert emulate.cast(y, emulate.Block(element, scale_rounding="floor"))[0, 1] == 0.75
