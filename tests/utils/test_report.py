"""CGXState.report(): a table of what happens to each parameter."""

from __future__ import annotations

import pytest
import torch

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, Monitor
from cgx_utils.report import Report
from cgx_utils.summary import Decision
from tests.distributed import run_pooled
from tests.utils.training import COMPRESSED, batch, loss_of, make_model, wrap


def _rows():
    codec = torch_cgx.codecs.MaxMin(bits=2, bucket_size=64)._engine
    return [
        ("body.weight", Decision(640, torch.float32, codec), 0.25),
        ("body.bias", Decision(10, torch.float32, None, "small"), 0.0),
        (None, Decision(128, torch.bfloat16, codec), None),
        ("half", Decision(20, torch.bfloat16, None, "small"), 0.0),
    ]


def test_rows():
    rows = Report(_rows()).rows
    assert [row["bytes"] for row in rows] == [640 // 4 + 10 * 8, 40, 128 // 4 + 2 * 8, 40]
    assert [row["bits"] for row in rows] == [2, 32, 2, 16]
    assert [row["codec"] for row in rows] == ["maxmin", "exact", "maxmin", "exact"]
    assert [row["relative_error"] for row in rows] == [0.25, 0.0, None, 0.0]
    assert [row["share"] for row in rows] == pytest.approx(
        [240 / 368, 40 / 368, 48 / 368, 40 / 368]
    )


def test_table():
    assert str(Report(_rows())).splitlines() == [
        "name                numel    bits  codec   relative error  bytes    share  why",
        "body.weight           640       2  maxmin            0.25    240   65.2 %",
        "?                     128       2  maxmin                     48   13.0 %",
        "2 exact parameters     30  16, 32  exact                0     80   21.7 %  small",
        "total                 798    3.69                            368  100.0 %",
    ]


def test_exact_parameters_are_one_line():
    exact = [("bias", Decision(10, torch.float32, None, "small"), 0.0)]
    line = str(Report(exact)).splitlines()[1]
    assert line.split() == "bias 10 32 exact 0 40 100.0 % small".split()
    exact += [(f"norm{i}", Decision(20, torch.float32, None, "a vector"), 0.0) for i in range(40)]
    lines = str(Report([*_rows(), *exact])).splitlines()
    assert len(lines) == 5
    assert lines[3].startswith("43 exact parameters    840  16, 32  exact")
    assert lines[3].endswith("40 by a vector, 3 by small")
    assert len(Report(exact).rows) == 41


def _uniform(rank, world_size):
    state = CGXState(config={"bits": 4, "bucket_size": 64})
    model = wrap(make_model(), state)
    for step in range(2):
        loss_of(model, batch(rank, step)).backward()
    exact = CGXState()
    words = wrap(torch.nn.Linear(64, 64).double(), exact)
    words(torch.ones(1, 64).double()).sum().backward()
    return state.report().rows, exact.report().rows


def test_without_adaptive_bits():
    first, second = run_pooled(_uniform, 2)
    assert first == second
    rows, exact = first
    assert [row["name"] for row in rows] == [name for name, _ in make_model().named_parameters()]
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    for row in rows:
        compressed = row["name"] in ("first.weight", "second.weight")
        assert (row["bits"], row["codec"]) == ((4, "maxmin") if compressed else (32, "exact"))
        if compressed:  # of one encoding of the averaged gradient
            assert 0.03 < row["relative_error"] < 0.3
        else:
            assert row["relative_error"] == 0.0
    # A bucket of another dtype has no plan.
    assert [(row["name"], row["bits"], row["bytes"]) for row in exact] == [
        ("weight", 64, 64 * 64 * 8),
        ("bias", 64, 64 * 8),
    ]


def _reported(rank, world_size):
    state = CGXState(config={"bits": 4, "bucket_size": 64})
    model = wrap(make_model(), state)
    for step in range(2):
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
    alone = {row["name"]: row for row in state.report().rows}
    monitor = Monitor(model, 1, lambda record: None)
    for step in range(4):
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
    watched = {row["name"]: row["relative_error"] for row in state.report().rows}
    errors = dict(monitor._observer.errors)
    monitor.close()
    model.zero_grad(set_to_none=True)
    bare = {row["name"]: row["relative_error"] for row in state.report().rows}
    return alone, watched, errors, bare


def test_the_report_says_why_and_how_far_off():
    alone, watched, errors, bare = run_pooled(_reported, 2)[0]
    assert alone["first.bias"]["why"] == "min_size=1024 (fewer values)"
    for name in COMPRESSED:
        assert alone[name]["why"] == ""
        assert 0.02 < alone[name]["relative_error"] < 0.3  # of the parameter's grad
        assert watched[name] == errors[name]
        assert bare[name] is None
    assert alone["first.bias"]["relative_error"] == 0.0


@pytest.mark.parametrize(
    "options, shown",
    [
        ({}, (False, None)),
        ({"error_feedback": True}, (True, None)),
        ({"adaptive": AdaptiveBits(average_bits=4.0)}, (False, AdaptiveBits(average_bits=4.0))),
    ],
)
def test_a_state_says_what_it_was_made_with(options, shown):
    state = CGXState(**options)
    assert (state.error_feedback, state.adaptive) == shown
