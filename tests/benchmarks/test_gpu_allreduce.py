"""The benchmark of two ranks on one GPU, on the fake device, where there is no NCCL. Speeds are not
tested.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_allreduce
from tests.benchmarks import runs
from tests.device import fake_cuda


def _rows(rank, world_size):
    return gpu_allreduce.measure({"sizes": [64 << 10], "rounds": 2})["rows"]


@fake_cuda.needed
def test_every_method_is_measured_and_checked(tmp_path):
    rows, again = fake_cuda.run(_rows, 2, backend="gloo")
    found = {row["method"]: row for row in rows}
    assert list(found) == ["gloo", "cgx exact", "cgx 8 bit", "cgx 4 bit"]
    for row in rows:
        assert row["equal"] and row["bytes"] == 65536
        assert 0 < row["seconds_q1"] <= row["seconds"] <= row["seconds_q3"]
        assert row["algbw"] == pytest.approx(65536 / row["seconds"] / 1e9)
        assert row["of_gloo"] == pytest.approx(found["gloo"]["seconds"] / row["seconds"])
    errors = {name: row["relative_error"] for name, row in found.items()}
    assert errors["gloo"] < 1e-6 and errors["cgx exact"] < 1e-6
    assert 1e-4 < errors["cgx 8 bit"] < 0.02 < errors["cgx 4 bit"] < 0.3
    assert [r["method"] for r in again] == list(found)
    assert "cgx 4 bit" in gpu_allreduce.table(rows)
    gpu_allreduce.plot(rows, "a GPU", str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    done = runs.python("benchmarks/gpu_allreduce.py")
    assert done.returncode == 0 and "no CUDA device" in done.stderr
