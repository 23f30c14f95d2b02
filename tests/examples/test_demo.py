"""The demo's table and picture, the comparison's means, and the check that ranks agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import common
import compare
import demo
import pytest
import torch
import torch.distributed as dist
from common import Ranks

from tests.distributed import RanksFailed, run_pooled


def fake_run(bits: int, **changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "backend": "gloo" if bits == 32 else "cgx",
        "bits": bits,
        "seed": 0,
        "world_size": 2,
        "parameters": 1000,
        "loss": [2.0 / (1 + i) for i in range(40)],
        "accuracy": 0.98,
        "final_train_loss": 0.1,
        "final_val_loss": 0.2,
        "bytes_sent_per_step": 4000.0 * bits / 32,
        "step_time_ms_median": 1.5,
    }
    return run | changes


def test_table_has_a_line_per_run() -> None:
    lines = demo.table([fake_run(32), fake_run(4, accuracy=0.975)]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("gloo, 32 bits (exact)") and "98.00 %" in lines[2]
    assert lines[3].startswith("cgx, 4 bits ") and "97.50 %" in lines[3] and "500" in lines[3]
    assert len({len(line) for line in lines}) == 1


def test_running_mean() -> None:
    assert demo.running_mean([1.0, 3.0, 5.0, 10.0], 2) == [2.0, 4.0, 7.5]
    assert demo.running_mean([1.0, 3.0], 2) == [2.0]


def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    demo.plot([fake_run(32), fake_run(4)], path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


def test_missing_module_is_named() -> None:
    with pytest.raises(SystemExit, match="the demo needs no_such_module:"):
        demo.require(["json", "no_such_module"])


def test_summary_of_seeds() -> None:
    exact = [fake_run(32, seed=s, accuracy=0.97 + 0.01 * s) for s in range(3)]
    small = [fake_run(4, seed=s, accuracy=0.97, final_val_loss=0.2 + 0.01 * s) for s in range(3)]
    row = compare.summary(4, small, exact)
    assert row["accuracy_change"] == pytest.approx(-1.0)
    assert row["loss_change"] == pytest.approx(0.05)
    assert row["val_loss_stdev"] == pytest.approx(0.01)
    assert row["bytes_ratio"] == pytest.approx(8)
    assert "accuracy 97.00 % (-1.00 points)" in compare.line(row)


def agree(rank: int, world_size: int, different: int | None) -> str:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        if rank == different:
            model.weight[1, 2] += 1e-6
    assert dist.get_world_size() == world_size
    return common.require_equal_weights(model, Ranks(rank, world_size, torch.device("cpu")))


def test_equal_weights_are_told_from_almost_equal_ones() -> None:
    assert len(set(run_pooled(agree, 3, None))) == 1
    with pytest.raises(RanksFailed, match=r"weights of ranks \[2\] differ from those of rank 0"):
        run_pooled(agree, 3, 2)
