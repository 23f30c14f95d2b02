"""The benchmark of two ranks on one GPU, on the fake device, where there is no NCCL. Speeds are not
tested.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

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


def _refused(rank, world_size):
    """NCCL takes rank 0, as far as that one can tell, and refuses rank 1."""
    new_group = dist.new_group

    def pretend(ranks=None, timeout=None, backend=None, **options):
        if backend != "nccl":
            return new_group(ranks, timeout, backend, **options)
        if rank == 1:
            raise RuntimeError("two ranks on one GPU\nand more")
        return new_group([0], backend="gloo", use_local_synchronization=True)

    before = dist.is_nccl_available
    dist.new_group, dist.is_nccl_available = pretend, lambda: True
    try:
        return gpu_allreduce.measure({"sizes": [4096, 8192], "rounds": 1})["rows"]
    finally:
        dist.new_group, dist.is_nccl_available = new_group, before


@fake_cuda.needed
def test_nccl_that_refuses_one_rank_is_a_row_on_both(tmp_path):
    for rows in fake_cuda.run(_refused, 2, backend="gloo"):
        refused = [row for row in rows if "refused" in row]
        assert refused == [
            {"method": "nccl", "bytes": n, "refused": "two ranks on one GPU"} for n in (4096, 8192)
        ]
        assert len(rows) == 2 * (4 + 1)
        lines = gpu_allreduce.table(rows).splitlines()
        assert lines[5].split(None, 2) == ["4K", "nccl", "refused: two ranks on one GPU"]
        gpu_allreduce.plot(rows, "a GPU", str(tmp_path / "out.png"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    done = runs.python("benchmarks/gpu_allreduce.py")
    assert done.returncode == 0 and "no CUDA device" in done.stderr
