"""The benchmark of bits per layer: a short run of the real thing, and its errors by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from benchmarks.training import adaptive
from tests.benchmarks import runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    done = runs.python(
        "-m", "benchmarks.training.adaptive", "--quick", "--codecs", "maxmin", *files
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text()), folder / "out.png"


def test_adaptive_bits_err_less_in_as_many_bytes(finished):
    rows = finished[1]["rows"]
    found = {(r["dtype"], r["average_bits"], r["measured_step"], r["step"]) for r in rows}
    pairs = ((2, 2), (4, 4), (2, 4))
    assert found == {(d, b, *p) for d in ("float32", "bfloat16") for b in (2, 3, 4) for p in pairs}
    for row in rows:
        assert (row["model"], row["codec"]) == ("gpt", "maxmin")
        assert 0 < row["bytes_adaptive"] <= row["bytes_uniform"]
        assert len(set(row["bits"].values())) > 1
        ratio = (row["relative_error_adaptive"] / row["relative_error_uniform"]) ** 2
        assert row["ratio"] == pytest.approx(ratio)
        if row["step"] == row["measured_step"]:
            assert row["ratio"] <= adaptive.TARGET


def test_costs_table_and_picture(finished):
    stdout, document, picture = finished
    (cost,) = document["costs"]
    assert cost["layers"] == len(document["rows"][0]["bits"])
    assert 0 < cost["uniform_seconds"] < cost["decision_seconds"]
    assert 0 < cost["between_seconds"] < cost["decision_seconds"]
    assert "18 layers" in stdout and stdout.count("gpt ") == len(document["rows"])
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000


def test_rows_by_hand():
    """Two layers, one of them so large that all bytes go there."""
    torch.manual_seed(0)
    run = {2: {"large": 1e3 * torch.randn(2048), "small": torch.randn(2048)}}
    (row,) = adaptive.error_rows("x", "float32", run, "maxmin", [2])
    assert row["bits"] == {"large": 3, "small": 1}
    assert row["bytes_adaptive"] == row["bytes_uniform"] == 2 * (2048 // 4 + 4 * 8)

    def error(values, bits):
        buckets = values.double().numpy().reshape(-1, 512)
        low, high = buckets.min(1, keepdims=True), buckets.max(1, keepdims=True)
        unit = (high - low) / (2**bits - 1)
        return float(((low + np.round((buckets - low) / unit) * unit - buckets) ** 2).sum())

    large, small = run[2].values()
    squares = sum(float(v.double().square().sum()) for v in (large, small))
    uniform, chosen = error(large, 2) + error(small, 2), error(large, 3) + error(small, 1)
    assert row["relative_error_uniform"] == pytest.approx(math.sqrt(uniform / squares), rel=1e-4)
    assert row["relative_error_adaptive"] == pytest.approx(math.sqrt(chosen / squares), rel=1e-4)
    assert row["ratio"] == pytest.approx(chosen / uniform, rel=1e-3)
