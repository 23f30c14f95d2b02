"""The benchmark of activations: a small run, its tables and targets."""

from __future__ import annotations

import json

from benchmarks import activations
from benchmarks.report import activations as report
from benchmarks.report import targets_activations as targets
from benchmarks.report.results import Results
from tests.benchmarks import runs


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.activations", "--quick", "--rounds", "1", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    kept = [row for row in document["rows"] if row["kind"] == "bytes"]
    assert {(row["model"], row["method"]) for row in kept} == {
        (model, method) for model in ("BERT", "Llama") for method in activations.METHODS
    }
    by_name = {(row["model"], row["method"], row["dtype"]): row for row in kept}
    few = by_name["BERT", "3-bit functions", "float32"]
    # Of 42 units, masks of bytes, 4 of each layer's are the GELU's input; with the norms' numbers.
    width = document["machine"]["width"]
    # Weights of attention have 128 * 12 numbers for each row of the width.
    units = few["plain_byte_masks"] / (128 * width * 4) - 2 * (2 + 1 / 4) * (1536 / width - 2)
    assert 42 <= units < 42.2
    assert few["plain"] - few["kept"] == 2 * 128 * 4 * width * (4 - 3 / 8)
    every = by_name["BERT", "saved, 4 bits", "float32"]
    assert 8 < every["factor"] < 10
    steps = [row for row in document["rows"] if row["kind"] == "step"]
    assert {row["threads"] for row in steps} == {1} and all(row["ratio"] > 0 for row in steps)
    functions = {row["function"] for row in document["rows"] if row["kind"] == "function"}
    assert len(functions) == 28 and "layer_norm" in functions
    for method in activations.TIMED:
        assert method in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 10_000
    tables = report.activations_table(document), report.functions_table(document)
    assert "| BERT | saved, 4 bits |" in tables[0] and "| gelu |" in tables[1]


def test_targets_name_what_is_not_measured():
    for target in targets.bytes_and_steps():
        assert "not measured" in target.row(Results({}))[3]
