"""benchmarks/crossover.py: its interpolation by hand, and a small run of the real thing."""

from __future__ import annotations

import argparse
import json
import math

import pytest

from benchmarks import crossover
from tests.benchmarks import runs
from tests.hosts.marks import needs_hosts


def test_a_crossing_is_where_the_logarithm_is_0():
    # From 1/4 to 4 on four octaves: in the middle.
    assert crossover.crossing([(1, 0.25), (16, 4)]) == pytest.approx(4)
    assert crossover.crossing([(1, 4), (16, 0.25)]) == pytest.approx(4)
    assert crossover.crossing([(1, 0.5), (2, 0.5), (8, 4)]) == pytest.approx(2 * 4 ** (1 / 3))
    # The last one counts.
    assert crossover.crossing([(1, 2), (2, 0.5), (4, 0.5), (8, 2)]) == pytest.approx(math.sqrt(32))
    assert crossover.crossing([(1, 2), (2, 3)]) is None
    assert crossover.crossing([]) is None


def run_of(rate, exact, asked):
    seconds = {"exact": exact, "asked": asked}
    return {"rate": rate, "rows": [{"bytes": 4096, "seconds": seconds}]}


def test_the_crossover_of_a_size_is_a_rate():
    found = crossover.crossover_rates(
        [
            run_of("4gbit", 1.0, 2.0),
            run_of("shm", 1.0, 9.0),
            run_of("1gbit", 2.0, 1.0),
            run_of("1gbit@scalar", 1.0, 3.0),
        ],
        "",
    )
    assert found == [{"bytes": 4096, "measured": pytest.approx(2e9)}]
    assert crossover.crossover_rates([run_of("shm", 1.0, 1.0)], "") == []


def test_ratios_are_medians_of_pairs():
    samples = {
        "exact": [2.0, 6.0, 3.0],
        "half": [3.0, 3.0, 3.0],
        "asked": [1.0, 1.0, 8.0],
        "tuned": [1.0, 2.0, 3.0],
        "again": [1.0, 3.0, 3.0],
    }
    size = {"bytes": 4, "seconds": samples}
    row = crossover.to_row(size)
    assert row["seconds"] == {"exact": 3.0, "half": 3.0, "asked": 1.0, "tuned": 2.0, "again": 3.0}
    assert row["fastest"] == "asked"
    assert row["of_exact"] == 2.0 and row["of_best"] == 1.0
    assert row["noise"] == 2.0


@pytest.mark.parametrize("bad", ["fast", "1gbit@", "@scalar", "shm@"])
def test_bad_links_are_refused(bad):
    with pytest.raises(argparse.ArgumentTypeError):
        crossover.rate(bad)


@needs_hosts
def test_a_small_run(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    small = ["--rates", "1gbit", "shm@scalar", "--sizes", "4K", "1M", "--repeats", "2"]
    done = runs.python(
        "benchmarks/crossover.py", *small, "--json", str(out), "--plot", str(picture)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    across, inside = document["runs"]
    assert (across["communicator"], inside["communicator"]) == ("gloo", "shm")
    for run in document["runs"]:
        assert [row["bytes"] for row in run["rows"]] == [4096, 1 << 20]
        assert all(row["right"] for row in run["rows"])
    assert across["rows"][1]["choice"] == "asked" and inside["rows"][1]["choice"] != "asked"
    assert "of exact" in done.stdout and picture.stat().st_size > 10_000
