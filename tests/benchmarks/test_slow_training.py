"""The benchmarks of DiLoCo, FSDP2 and exchanges: their formulas by hand, and runs without hosts."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from types import SimpleNamespace

import pytest

from benchmarks.training import diloco, exchanges, fsdp
from tests.distributed import run_pooled


def test_the_loss_at_a_time_lies_on_the_curve():
    curve = [(0.0, 5.0), (10.0, 3.0), (30.0, 2.0)]
    times = (0.0, 5.0, 10.0, 20.0, 30.0)
    assert [diloco.loss_at(curve, t) for t in times] == [5.0, 4.0, 3.0, 2.5, 2.0]
    with pytest.raises(ValueError, match="31.0 s lie outside of a curve of 30.0 s"):
        diloco.loss_at(curve, 31.0)
    assert [diloco.time_of(curve, loss) for loss in (4.0, 2.5, 2.0, 1.9)] == [5.0, 20.0, 30.0, None]


def _run(method, seed, curve, sent):
    return {"method": method.name, "seed": seed, "curve": curve, "steps": len(curve),
            "parameters": 250_000, "link_bytes_per_step": sent}  # fmt: skip


def _diloco_runs():
    base, _, fast = diloco.methods("rotated", 4, 20)
    return [
        _run(base, 0, [(0.0, 5.0), (60.0, 3.0)], 1000),
        _run(fast, 0, [(0.0, 5.0), (10.0, 3.0), (50.0, 1.0)], 10),
        _run(fast, 1, [(0.0, 5.0), (10.0, 4.5), (50.0, 4.0)], 30),
        _run(base, 1, [(0.0, 5.0), (60.0, 3.0)], 1000),
    ]


def test_runs_of_one_seed_are_compared_at_equal_time(tmp_path):
    base, other, fast = diloco.methods("rotated", 4, 20)
    runs = _diloco_runs()
    row = diloco.summary(fast, runs)
    assert row["losses"] == [1.0, 4.0] and row["loss"] == 2.5
    assert row["faster_to_base_loss"] == [6.0, None] and row["link_bytes_per_step"] == 20
    slow = diloco.summary(base, runs)
    assert slow["losses"] == pytest.approx([5 - 2 * 50 / 60] * 2)
    text = diloco.table([slow, row])
    assert "6.0x as fast" in text and "50.0x" in text
    document = {
        "codec": "rotated",
        "bits": 4,
        "every": 20,
        "hosts": 2,
        "rate": "50mbit",
        "runs": runs,
    }
    document["runs"] += [_run(other, 0, [(0.0, 5.0), (60.0, 2.0)], 100)]
    document["machine"] = {"cpu": "some"}
    diloco.draw(document, str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_a_run_is_the_example_on_the_bed(tmp_path):
    commands = []

    def run(command, ranks, timeout):
        commands.append(command)
        found = {"steps": 40, "train_seconds": 6.5, "parameters": 7, "bytes_sent_per_step": 3.0,
                 "curve": [{"seconds": 0.0, "val_loss": 5.0, "steps": 0}]}  # fmt: skip
        (tmp_path / "diloco.json").write_text(json.dumps(found))

    def traffic_of(call):
        call()
        return None, [SimpleNamespace(sent_bytes=800), SimpleNamespace(sent_bytes=400)]

    bed = SimpleNamespace(folder=tmp_path, run=run, traffic_of=traffic_of)
    args = argparse.Namespace(every=10, options="--width 32")
    found = diloco.train(bed, diloco.methods("rotated", 4, 10)[2], args, 6, 3)
    assert found["link_bytes_per_step"] == 20 and found["curve"] == [[0.0, 5.0]]
    line = " ".join(commands[0])
    assert "--method diloco --backend cgx --codec rotated --bits 4 --every 10 --seconds 6" in line
    assert "--seed 3" in line and line.endswith(f"--width 32 --json {tmp_path}/diloco.json")


def _fsdp_run(rank, world_size, gradients, weights):
    job = {"gradients": gradients, "weights": weights, "layers": 1, "width": 32, "seed": 0,
           "steps": 3, "validate": False}  # fmt: skip
    with contextlib.redirect_stderr(io.StringIO()):
        return fsdp.trained(job)


def test_a_run_of_fsdp_is_what_its_job_says():
    exact = run_pooled(_fsdp_run, 2, None, None, backend="gloo")[0]
    found = run_pooled(_fsdp_run, 2, {"bits": 4}, {"bits": 8}, backend="gloo")[0]
    assert exact["parameters"] == found["parameters"] == 22_720
    assert exact["engine_bytes_per_step"] == 0 and not exact["compressed"]
    assert "gradients: compressing 6 of 12 parameters" in found["compressed"]
    # Per step half of 4 bits of the gradients, and of 8 bits of the weights: the block's twice.
    assert 11_000 * (0.5 + 1) < found["engine_bytes_per_step"] < 11_000 * (0.5 + 2) * 1.1
    assert abs(found["train_loss"] / exact["train_loss"] - 1) < 0.01


def test_rows_of_fsdp_are_of_equal_seeds(tmp_path):
    def run(method, seed, loss):
        return {"method": method, "seed": seed, "val_loss": loss, "step_seconds": 0.1,
                "engine_bytes_per_step": 5.0}  # fmt: skip

    runs = [
        run(fsdp.BASE, 0, 2.0),
        run("cgx", 0, 2.02),
        run("cgx", 1, 3.96),
        run(fsdp.BASE, 1, 4.0),
    ]
    rows = [
        fsdp.summary(fsdp.BASE, [32, 32], runs, 1000.0),
        fsdp.summary("cgx", [4, 8], runs, 250.0),
    ]
    assert rows[1]["percent_over_base_by_seed"] == pytest.approx([1.0, -1.0])
    assert rows[1]["percent_over_base"] == pytest.approx(0.0)
    assert "+1.00 -1.00" in fsdp.table(rows) and "4.00x" in fsdp.table(rows)
    document = {"rows": rows, "parameters": 1e6, "hosts": 2, "ranks_per_host": 1, "steps": 3}
    fsdp.draw(document, str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 10_000


def _exchanged(rank, world_size, model, method):
    job = {"model": model, "method": method, "bits": exchanges.METHODS[method], "layers": 2,
           "width": 32, "batch": 8, "seed": 0, "steps": 3}  # fmt: skip
    return exchanges.trained(job)


@pytest.mark.parametrize("model", exchanges.MODELS)
def test_exact_exchanges_train_as_torchs_do(model):
    found = {
        method: run_pooled(_exchanged, 2, model, method, backend="gloo")[0]["loss"]
        for method in (exchanges.BASE, "cgx exact", "cgx 8/4 bit")
    }
    assert found["cgx exact"] == pytest.approx(found[exchanges.BASE], rel=1e-6)
    assert found["cgx 8/4 bit"] == pytest.approx(found[exchanges.BASE], rel=1e-2)
    assert found["cgx 8/4 bit"] != found["cgx exact"]


def test_rows_of_exchanges_are_of_equal_seeds(tmp_path):
    def run(method, seed, loss, seconds):
        return {"model": "experts", "method": method, "seed": seed, "loss": loss,
                "step_seconds": seconds}  # fmt: skip

    runs = [run(exchanges.BASE, 0, 2.0, 0.3), run("cgx 8 bit", 0, 2.02, 0.1)]
    runs += [run("cgx 8 bit", 1, 3.96, 0.1), run(exchanges.BASE, 1, 4.0, 0.3)]
    rows = [
        exchanges.summary("experts", exchanges.BASE, runs, 1000.0),
        exchanges.summary("experts", "cgx 8 bit", runs, 250.0),
    ]
    assert rows[1]["percent_over_base"] == pytest.approx(0.0)
    assert rows[1]["faster"] == pytest.approx(3.0) and rows[1]["losses"] == [2.02, 3.96]
    assert "4.00x" in exchanges.table(rows) and "3.00x" in exchanges.table(rows)
    exchanges.draw({"rows": rows, "rate": "1gbit"}, str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 5_000
