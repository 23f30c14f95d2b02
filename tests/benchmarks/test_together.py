"""Compressed gradients and saved tensors at once: a small run, pairs of seeds, and the table."""

from __future__ import annotations

import dataclasses
import json

import numpy
import pytest

from benchmarks.report import together as report
from benchmarks.training import activations as alone
from benchmarks.training import together as benchmark
from tests.benchmarks import runs
from tests.distributed import run_pooled


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.training.together", "--quick", "--steps", "3", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    facts, rows = document["machine"], document["rows"]
    assert (facts["seeds"], facts["ranks"], facts["steps"]) == (2, 2, 3)
    assert [row["method"] for row in rows] == list(benchmark.METHODS)
    seen = [(run["method"], run["seed"]) for run in document["runs"]]
    assert sorted(seen) == sorted((m, seed) for m in benchmark.METHODS for seed in (0, 1))
    assert rows == json.loads(json.dumps(report.summary(document["runs"])))
    exact, gradients, saved, both = rows
    # Of two ranks, each sends half of the values twice.
    assert exact["sent_bytes"] == saved["sent_bytes"] == pytest.approx(4 * exact["trained"], 0.01)
    assert gradients["sent_bytes"] == both["sent_bytes"] < exact["sent_bytes"] / 7
    assert exact["kept_bytes"] == gradients["kept_bytes"]
    assert saved["kept_bytes"] == both["kept_bytes"] < exact["kept_bytes"] / 7
    for run in document["runs"]:
        kept = run["method"] in (saved["method"], both["method"])
        assert (run["payload_bytes"] is not None) == (run["saved_bytes"] is not None) == kept
        assert not kept or run["payload_bytes"] < run["kept_bytes"] < run["saved_bytes"]
    assert len({run["val_loss"] for run in document["runs"]}) == len(
        seen
    )  # all are other trainings
    head, *lines = document["monitor"]
    assert "MB/step" in head and "kept MB" in head and len(lines) == 3
    assert "nothing is compressed" not in done.stderr and "seed 1" in done.stderr
    assert (tmp_path / "out.png").stat().st_size > 10_000


SIZES = dataclasses.replace(alone.QUICK, steps=1, megabytes=0.2, layers=1, batch=4, context=32)


def _first_losses(rank, world_size):
    """Of a step of each method, of this rank; for the exact method also of the other seed."""
    import torch.distributed as dist

    found = []
    loss_of = benchmark.loss_of

    def loss(logits, y):
        result = loss_of(logits, y)
        found.append(result.item())
        return result

    benchmark.loss_of = loss
    try:
        group = dist.new_group(backend="cgx")
        for method in benchmark.METHODS:
            benchmark.train(method, 0, SIZES, group)
        benchmark.train(benchmark.EXACT, 1, SIZES, group)
    finally:
        benchmark.loss_of = loss_of
    return found


def test_methods_of_a_seed_are_paired_and_ranks_see_other_data():
    """The loss of the first step has the same weights, batch and masks, compressed or not."""
    first, second = run_pooled(_first_losses, 2, backend="gloo")
    for losses in (first, second):
        assert losses[0] == losses[1] == losses[2] == losses[3] != losses[4]
    assert first[0] != second[0]


def _runs(method, losses, sent, kept):
    return [
        {"task": "gpt", "method": method, "seed": seed, "val_loss": loss, "accuracy": None}
        | {"sent_bytes": sent, "kept_bytes": kept, "step_seconds": 0.01, "trained": 10}
        for seed, loss in enumerate(losses)
    ]


def _made_up():
    return (
        _runs("exact", [2.0, 2.2, 2.1], 8 << 20, 8 << 20)
        + _runs("gradients 4 bits", [2.02, 2.2, 2.205], 1 << 20, 8 << 20)[::-1]
        + _runs("both", [2.0, 2.2, 2.1], 1 << 20, 2 << 20)
    )


def test_summary_of_made_up_runs():
    exact, gradients, both = report.summary(_made_up())
    harms = 100 * (numpy.array([2.02, 2.2, 2.205]) / [2.0, 2.2, 2.1] - 1)
    assert gradients["harm"] == pytest.approx(harms.mean())
    assert (gradients["fewer_sent"], gradients["fewer"]) == (8, 1)
    assert (both["fewer_sent"], both["fewer"], both["harm"]) == (8, 4, 0)
    assert (exact["fewer_sent"], exact["sent_bytes"]) == (1, 8 << 20)


def test_the_table_has_a_row_for_each_method_and_the_lines_of_the_monitor(tmp_path):
    facts = {"seeds": 3, "steps": 300, "ranks": 2}
    facts |= {"cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13"}
    rows = report.summary(_made_up())
    head, line = "cgx:  step  kept MB", "cgx:   100 " + "x" * 150
    document = {"machine": facts, "rows": rows, "monitor": [head, line]}
    caption, table, _, lines = report.table(document).split("\n\n")
    assert "2 ranks, 300 steps, 3 seeds" in caption.replace("\n", " ")
    assert table.splitlines()[2:] == [
        "| exact | 2.1000 | 8 MiB | 1.0x | 8 MiB | 1.0x |  | 4.76 |  |",
        "| gradients 4 bits | 2.1417 | 1 MiB | 8.0x | 8 MiB | 1.0x | +2.00 ± 6.57 | 4.76 | 0.42 |",
        "| both | 2.1000 | 1 MiB | 8.0x | 2 MiB | 4.0x | +0.00 ± 0.00 | 4.76 | 0.00 |",
    ]
    first, second = lines.splitlines()
    assert first == f"    {head}"
    assert second.startswith("    cgx:   100 xx") and second.endswith("xx...")
    assert len(second) <= 125  # as all lines of the pages
    report.draw(_made_up(), rows, str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_a_bad_number_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["--seeds", "1"])
    assert caught.value.code == 2 and "'1'" in capsys.readouterr().err
