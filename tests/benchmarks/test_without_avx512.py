"""The tables of a processor with AVX2 only beside one with AVX-512, of made-up results."""

from __future__ import annotations

import copy

import pytest

from benchmarks import codec, hosts
from benchmarks.report import tables, targets, without_avx512
from benchmarks.report.results import Missing, Results

FACTS = {"cpu": "a CPU", "cores": 2, "torch": "2.13", "revision": "abc"}
SIZE = 64 << 20


def _codec(levels, scan):
    """Every line is a twentieth of the scan slower than the one before it."""
    best = levels[-1]
    rows = [{"name": "scan fp32", "level": best, "gb_per_s": scan, "of_roof": None}]
    for place, (_, name) in enumerate(without_avx512.ENCODERS):
        share = 0.95 - place / 20
        # What is from Python is compared with the engine's own in the results.
        roof = 1.02 if name.startswith("Python ") else share
        row = {"name": name, "gb_per_s": scan * share, "of_roof": roof}
        rows.append(row | {"level": best})
        if best == "avx512" and name == "encode rotated 2":
            rows.append(row | {"level": "avx2", "gb_per_s": scan / 8})
    return {"machine": FACTS | {"simd": best, "levels": levels}, "rows": rows}


def _hosts(level, speedups):
    runs = []
    for rate, seconds in (("1gbit", 0.5), ("10gbit", 0.0625)):
        rows = [{"method": "gloo fp32", "bytes": SIZE, "seconds": seconds, "speedup": 1.0}]
        for method, speedup in speedups.items():
            rows.append({"method": method, "bytes": SIZE, "seconds": seconds / speedup})
            rows[-1]["speedup"] = speedup if rate == "1gbit" else speedup / 4
        runs.append({"hosts": 2, "ranks_per_host": 1, "rate": rate, "rows": rows})
    return {"machine": FACTS | {"simd": level}, "runs": runs}


SPEEDUPS = {
    "cgx 8 bit": 4.0,
    "cgx 4 bit": 7.0,
    "cgx 2 bit": 12.0,
    "cgx 4 bit rotated": 7.1,
    "cgx 2 bit rotated": 13.0,
    "cgx 1 bit rotated": 18.0,
    "cgx 2 bit trellis": 8.0,
}


@pytest.fixture
def documents():
    return {
        "codec_avx2": _codec(["scalar", "avx2"], 16.0),
        "hosts_avx2": _hosts("avx2", SPEEDUPS),
        "codec": _codec(["scalar", "avx2", "avx512"], 24.0),
        "hosts": _hosts("avx512", {"cgx 8 bit": 3.9, "cgx 1 bit rotated": 19.0}),
    }


def _lines(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


def test_encoders_are_parts_of_the_scan_of_their_own_run(documents):
    text = without_avx512.codec_table(Results(documents))
    caption = " ".join(text.split("\n\n")[0].split())
    assert "a CPU, 2 cores, avx2 codecs, torch 2.13, revision abc, beside a CPU, 2 cores" in caption
    lines = _lines(text)
    assert lines[:3] == [
        "|  | avx2 | avx512 | avx2 on the avx512 machine |",
        "| min-max scan | 16.0 GB/s | 24.0 GB/s | 24.0 GB/s |",
        "| `maxmin`, 1 bit | 0.950 | 0.950 |  |",
    ]
    assert "| from Python, 4 bits | 0.550 | 0.550 |  |" in lines
    assert "| `rotated`, 2 bits | 0.400 | 0.400 | 0.125 |" in lines
    assert lines[-1] == "| `trellis`, 2 bits | 0.300 | 0.300 |  |"
    assert len(lines) == 2 + len(without_avx512.ENCODERS)


def test_rates_of_both_machines_stand_side_by_side(documents):
    lines = _lines(without_avx512.hosts_table(Results(documents)))
    assert lines == [
        "|  | 1 Gbit/s, avx2 | 1 Gbit/s, avx512 | 10 Gbit/s, avx2 | 10 Gbit/s, avx512 |",
        "| gloo fp32: time | 500 ms | 500 ms | 62.5 ms | 62.5 ms |",
        "| `maxmin`, 8 bits | 4.00 | 3.90 | 1.00 | 0.97 |",
        "| `maxmin`, 4 bits | 7.00 |  | 1.75 |  |",
        "| `maxmin`, 2 bits | 12.00 |  | 3.00 |  |",
        "| `rotated`, 4 bits | 7.10 |  | 1.77 |  |",
        "| `rotated`, 2 bits | 13.00 |  | 3.25 |  |",
        "| `rotated`, 1 bit | 18.00 | 19.00 | 4.50 | 4.75 |",
        "| `trellis`, 2 bits | 8.00 |  | 2.00 |  |",
    ]


def test_both_tables_are_made_of_the_right_machine_or_not_at_all(documents):
    text = without_avx512.table(Results(documents))
    assert text.count("\n|---|") == 2 and text.endswith("|\n") and "\n\nTimes as fast" in text
    for name in ("codec_avx2", "hosts_avx2"):
        other = copy.deepcopy(documents)
        other[name]["machine"]["simd"] = "avx512"
        with pytest.raises(ValueError, match=f"{name}.json was measured with avx512 codecs"):
            without_avx512.table(Results(other))
        del other[name]
        with pytest.raises(Missing, match=name):
            without_avx512.table(Results(other))


def test_targets_are_asked_of_the_machine_without(documents):
    found = [t for t in targets.TARGETS if t.what.startswith("without AVX-512")]
    rows = [target.row(Results(documents)) for target in found]
    assert [row[2:] for row in rows] == [
        [">= 0.8", "0.6", "**no**", "avx2"],
        [">= 17x", "18x", "yes", "avx2"],
        [">= 13x", "13x", "yes", "avx2"],
        [">= 7.2x", "7.1x", "**no**", "avx2"],
        [">= 9x", "8x", "**no**", "avx2"],
    ]
    del documents["codec_avx2"]
    assert found[0].row(Results(documents))[3] == "not measured: no codec_avx2.json"


def test_results_that_are_not_there_are_named_with_their_command(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    for name, command in without_avx512.COMMANDS.items():
        with pytest.raises(FileNotFoundError) as caught:
            tables.read_results(name)
        path = f"benchmarks/results/{name}.json"
        assert str(caught.value) == f"{path} is not there; run {command}"
        assert command.endswith(f"--json {path}")


def test_the_commands_measure_every_line_of_the_tables():
    _, module, *options = without_avx512.COMMANDS["hosts_avx2"].split()[1:]
    assert module == hosts.__name__
    args = hosts.arguments(options)
    job = hosts.make_job(args)
    assert {method for _, method in without_avx512.METHODS} == {v.name for v in job.variants}
    assert (args.hosts, args.ranks_per_host, job.sizes) == ([2], [1], [SIZE])
    assert tuple(args.rates) == without_avx512.RATES
    assert without_avx512.COMMANDS["codec_avx2"].split()[2] == codec.__name__
