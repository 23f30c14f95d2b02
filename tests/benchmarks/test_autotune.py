"""benchmarks/autotune.py: its ratios and its table by hand, and a small run of the real thing."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks import autotune
from benchmarks.report import speed
from tests.benchmarks import runs


def test_a_time_is_from_the_last_begin_to_the_last_end():
    first, second = [(0.0, 7.0), (10.0, 12.0)], [(4.0, 6.0), (10.0, 15.0)]
    assert autotune.seconds_of([first, second]) == [3.0, 5.0]


def measured(exact, half, asked, tuned, again=(1.0,)):
    seconds = {"exact": exact, "half": half, "asked": asked, "tuned": tuned, "again": again}
    return {
        "bytes": 4096,
        "calls_per_sample": 2,
        "settled_after": 49,
        "right": True,
        "seconds": {name: list(s) for name, s in {**seconds, "gloo fp32": (9.0,)}.items()},
        "taken": {"exact": 1, "half": 2, "asked": 3},
        "tuning_seconds": 0.6,
        "measured": {},
        "choice": "asked",
    }


def test_ratios_are_those_of_medians_over_all_processes():
    row = autotune.to_row(
        [
            measured([4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [2.0, 2.0], [4.0]),
            measured([4.0, 4.0], [3.0, 3.0], [2.5, 2.5], [5.0, 5.0], [2.0]),
        ]
    )
    assert row["best"] == "asked" and row["samples"] == 4
    assert row["seconds"]["asked"] == 2.25 and row["seconds"]["tuned"] == 3.5
    assert row["of_best"] == pytest.approx(2.25 / 3.5)
    assert row["of_best_by_process"] == [1.0, 0.5]
    assert row["control"] == pytest.approx(4 / 3)
    assert row["taken"] == {"exact": 2, "half": 4, "asked": 6}
    # 8 calls of 3.5 s in the mean.
    assert row["tuning_share"] == pytest.approx(1.2 / (8 * 3.5))


def test_the_table_has_three_columns_for_each_link():
    row = autotune.to_row([measured([4e-3], [3e-3], [2e-3], [2e-3], [4e-3])])
    other = {**row, "bytes": 1 << 20}
    links = [{"link": "shm", "rows": [row, other]}, {"link": "10gbit", "rows": [row]}]
    machine = {
        "bits": 4,
        "processes": 3,
        "settle": 50,
        "cpu": "a CPU",
        "cores": 2,
        "simd": "avx2",
        "torch": "2",
    }
    text = speed.autotune_table({"machine": machine, "runs": links})
    caption, rows = text.split("\n\n")
    assert "3 pairs of processes, after at most 50 calls of a size (a CPU, 2 cores," in (
        caption.replace("\n", " ")
    )
    lines = rows.splitlines()
    assert lines[0] == "| fp32 vector of | SHM: best | tuned | control " + (
        "| 2 hosts, 10 Gbit/s: best | tuned | control |"
    )
    assert lines[2] == "| 4 KiB | 4 bits, 2 ms | 1.00 | 1.00 | 4 bits, 2 ms | 1.00 | 1.00 |"
    assert lines[3] == "| 1 MiB | 4 bits, 2 ms | 1.00 | 1.00 |  |  |  |"


def test_a_bad_link_is_refused():
    with pytest.raises(argparse.ArgumentTypeError):
        autotune.link("fast")


def test_a_small_run(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    small = ["--links", "shm", "--sizes", "4K", "512K", "--seconds", "0.1", "--processes", "1"]
    done = runs.python(
        "-m", "benchmarks.autotune", *small, "--json", str(out), "--plot", str(picture)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads(out.read_text())["runs"]
    assert run["communicator"] == "shm"
    assert [row["bytes"] for row in run["rows"]] == [4096, 512 << 10]
    for row, calls in zip(run["rows"], (16, 1), strict=True):
        assert row["right"] and 0 < row["settled_after"] <= 50
        # What was timed, and nothing else, is counted.
        assert sum(row["taken"].values()) == calls * row["samples"]
        assert set(row["measured"][0]) == {"exact", "half", "asked"}
    assert "of best" in done.stdout and picture.stat().st_size > 10_000
