"""The benchmark of joining workers: its numbers by hand, and a small run of the real thing."""

from __future__ import annotations

import json

import pytest

from benchmarks import _command
from benchmarks.training import joining
from tests.benchmarks import runs
from tests.hosts.marks import needs_hosts


def _run(method, seconds, sent, error=0.0, equal=True):
    return {"method": method, "seconds": seconds, "link_bytes": sent, "error": error,
            "equal": equal}  # fmt: skip


def _rows():
    measured = {
        "runs": [
            _run(joining.BASE, 8.0, 100),
            _run(joining.BASE, 6.0, 100),
            _run(joining.BASE, 7.0, 103),
            _run("bounded, 0.001", 1.0, 25, 0.0009),
            _run("bounded, 0.001", 2.0, 30, 0.0011),
            _run("bounded, 0.001", 1.4, 20, 0.0005),
        ]
    }
    return [joining.summary(name, measured, "50mbit") for name in (joining.BASE, "bounded, 0.001")]


def test_rows_are_medians_and_the_worst_error():
    base, row = _rows()
    assert (base["seconds"], base["faster"], base["fewer"], base["link_bytes"]) == (7, 1, 1, 100)
    assert (row["seconds_low"], row["seconds"], row["seconds_high"]) == (1, 1.4, 2)
    assert row["faster"] == pytest.approx(5) and row["fewer"] == 4 and row["error"] == 0.0011
    assert row["link_seconds"] == pytest.approx(25 * 8 / 50e6)
    assert "5.00x" in joining.table([base, row])


def test_an_error_beyond_the_bound_and_unequal_bits_are_wrong():
    rows = _rows()
    assert joining.wrong(rows, [1e-3]) == ["bounded, 0.001: an error of 0.0011"]
    rows[1]["error"], rows[0]["equal"] = 1e-3, False
    assert joining.wrong(rows, [1e-3]) == [f"{joining.BASE}: the ranks have different bits"]


@needs_hosts
def test_a_small_model_joins_over_a_link(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    small = ["--layers", "1", "--width", "32", "--repeats", "1", "--rate", "20mbit"]
    done = runs.python("-m", "benchmarks.training.joining", *small, "--bounds", "1e-3", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    rows = {row["method"]: row for row in document["rows"]}
    assert list(rows) == [joining.BASE, "bf16", "bounded, lossless", "bounded, 0.001"]
    exact, small_row = rows[joining.BASE], rows["bounded, 0.001"]
    assert 4 * document["parameters"] < exact["link_bytes"] < 5 * document["parameters"]
    assert 0 < small_row["error"] <= 1e-3 and small_row["link_bytes"] < exact["link_bytes"] / 3
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.parametrize("flags", [["--bounds", "0"], ["--bounds", "x"], ["--rate", "3"]])
def test_bad_arguments_are_named(flags, capsys):
    with pytest.raises(SystemExit):
        joining.arguments(flags)
    assert flags[1] in capsys.readouterr().err


def test_the_committed_results_are_of_this_benchmark():
    document = json.loads((_command.RESULTS / "joining.json").read_text())
    assert joining.wrong(document["rows"], document["bounds"]) == []
    assert document["rate"] == "50mbit" and document["rows"][0]["method"] == joining.BASE
