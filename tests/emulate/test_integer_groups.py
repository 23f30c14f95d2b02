"""Which values share the scale of integers: groups, dimensions, layouts, what is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.emulate.integer_cases import SCALES, compare, integers, matrix
from tests.emulate.models import integers as model
from tests.emulate.models.draws import words
from torch_cgx import emulate


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


def test_bits():
    x = torch.empty(6, 300)
    for scale, side in (("absmax", 32), ("power", 8), ("minmax", 32 + 8)):
        for per, count in (("tensor", 1), ("row", 6), ("channel", 6), ("block", 6 * 3)):
            info = integers(8, scale, per).info(x)
            assert (info.side_bits, info.total_bits) == (count * side, 1800 * 8 + count * side)
