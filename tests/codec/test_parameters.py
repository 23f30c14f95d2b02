"""Real parameters between Python's values and the engine's texts."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from tests import _machinery


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1, "1"),
        (0.1, "0.1"),
        (1e-5, "1e-05"),
        (np.float64(0.25), "0.25"),
        (np.int32(1), "1"),
        (5e-324, "5e-324"),
        (1 / 3, "0.3333333333333333"),
    ],
)
def test_floats_and_ints_are_taken(value: Any, text: str) -> None:
    found, back, _ = _machinery.real_parameter(value, 0, 1)
    assert found == text
    assert type(back) is float
    assert back == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, 0.0, -0.0, 1.5, 2, 10**400])
def test_values_out_of_the_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="is not allowed; rate takes finite") as error:
        _machinery.real_parameter(value, 0, 1, open_least=True)
    assert "above 0 and up to 1" in str(error.value)
    shown = "0" if value == 0 else repr(value).removesuffix(".0")
    assert f"='{shown}'" in str(error.value).replace("-0'", "0'")


@pytest.mark.parametrize("value", [True, False, "0.5", None, [0.5], 1j])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a float, got .*; allowed: numbers from 0 to 1"):
        _machinery.real_parameter(value, 0, 1)


def test_the_row_for_tables() -> None:
    _, _, row = _machinery.real_parameter(0.5, 0.25, sys.float_info.max)
    assert row["kind"] == "real"
    assert row["type"] == "float"
    assert (row["value"], row["low"], row["high"]) == (0.5, 0.25, sys.float_info.max)
    assert row["allowed"] == "finite numbers from 0.25"
