"""CGXState.report(): a table of what happens to each parameter."""

from __future__ import annotations

import pytest
import torch

import torch_cgx
from cgx_utils import CGXState
from cgx_utils.report import Report
from cgx_utils.summary import Choice
from tests.distributed import run_pooled
from tests.utils.training import batch, loss_of, make_model, wrap


def _rows():
    codec = torch_cgx.codecs.MaxMin(bits=2, bucket_size=64)._engine
    return [
        ("body.weight", Choice(640, torch.float32, codec), 0.25),
        ("body.bias", Choice(10, torch.float32, None, "small"), 0.0),
        (None, Choice(128, torch.bfloat16, codec), None),
        ("half", Choice(20, torch.bfloat16, None, "small"), 0.0),
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
        "name         numel  bits  codec   relative error  bytes    share  why",
        "body.weight    640     2  maxmin            0.25    240   65.2 %",
        "body.bias       10    32  exact                0     40   10.9 %  small",
        "?              128     2  maxmin                     48   13.0 %",
        "half            20    16  exact                0     40   10.9 %  small",
        "total          798  3.69                            368  100.0 %",
    ]


def _uniform(rank, world_size):
    state = CGXState(compression_params={"bits": 4, "bucket_size": 64})
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
