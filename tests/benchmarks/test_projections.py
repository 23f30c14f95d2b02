"""The benchmark of linear layers that keep less: a small run, its tables and targets."""

from __future__ import annotations

import json

from benchmarks import projections
from benchmarks.report import projections as report
from benchmarks.report import targets_activations as targets
from benchmarks.report.results import Results
from tests.benchmarks import runs
from torch_cgx.activations.projection.function import METHODS


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    few = ["--quick", "--rounds", "1", "--draws", "2"]
    done = runs.python("-m", "benchmarks.projections", *few, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    rows = document["rows"]
    layers = {(row["method"], row["by"], row["keep"]) for row in rows if row["kind"] == "layer"}
    assert layers == {(m, "batch", part) for m in METHODS for part in projections.PARTS} | {
        (m, "features", 0.2) for m in METHODS
    }
    assert all(row["ratio"] > 0 for row in rows if row["kind"] in ("layer", "step"))
    variances = [row for row in rows if row["kind"] == "variance"]
    assert {row["layer"] for row in variances} > {"all", "blocks.0.up"}
    assert all(row["by_rows"] == 1 for row in variances if row["method"] == "rows")
    assert (tmp_path / "out.png").stat().st_size > 10_000
    tables = report.projections_table(document), report.bytes_table(document)
    assert "| wta | 0.2 |" in tables[0] and "| linear 0.2 |" in tables[1]


def test_bytes_of_the_readme():
    """Of RoBERTa-base in units of batch x sequence x width: a layer of 768 keeps 21 with masks of
    bytes (benchmarks/activations.py), 4 of them the GELU's input and 7 inputs of linear layers."""
    rows = projections.measure_bytes(2, 8, 768)
    unit = 8 * 128 * 768 * 4
    kept = {row["method"]: row["plain"] - row["kept"] for row in rows}
    assert 42 <= rows[0]["plain"] / unit < 42.2
    assert kept["3-bit GELU"] == 2 * 4 * unit * 29 // 32
    # A fifth of 1024 rows is 204; q, k and v share them, but not of the first layer, whose input is
    # a leaf. Each row has its number, of 4 bytes, and each sample a mean.
    row = 768 * 4
    inputs = 2 * (7 * unit - 205 * 7 * row - 204 * 4 * 4) - 2 * (205 * row + 204 * 4)
    assert kept["linear 0.2"] == inputs
    assert kept["3-bit GELU, linear 0.2"] == inputs + kept["3-bit GELU"]


def test_targets_name_what_is_not_measured():
    found = targets.of_projections()
    assert len(found) >= 6
    for target in found:
        assert "not measured" in target.row(Results({}))[3]
