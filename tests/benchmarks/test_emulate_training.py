"""The benchmarks of products and of trainings in formats: small runs, tables and targets."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as main
from benchmarks import emulate_gemm
from benchmarks.report import emulate_gemm as products
from benchmarks.report import emulate_training as trainings
from benchmarks.report import targets
from benchmarks.report.results import Missing, Results
from benchmarks.training import emulated
from tests.benchmarks import runs


def test_a_small_run_of_products(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.emulate_gemm", "--size", "64", "--rounds", "1", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    rows = document["rows"]
    for level in emulate_gemm.levels():
        kinds = {row["kind"] for row in rows if row["level"] == level}
        assert kinds == {"casts", "sums", "layers"}
    for row in rows:
        assert 0 < row["fraction_q1"] <= row["fraction"] <= row["fraction_q3"]
        assert ("gflops" in row) == (row["kind"] == "sums")
    assert (tmp_path / "out.png").stat().st_size > 10_000
    assert "sums in a format: hopper14" in products.table(document)
    found = Results({"emulate_gemm": document})
    assert products.slowest("sums", "gflops", "Kahan")(found) > 0
    with pytest.raises(Missing):
        products.slowest("nothing", "fraction")(found)
    for target in targets._emulate_gemm():
        assert "not measured" in target.row(Results({}))[3]
        assert "not measured" not in target.row(found)[3]


def test_a_small_run_of_trainings(tmp_path):
    pytest.importorskip("sklearn")
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.training.emulated", "--quick", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert list(document["sweeps"]) == list(emulated.QUICK)
    for name, sweep in document["sweeps"].items():
        recipes = ["fp32", *emulated.QUICK[name].recipes]
        assert [row["recipe"] for row in sweep["rows"]] == recipes
        assert len(sweep["runs"]) == 2 * len(recipes)
    text = trainings.table(document)
    assert "| cpd43+aps | " in text and "8 nodes" in text and "±" in text
    found = Results({"emulate_training": document})
    assert abs(trainings.difference("digits", "mxfp8")(found)) < 0.1
    with pytest.raises(Missing):
        trainings.difference("digits", "mxfp4")(found)
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_names_of_parts_may_have_underscores():
    assert main.arguments(["emulate_training", "--quick"]).what == ["emulate-training"]


def test_a_training_that_diverged_has_no_difference():
    row = {"recipe": "x", "seeds": 2, "diverged": 1, "loss": 2.0, "difference": None}
    row |= {"interval": None, "accuracy": None, "bits": 4.0, "time": 1.0}
    settings = {"model": "gpt", "steps": 3, "batch": 2, "emulate_node": "8x32"}
    machine = {"cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13.0"}
    document = {"machine": machine, "sweeps": {"s": {"settings": settings, "rows": [row]}}}
    text = trainings.table(document)
    assert "| x | 2.0000 | 1 of 2 diverged | 4 | 1.00x |" in text and "8x32 nodes" in text
