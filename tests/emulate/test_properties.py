"""What holds for casts to any format, of any values."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulate.strategies import ELEMENTWISE, FORMATS, MATRICES
from torch_cgx import emulate

# The same examples in each run of CI; other ones each time elsewhere, with what reproduces them.
EXAMPLES: dict[str, Any] = {
    "deadline": None,
    "max_examples": 100,
    "derandomize": bool(os.environ.get("CI")),
    "print_blob": True,
}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Values: zeros have no sign, and NaN is NaN."""
    return torch.equal(
        a.nan_to_num(7, torch.inf, -torch.inf), b.nan_to_num(7, torch.inf, -torch.inf)
    )


def variant(format: emulate.Format) -> str:
    return format.variant if isinstance(format, emulate.Float) else ""


@settings(**EXAMPLES)
@given(format=ELEMENTWISE, x=MATRICES)
def test_numbers_of_a_format_stay(format, x):
    y = emulate.cast(x, format, seed=1)
    if variant(format) == "cpd":  # its rogue number becomes infinite
        y = y.clamp(-format.info().largest, format.info().largest)
    if variant(format) == "scale":
        y = y[y.isfinite()]
    assert same_bits(emulate.cast(y, format, seed=2), y)


@settings(**EXAMPLES)
@given(format=ELEMENTWISE, x=MATRICES)
def test_order_stays(format, x):
    """Of a stochastic rounding with one draw for all: each value is the same element."""
    x = x.flatten().sort().values
    if variant(format) == "scale":
        x = x[x > 0]
    if format.stochastic:
        y = torch.stack([emulate.cast(one, format, seed=3) for one in x]) if len(x) else x
    else:
        y = emulate.cast(x, format)
    y = y[~y.isnan()]
    assert (y[1:] >= y[:-1]).all()


def symmetric(format: emulate.Format) -> bool:
    if isinstance(format, emulate.Fixed):
        return format.symmetric
    if isinstance(format, emulate.Integer):
        return format.scale != "minmax"
    if isinstance(format, emulate.ZScore):
        return not format.all_positive
    return variant(format) != "scale"


@settings(**EXAMPLES)
@given(format=FORMATS.filter(symmetric), x=MATRICES)
def test_casts_are_odd_functions(format, x):
    assert equal(emulate.cast(-x, format, seed=4), -emulate.cast(x, format, seed=4))


def float_limit(format: emulate.Float, x: torch.Tensor) -> torch.Tensor:
    """The distance of the two numbers around each value within the range, in float64."""
    info = format.info()
    normal = info.smallest_step * (2.0**format.mantissa if format.subnormals else 1)
    _, e = x.double().frexp()
    step = torch.exp2((e - 1 - format.mantissa).double())
    # Without subnormal numbers there is none between 0 and the least normal one.
    step = torch.where(x.abs() < normal, info.smallest_step, step)
    beyond = x.double().abs() > info.largest
    return torch.where(beyond, torch.inf, step)


@settings(**EXAMPLES)
@given(format=ELEMENTWISE, x=MATRICES)
def test_errors_are_within_a_step_or_half_of_it(format, x):
    if variant(format) == "scale":
        x = x.abs()
        x = x[x >= 2.0**-127]
    error = (emulate.cast(x, format, seed=5).double() - x.double()).abs()
    half = format.rounding == "nearest" and variant(format) not in ("cpd", "scale")
    if isinstance(format, emulate.Float):
        limit = float_limit(format, x)
        half &= format.subnormals
    else:
        step, most = 2.0**-format.fraction, format.info().largest
        inside = (x >= -most) & (x <= most)
        limit = torch.where(inside, step, torch.inf).double()
    assert ((error <= limit / (1 + half)) | limit.isinf()).all()


@settings(**EXAMPLES)
@given(format=ELEMENTWISE, x=MATRICES, cuts=st.lists(st.integers(0, 200), max_size=3))
def test_parts_are_parts_of_the_whole(format, x, cuts):
    if format.stochastic:
        format = dataclasses.replace(format, rounding="nearest")
    x = x.flatten()
    whole = emulate.cast(x, format)
    places = sorted({0, len(x), *(min(cut, len(x)) for cut in cuts)})
    parts = [emulate.cast(x[a:b], format) for a, b in zip(places, places[1:], strict=False)]
    assert same_bits(torch.cat([x[:0], *parts]), whole)


LAYOUTS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "shifted": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(**EXAMPLES)
@given(format=FORMATS, x=MATRICES, special=st.sampled_from([None, torch.nan, torch.inf]))
def test_where_values_lie_does_not_matter(layout, format, x, special):
    if special is not None and x.numel():
        x = x.clone()
        x.view(-1)[x.numel() // 2] = special
    expected = emulate.cast(x, format, seed=6)
    kept = x.clone()
    strided = LAYOUTS[layout](x)
    assert same_bits(strided, x)
    y, found = emulate.cast(strided, format, seed=6, statistics=True)
    assert same_bits(y, expected) and found.values == x.numel()
    out = LAYOUTS[layout](torch.full_like(x, 7))
    assert same_bits(emulate.cast(x, format, out=out, seed=6), expected)
    assert same_bits(x, kept)
    assert same_bits(emulate.cast(strided, format, out=strided, seed=6), expected)
