"""Casts to named formats against ml_dtypes, gfloat, torch and NumPy: no value differs.

All borders of a format, and every 2^12th of all 2^32 floats.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulate.oracles import (
    FINITE,
    FORMATS,
    GFLOAT,
    borders,
    check,
    format_of_gfloat,
    numbers,
    oracles,
    same,
    values,
)
from torch_cgx import emulate

pytest.importorskip("ml_dtypes")
gfloat = pytest.importorskip("gfloat")


STRIDE = 1 << 12


@pytest.mark.parametrize("name", FORMATS)
def test_no_value_differs(name):
    found = oracles(name)
    assert found
    for oracle in found:
        count, bad = check(name, oracle, values(name, STRIDE))
        assert not bad, (oracle.name, len(bad), bad[:5])
        assert count > (1 << 18)


def test_every_elementwise_preset_has_an_oracle():
    floats = [n for n in emulate.presets() if isinstance(emulate.preset(n), emulate.Float)]
    assert floats == list(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_of_a_format_stay(name):
    grid = numbers(name)
    assert np.array_equal(emulate.cast(torch.from_numpy(grid), name).numpy(), grid)
    info = emulate.preset(name).info()
    assert (info.largest, info.smallest_step) == (grid[-1], np.diff(grid).min())


ONCE = [name for name in FORMATS if name in GFLOAT or name.startswith("binary8p")]


@pytest.mark.parametrize("rounding", ["nearest", "zero"])
@pytest.mark.parametrize("name", [name for name in ONCE if name not in ("bf16", "e8m0")])
def test_one_rounding_from_float64(name, rounding):
    """Values that float32 would round to a border, or away from one."""
    (oracle,) = [one for one in oracles(name) if one.name == "gfloat"]
    x = borders(name).astype(np.float64)
    x = np.concatenate([x * (1 + side * 2.0**-40) for side in (-1, 0, 1)])
    x = x[oracle.holds(x)]
    mode = gfloat.RoundMode.TiesToEven if rounding == "nearest" else gfloat.RoundMode.TowardZero
    format = emulate.preset(name, rounding=rounding, **oracle.changes)
    theirs = gfloat.round_ndarray(format_of_gfloat(name), x, mode, name in FINITE)
    ours = emulate.cast(torch.from_numpy(x), format).numpy()
    bad = np.nonzero(~same(ours, theirs))[0]
    assert not len(bad), (len(bad), x[bad[0]], ours[bad[0]], theirs[bad[0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_their_values_in_float32(dtype):
    """All of them; a result is rounded to the dtype where that lacks the number."""
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    for name in FORMATS:
        wide = emulate.cast(x.float(), name).to(dtype)
        assert same(emulate.cast(x, name).float().numpy(), wide.float().numpy()).all(), name
