"""The benchmark of casts: a small run, its table and targets."""

from __future__ import annotations

import json

import pytest

from benchmarks import emulate
from benchmarks.report import emulate as report
from benchmarks.report import targets
from benchmarks.report.results import Missing, Results
from tests.benchmarks import runs


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    small = ["--numel", "4096", "--rounds", "2"]
    done = runs.python("-m", "benchmarks.emulate", *small, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["machine"]["levels"] == emulate.levels()
    rows = document["rows"]
    for level in emulate.levels():
        assert {row["name"] for row in rows if row["level"] == level} >= set(emulate.formats())
    assert {row["dtype"] for row in rows} == {"float32", "float16", "bfloat16", "float64"}
    assert {row["name"] for row in rows if row["kind"] == "peer"} >= {"torch fp16", "torch e4m3fn"}
    for row in rows:
        assert 0 < row["fraction_q1"] <= row["fraction"] <= row["fraction_q3"]
        assert row["gb_per_s"] > 0 and row["bytes"] <= 4 * 4096
    assert (tmp_path / "out.png").stat().st_size > 10_000
    text = report.table(document)
    assert "| e4m3fn, stochastic |" in text and "| mxfp4, bfloat16 |" in text
    assert "| torch e5m2 (" in text
    found = Results({"emulate": document})
    assert report.slowest("nearest", "zero")(found) > 0
    assert report.times("torch")(found) > 0


def _row(kind, name, fraction, **more):
    row = {"kind": kind, "name": name, "fraction": fraction, "level": "avx2", "dtype": "float32"}
    return row | more


def test_figures_of_targets():
    rows = [
        _row("nearest", "e5m2", 0.9),
        _row("nearest", "bf16", 0.8, level="scalar"),
        _row("zero", "e5m2, zero", 0.85),
        _row("nearest", "e5m2", 0.1, statistics=True),
        _row("nearest", "e5m2", 0.2, dtype="float64"),
        _row("stochastic", "e5m2, stochastic", 0.6),
        _row("peer", "qtorch e5m2", 0.01, of="e5m2"),
        _row("peer", "qtorch e5m2, stochastic", 0.003, of="e5m2, stochastic"),
    ]
    found = Results({"emulate": {"machine": {"levels": ["scalar", "avx2"]}, "rows": rows}})
    assert report.slowest("nearest", "zero")(found) == 0.85
    assert report.times("qtorch")(found) == pytest.approx(90)
    for figure in (report.times("torchao"), report.slowest("ZScore")):
        with pytest.raises(Missing):
            figure(found)
    for target in targets._emulate():
        assert "not measured" in target.row(Results({}))[3]


def test_a_bad_number_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        emulate.main(["--numel", "3"])
    assert caught.value.code == 2 and "'3'" in capsys.readouterr().err
