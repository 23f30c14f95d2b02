"""Integers with a scale against a model: scales, groups, roundings, layouts, what is not finite."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.emulate import integer_model as model
from tests.emulate.draws import words
from tests.emulate.oracles import same
from torch_cgx import emulate

SCALES = ("absmax", "power", "minmax")
ROUNDINGS = ("nearest", "zero", "stochastic")
BITS = (2, 3, 4, 8, 16)


def matrix(rows: int, columns: int, dtype: type = np.float32) -> np.ndarray:
    """Rows of N(0, 1) times powers of two; rows at borders: ties, zeros, of one sign, one value,
    subnormals and the ends of float32.
    """
    rng = np.random.default_rng(rows * 1000 + columns)
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-100, 100, (rows, 1)))
    for row in range(0, rows, 3):
        x[row] = (
            rng.integers(-14, 15, columns) / 2.0,  # ties of bits=4, where 7 is there
            np.abs(x[row]) + 1.0,
            -np.abs(x[row]) * 1e-3,
            np.where(np.arange(columns) == columns // 2, 5.5, 0.0),
            rng.integers(-5, 6, columns) * 2.0**-149,
            rng.choice([3.4e38, -3.4e38, 1e38, 0.0], columns),
            np.full(columns, -0.0),
        )[row // 3 % 7]
    return x.astype(dtype)


def compare(found: torch.Tensor, expected: np.ndarray, *what: object) -> None:
    wide = found.contiguous().numpy()
    bad = np.argwhere(~same(wide, expected))
    at = tuple(bad[0]) if len(bad) else ()
    assert not len(bad), (*what, len(bad), at, wide[at], expected[at])


def integers(bits: int, scale: str, per: str, rounding: str = "nearest", **more) -> emulate.Integer:
    return emulate.Integer(bits, scale, per, rounding=rounding, **more)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("bits", BITS)
def test_each_row_is_the_models(bits, scale, rounding):
    for dtype in (np.float32, np.float64):
        for columns in (1, 2, 33, 400):
            x = matrix(22, columns, dtype)
            draws = words(x.size, 3, 5)
            of = model.Integers(bits, scale, rounding)
            expected = model.groups(x, of, columns, draws)
            found = emulate.cast(
                torch.from_numpy(x), integers(bits, scale, "row", rounding), seed=3, step=5
            )
            compare(found, expected, bits, scale, rounding, dtype, columns)


@pytest.mark.parametrize("scale", SCALES)
def test_sizes(scale):
    of = model.Integers(scale=scale)
    x = matrix(2, 401)[1]
    for n in (*range(401), 4095, 4096, 4097, 70_001):
        given = x[:n] if n <= 400 else matrix(2, n)[1]
        found = emulate.cast(torch.from_numpy(given), integers(8, scale, "tensor"))
        compare(found, model.integers(given, of), scale, n)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("scale", SCALES)
def test_groups(scale, rounding):
    """The values that share a scale; random numbers go by the number in the tensor."""
    x = matrix(12, 35).reshape(3, 4, 35)
    of = model.Integers(4, scale, rounding)
    draws = words(x.size, 3, 5)

    def check(per, shape, length, **more):
        expected = model.groups(x.reshape(shape), of, length, draws).reshape(x.shape)
        found = emulate.cast(
            torch.from_numpy(x), integers(4, scale, per, rounding, **more), seed=3, step=5
        )
        compare(found, expected, scale, per, more)

    check("tensor", (1, -1), x.size)
    check("row", (12, 35), 35)
    check("channel", (3, 140), 140)
    for size in (1, 8, 35, 36, 128):
        check("block", (12, 35), size, size=size)


@pytest.mark.parametrize("scale", SCALES)
def test_16_bits_are_their_values_in_float32(scale):
    for dtype, per in itertools.product(
        (torch.float16, torch.bfloat16), ("tensor", "row", "block")
    ):
        x = torch.from_numpy(matrix(22, 33).clip(-6e4, 6e4)).to(dtype)
        format = integers(8, scale, per, size=16)
        wide = emulate.cast(x.float(), format).to(dtype)
        assert torch.equal(emulate.cast(x, format), wide)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 2),
    "channels last": lambda x: x.reshape(3, 4, 5, 7).to(memory_format=torch.channels_last),
    "every second": lambda x: x[:, :, ::2],
    "permuted": lambda x: x.permute(1, 2, 0),
    "expanded": lambda x: x[:1].expand(5, 4, 35),
}


@pytest.mark.parametrize("per", ["tensor", "row", "channel", "block"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, per):
    x = LAYOUTS[layout](torch.from_numpy(matrix(12, 35).reshape(3, 4, 35)))
    plain = x.contiguous().numpy()
    shape = {"tensor": (1, -1), "channel": (x.shape[0], -1)}.get(per, (-1, x.shape[-1]))
    for scale in SCALES:
        flat = plain.reshape(shape)
        size = 8 if per == "block" else flat.shape[1]
        expected = model.groups(flat, model.Integers(8, scale), size).reshape(x.shape)
        format = integers(8, scale, per, size=8)
        found = emulate.cast(x, format)
        compare(found, expected, layout, scale)
        assert found.stride() == torch.empty_like(x).stride()
        out = torch.full(tuple(reversed(x.shape)), 7.0).permute(*reversed(range(x.dim())))
        compare(emulate.cast(x, format, out=out), expected, layout, scale, "out")
        if layout != "expanded":
            own = x.clone()
            compare(emulate.cast(own, format, out=own), expected, layout, scale, "in place")


@pytest.mark.parametrize("per", ["row", "channel", "block"])
def test_another_dimension(per):
    x = torch.from_numpy(matrix(12, 35).reshape(3, 4, 35))
    for axis in (-3, -2, -1, 0, 1, 2):
        found = emulate.cast(x, integers(8, "absmax", per, size=3, axis=axis))
        home = 0 if per == "channel" else -1
        moved = x.movedim(axis, home).contiguous()
        flat = moved.reshape((moved.shape[0], -1) if per == "channel" else (-1, moved.shape[-1]))
        size = 3 if per == "block" else flat.shape[1]
        expected = model.groups(flat.numpy(), model.Integers(), size).reshape(moved.shape)
        compare(found.movedim(axis, home), expected, per, axis)
        assert found.stride() == x.stride()
    assert integers(8, "absmax", "channel").axis == 0 and integers(8, "absmax", "row").axis == -1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", SCALES)
def test_what_is_not_finite_spoils_its_group_alone(scale, value):
    x = matrix(12, 40)
    x[4, 17] = value
    of = model.Integers(scale=scale)
    for per, size in (("row", 40), ("channel", 40), ("block", 8)):
        expected = model.groups(x, of, size)
        assert np.isnan(expected).sum() == size
        for dtype in (torch.float32, torch.float64):
            found = emulate.cast(torch.from_numpy(x).to(dtype), integers(8, scale, per, size=8))
            assert int(found.isnan().sum()) == size
            if dtype == torch.float32:
                compare(found, expected, scale, per)
    assert emulate.cast(torch.from_numpy(x), integers(8, scale, "tensor")).isnan().all()


@pytest.mark.parametrize("per", ["tensor", "row", "channel", "block"])
@pytest.mark.parametrize("scale", SCALES)
def test_few_values(scale, per):
    format = integers(8, scale, per)
    for shape in ((0,), (0, 5), (5, 0), (2, 0, 3), (3, 1), (1, 3), (1, 1), (), (1,)):
        for value in (2.5, -2.5, 0.0):
            x = torch.full(shape, value)
            y, found = emulate.cast(x, format, statistics=True)
            assert y.shape == x.shape and found.values == x.numel()
            # A value alone, or equal ones, are an end of the range.
            limit = 2.5 * 2.0**-7 if scale == "power" else 1e-6
            assert ((y - x).abs() <= limit).all() and not y[x == 0].signbit().any()


@pytest.mark.parametrize("scale", ["absmax", "minmax"])
def test_zero_stays_zero_and_results_are_finite(scale):
    """With a power of two as scale, a value may round to 2^128."""
    for bits in BITS:
        x = matrix(66, 50)
        y = emulate.cast(torch.from_numpy(x), integers(bits, scale, "row")).numpy()
        assert (y[x == 0] == 0).all() and np.isfinite(y).all()
        y = emulate.cast(torch.from_numpy(x), integers(bits, scale, "tensor")).numpy()
        assert np.isfinite(y).all()


@pytest.mark.parametrize("scale", SCALES)
def test_float64_beyond_float32_saturates(scale):
    """Scales are float32."""
    for unit in (1e300, 1e-300):
        x = np.array([1.0, -2.0, 0.5, 0.0]) * unit
        found = emulate.cast(torch.from_numpy(x), integers(8, scale, "tensor"))
        compare(found, model.integers(x, model.Integers(scale=scale)), scale, unit)
        assert found.isfinite().all()


def test_the_mean_of_stochastic_draws_is_the_value():
    x = torch.from_numpy(matrix(2, 4000)[1:])
    for scale in SCALES:
        format = integers(4, scale, "tensor", "stochastic")
        numbers = emulate.cast(x, format).unique()
        step = float(numbers.diff().min())
        # The zero point is an integer, so minmax moves the ends by up to half a step.
        inside = (x >= numbers[0]) & (x <= numbers[-1])
        assert int(inside.sum()) > 3990
        total = torch.zeros(x.shape, dtype=torch.float64)
        for number in range(200):
            total += emulate.cast(x, format, step=number)
        error = ((total / 200 - x) / step)[inside]
        assert abs(float(error.mean())) < 4 * 0.41 / math.sqrt(200 * 4000), scale
        assert float(error.abs().max()) < 5 * 0.5 / math.sqrt(200), scale


def test_bits():
    x = torch.empty(6, 300)
    for scale, side in (("absmax", 32), ("power", 8), ("minmax", 32 + 8)):
        for per, count in (("tensor", 1), ("row", 6), ("channel", 6), ("block", 6 * 3)):
            info = integers(8, scale, per).info(x)
            assert (info.side_bits, info.total_bits) == (count * side, 1800 * 8 + count * side)
