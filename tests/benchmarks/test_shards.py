"""The benchmark of reduce-scatter and all-gather: a small run, and its check of results."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import shards
from tests.benchmarks import runs


def test_every_operation_is_measured_and_sends_its_bytes(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    tiny = ["--sizes", "64K", "--repeats", "3", "--bits", "32", "4"]
    done = runs.python("-m", "benchmarks.shards", *tiny, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["operation"], row["bits"]) for row in rows] == [
        (operation, bits) for operation in ("reduce_scatter", "all_gather") for bits in (32, 4)
    ]
    for row in rows:
        assert 0 < row["ratio_p10"] <= row["ratio_p90"] and row["seconds"] > 0
        half = 32 << 10  # one of two ranks' parts
        if row["bits"] == 4:
            assert half <= row["bytes_sent"] * 8 < 1.4 * half
    assert (tmp_path / "out.png").stat().st_size > 0


def test_a_wrong_result_is_found(monkeypatch):
    monkeypatch.setattr(shards.dist, "get_world_size", lambda: 2)
    x = torch.zeros(4)
    shards._check("reduce_scatter", 4, x + 0.7, x)
    with pytest.raises(RuntimeError, match="reduce_scatter with 4 bits is off by 0.9"):
        shards._check("reduce_scatter", 4, x + 0.9, x)
    with pytest.raises(RuntimeError, match="all_gather with 32 bits is off by"):
        shards._check("all_gather", 32, x + 1e-3, x)
