"""What several sets of processes measured is put together as if one had measured it all."""

from __future__ import annotations

import pytest

from benchmarks import _measure, exact


def row_of(method, seconds, *, equal=True, error=0.0, sent=10, stages=None):
    return {
        "method": method,
        "equal": equal,
        "within_bound": error < 0.5,
        "relative_error": error,
        "wire_bytes": sent,
        "wire_source": "measured",
        "stages": stages,
        "seconds": seconds,
    }


def part_of(*rows, copy, add):
    return {
        "bytes": 400,
        "calls_per_sample": 1,
        "copy_seconds": copy,
        "add_seconds": add,
        "rows": list(rows),
    }


@pytest.fixture
def parts():
    first = part_of(
        row_of("cgx", [2.0, 4.0], stages={"encode": 1.0, "transfer": 3.0}),
        row_of(exact.CONTROL, [8.0, 8.0]),
        row_of(exact.GLOO, [8.0, 16.0]),
        copy=[0.5],
        add=[0.25],
    )
    second = part_of(
        row_of(
            "cgx", [3.0], equal=False, error=0.75, sent=12, stages={"encode": 2.0, "transfer": 5.0}
        ),
        row_of(exact.CONTROL, [9.0]),
        row_of(exact.GLOO, [3.0]),
        copy=[0.75],
        add=[0.125],
    )
    return first, second


def test_times_of_all_sets_are_kept_in_order_of_each_method(parts):
    whole = exact.merged(parts)
    assert whole["bytes"] == 400
    assert [row["method"] for row in whole["rows"]] == [exact.GLOO, exact.CONTROL, "cgx"]
    assert [row["seconds"] for row in whole["rows"]] == [
        [8.0, 16.0, 3.0],
        [8.0, 8.0, 9.0],
        [2.0, 4.0, 3.0],
    ]
    assert (whole["copy_seconds"], whole["add_seconds"]) == ([0.5, 0.75], [0.25, 0.125])


def test_one_wrong_set_makes_the_row_wrong(parts):
    gloo, _, cgx = exact.merged(parts)["rows"]
    assert (cgx["equal"], cgx["within_bound"], cgx["relative_error"]) == (False, False, 0.75)
    assert cgx["wire_bytes"] == 12
    assert cgx["stages"] == {"encode": 1.5, "transfer": 4.0}
    assert (gloo["equal"], gloo["within_bound"], gloo["stages"]) == (True, True, None)


def test_a_ratio_is_of_times_of_one_set(parts):
    """The repetition that gloo and cgx shared, never one of another set of processes."""
    rows = _measure.to_rows([exact.merged(parts)], 2)
    (cgx,) = (row for row in rows if row["method"] == "cgx")
    assert cgx["speedup"] == 4.0  # median of 8/2, 16/4 and 3/3
