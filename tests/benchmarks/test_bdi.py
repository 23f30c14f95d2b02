"""The benchmark of BDI and cuda_float_compress: its inputs, its tables, and a small run."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import _command, bdi
from benchmarks.report import bdi as report
from tests.benchmarks import runs

TINY = ["--words", "3000", "--rounds", "2"]


def test_a_small_run(tmp_path):
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.bdi", *TINY, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    facts = document["machine"]
    assert facts["words"] == 3000 and facts["rounds"] == 2 and facts["threads"] == 1
    assert {row["method"] for row in document["rows"]} == {"BDI", "cuda_float_compress"}
    for row in document["rows"]:
        assert row["held"] and row["bytes"] == 12000
        assert row["ratio"] == row["bytes"] / row["payload_bytes"] > 1
        for way in bdi.WAYS:
            assert 0 < row[f"{way}_q1"] <= row[way] <= row[f"{way}_q3"]
        assert row["values"] in done.stdout and row["options"] in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_inputs_come_again_and_are_what_the_page_says():
    first, again = bdi.inputs(5000), bdi.inputs(5000)
    for name, values in first.items():
        assert torch.equal(values.view(torch.int32), again[name].view(torch.int32))
    assert {x.dtype for x in first.values()} == {torch.int32, torch.uint32, torch.float32}
    assert (first["sorted indices"].diff() >= 0).all()
    assert first["8-bit weights"].min() < 0 and first["8-bit weights"].abs().max() <= 127
    lowest = torch.tensor(bdi.NEAR_1000, dtype=torch.int32).view(torch.float32)
    assert float(lowest) == 999.0 <= float(first["float32 near 1000"].min())


def test_a_bound_that_is_missed_fails_the_benchmark(monkeypatch, capsys):
    monkeypatch.setattr(bdi, "_within", lambda *_: False)
    assert bdi.main(TINY) == 1
    said = capsys.readouterr()
    assert "bound missed" in said.out
    assert "WRONG: cuda_float_compress, N(0,.02), bound 0.0001" in said.err


def test_a_bad_number_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        bdi.main(["--words", "3"])
    assert caught.value.code == 2 and "'3'" in capsys.readouterr().err


def test_the_tables_have_a_row_for_each_case():
    row = {"values": "v", "options": "o", "bytes": 4096, "ratio": 2.5}
    row |= {"compress": 1.234, "decompress": 2.0}
    rows = [row | {"method": "BDI"}, row | {"method": "cuda_float_compress", "ratio": 3.0}]
    facts = {"rounds": 3, "load": 1.5, "cpu": "a CPU", "cores": 2, "simd": "avx2", "torch": "2.13"}
    for make, ratio in ((report.bdi_table, "2.50"), (report.compat_table, "3.00")):
        caption, lines = make({"machine": facts, "rows": rows}).split("\n\n")
        said = caption.replace("\n", " ")
        assert "4 KiB" in said and "load average 1.5 at the start, of other programs" in said
        assert lines.splitlines()[2:] == [f"| v | o | {ratio} | 1.23 | 2.00 |"]


def test_committed_results_hold_the_bounds():
    document = json.loads((_command.RESULTS / "bdi.json").read_text())
    assert bdi.wrong(document["rows"]) == []
