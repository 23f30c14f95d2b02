"""Training with saved activations in few bits: a small run, its pairs of seeds, and its tables."""

from __future__ import annotations

import dataclasses
import json

import numpy
import pytest
import torch
from torch import nn

from benchmarks.report import activations_training as report
from benchmarks.training import activations as benchmark
from tests.benchmarks import runs

MACHINE = {"cpu": "x", "cores": 1, "torch": "2", "simd": "avx2"}
SIZES = dataclasses.replace(benchmark.QUICK, steps=3, windows=1)


def test_a_small_run(tmp_path):
    pytest.importorskip("sklearn")
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    tiny = ["--quick", "--steps", "2", "--workers", "1"]
    done = runs.python("-m", "benchmarks.training.activations", *tiny, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    facts, rows = document["machine"], document["rows"]
    assert facts["seeds"] == 2 and facts["steps"] == facts["digits"] == 2
    cases = [(task, method) for task, methods in benchmark.TASKS.items() for method in methods]
    assert [(row["task"], row["method"]) for row in rows] == cases
    seen = [(run["task"], run["method"], run["seed"]) for run in document["runs"]]
    assert sorted(seen) == sorted((*case, seed) for case in cases for seed in (0, 1))
    assert rows == json.loads(json.dumps(report.summary(document["runs"])))
    for run in document["runs"]:
        assert run["val_loss"] > 0 and run["step_seconds"] > 0 and run["trained"] > 0
        assert (run["accuracy"] is not None) == (run["task"] == "digits")
    kept = {(row["task"], row["method"]): row["kept_bytes"] for row in rows}
    for task in ("gpt", "digits"):
        order = ["exact", "3-bit functions", "8 bits", "4 bits", "3 bits", "2 bits"]
        sizes = [kept[task, method] for method in order]
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
        assert kept[task, "2 bits, nearest"] == kept[task, "2 bits"]
        assert kept[task, "modules, 4 bits"] < kept[task, "4 bits"] < kept[task, "exact"] / 6
    assert kept["gpt", "2 bits, loss too"] < kept["gpt", "2 bits"]
    tuning = [kept[task, "exact"] for task in benchmark.TUNING]
    assert tuning[0] == kept["gpt", "exact"] and tuning[2] < tuning[1] < tuning[0]
    assert "2 bits, nearest" in done.stdout and "seed 1" in done.stderr
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_linear_layers_that_keep_a_part():
    rows = []
    for task, methods in benchmark.TASKS_OF_PROJECTIONS.items():
        for method in methods:
            for seed in (0, 1) if method == "exact" else (0,):
                rows.append(benchmark.run(benchmark.Job(task, method, seed, SIZES))[0])
    kept = {(row["task"], row["method"]): row["kept_bytes"] for row in rows}
    for task in ("gpt", "digits"):
        sizes = [kept[task, method] for method in ("exact", "keep 0.5", "keep 0.2", "keep 0.1")]
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
        assert kept[task, "keep 0.2, 4 bits"] < kept[task, "keep 0.2"] / 4
    both = [row for row in rows if row["seed"] == 0 or row["method"] == "exact"]
    pairs = [row | {"seed": 1} for row in both if row["method"] != "exact"]
    document = {
        "benchmark": "projections-training",
        "machine": {"seeds": 2, "steps": 3, "digits": 3, **MACHINE},
        "rows": report.summary([*rows, *pairs]),
    }
    table = report.training_table(document)
    assert "| gpt | keep 0.2, 4 bits |" in table and "tuning" not in table


def test_a_run_comes_again_and_its_seed_counts():
    job = benchmark.Job("gpt", "2 bits", 0, SIZES)
    (first, weights), (again, same) = benchmark.run(job), benchmark.run(job)
    del first["step_seconds"], again["step_seconds"]
    assert first == again
    assert all(numpy.array_equal(weights[name], same[name]) for name in weights)
    other, _ = benchmark.run(dataclasses.replace(job, seed=1))
    assert other["val_loss"] != first["val_loss"]


def test_methods_of_a_seed_are_paired(monkeypatch):
    """The loss of the first step has the same weights, batch and masks, converted or not."""
    seen: list[float] = []
    loss_of = benchmark._loss

    def loss(logits, y):
        found = loss_of(logits, y)
        seen.append(found.item())
        return found

    monkeypatch.setattr(benchmark, "_loss", loss)
    first = []
    for method in ("exact", "3-bit functions", "2 bits"):
        seen.clear()
        benchmark.run(benchmark.Job("gpt", method, 0, SIZES))
        first.append(seen[0])
    assert first[0] == first[1] == first[2]


def test_adapters_begin_with_the_base_and_freeze_it():
    torch.manual_seed(0)
    model = benchmark.gpt_model(SIZES).eval()
    tokens = torch.randint(0, 256, (2, 8))
    before = model(tokens)
    benchmark.adapt(model, ("qkv", "up"))
    assert torch.equal(model(tokens), before)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    width, layers = SIZES.width, SIZES.layers
    numel = layers * benchmark.RANK * ((width + 3 * width) + (width + 4 * width))
    assert sum(p.numel() for p in trained.values()) == numel
    assert all(".into." in name or ".out." in name for name in trained)


def test_payloads_that_memory_does_not_count_are_an_error(monkeypatch):
    class Nothing:
        total = 1

    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())

    def memory(model, x, loss):
        loss(model(x))
        return Nothing

    monkeypatch.setattr(benchmark.activations, "memory", memory)
    x, y = torch.randn(64, 64), torch.zeros(64, dtype=torch.int64)
    assert benchmark.kept_bytes(model, benchmark.METHODS["exact"], x, y) == 1
    with pytest.raises(RuntimeError, match="counts 1 bytes"):
        benchmark.kept_bytes(model, benchmark.METHODS["4 bits"], x, y)


def test_a_bad_number_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        benchmark.main(["--seeds", "1"])
    assert caught.value.code == 2 and "'1'" in capsys.readouterr().err


def _runs(task, method, losses, accuracies=None, kept=1 << 20):
    accuracies = accuracies or [None] * len(losses)
    return [
        {"task": task, "method": method, "seed": seed, "val_loss": loss, "accuracy": accuracy}
        | {"kept_bytes": kept, "step_seconds": 0.01, "trained": 10}
        for seed, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]


def test_harm_and_noise_of_made_up_runs():
    found = report.summary(
        _runs("gpt", "exact", [2.0, 2.2, 2.1], kept=8 << 20)
        + _runs("gpt", "4 bits", [2.02, 2.2, 2.205])[::-1]
        + _runs("digits", "exact", [0.1, 0.1, 0.1], [0.98, 0.99, 0.97])
        + _runs("digits", "4 bits", [0.1, 0.1, 0.1], [0.97, 0.99, 0.97])
    )
    gpt, digits = found[1], found[3]
    harms = 100 * (numpy.array([2.02, 2.2, 2.205]) / [2.0, 2.2, 2.1] - 1)
    noise = 100 * numpy.std([2.0, 2.2, 2.1], ddof=1) / 2.1
    assert gpt["harm"] == pytest.approx(harms.mean()) and gpt["noise"] == pytest.approx(noise)
    assert gpt["of_noise"] == pytest.approx(harms.mean() / noise) and gpt["fewer"] == 8
    half = 4.303 * harms.std(ddof=1) / 3**0.5
    assert gpt["harm_interval"] == pytest.approx(half)
    assert digits["harm"] == pytest.approx(1 / 3) and digits["noise"] == pytest.approx(1.0)
    assert digits["accuracy"] == pytest.approx(2.93 / 3) and gpt["accuracy"] is None


def test_without_noise_there_is_no_share_of_it():
    row = report.summary(_runs("gpt", "exact", [2.0, 2.0]))[0]
    assert row["noise"] == 0 and row["of_noise"] is None


def test_the_table_has_a_row_for_each_method():
    facts = {"seeds": 3, "steps": 300, "digits": 435, "tuning": 80, "load": 1.5}
    facts |= {"cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13"}
    rows = report.summary(
        _runs("digits", "exact", [0.1, 0.1, 0.1], [0.98, 0.99, 0.97], 8 << 20)
        + _runs("digits", "4 bits", [0.12, 0.1, 0.1], [0.97, 0.99, 0.97])
    )
    caption, lines = report.training_table({"machine": facts, "rows": rows}).split("\n\n")
    assert "3 seeds" in caption and "435 of digits" in caption.replace("\n", " ")
    assert lines.splitlines()[2:] == [
        "| digits | exact | 0.1000 | 98.00 % | 8 MiB | 1.0x |  | 1.00 |  |",
        "| digits | 4 bits | 0.1067 | 97.67 % | 1 MiB | 8.0x | +0.33 ± 1.43 | 1.00 | 0.33 |",
    ]
