"""The benchmark of error-bounded compression: its corpora, errors, verdicts and targets by hand,
and a small run of the real thing. Speeds are not tested.
"""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
import torch

from benchmarks import _peers, bounded
from benchmarks.compressors import corpora, entropy_stage, measure, methods
from benchmarks.compressors.corpora import MEMORY
from benchmarks.compressors.methods import ORIGINAL, OURS, TWO_THREADS
from benchmarks.report import bounded as figures
from benchmarks.report import targets
from benchmarks.report.results import Results
from benchmarks.training import state
from tests import warm
from tests.benchmarks import runs
from tests.benchmarks.bounded_rows import cell_of, document_of, row_of

TINY = ["--quick", "--numel", "20000", "--large", "30000", "--rounds", "2"]
INTEGERS = "integers N(78000,317)"


def test_a_small_run(tmp_path):
    names = ["N(0,.02)", INTEGERS, "zeros", "weights bf16", "digits uint8", MEMORY]
    corpora = [*names, "field 3-D, 45 % NaN", "decimals, walk f64", "image stack uint16"]
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    done = runs.python("-m", "benchmarks.bounded", *TINY, "--corpora", *corpora, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    cells = {(cell["corpus"], cell["max_error"]): cell for cell in document["cells"]}
    assert list(cells) == [
        ("N(0,.02)", 1e-4),
        ("N(0,.02)", 1e-3),
        (INTEGERS, 0.5),
        ("zeros", 1e-4),
        ("weights bf16", 0.0),
        ("digits uint8", 0.0),
        (MEMORY, 1e-4),
        *(("field 3-D, 45 % NaN", cell["max_error"]) for cell in document["cells"][7:10]),
        *(("decimals, walk f64", cell["max_error"]) for cell in document["cells"][10:13]),
        ("image stack uint16", 0.0),
    ]
    absent = set(document["not_measured"])
    for (corpus, max_error), cell in cells.items():
        size = getattr(torch, cell["dtype"]).itemsize
        assert math.prod(cell["shape"]) * size == cell["bytes"]
        methods = {row["method"] for row in cell["rows"]}
        floats = cell["dtype"] in ("float32", "float64")
        assert OURS in methods
        assert (ORIGINAL in methods) == (max_error > 0 and cell["dtype"] == "float32")
        assert ("zfp" in methods) == (floats and "zfp" not in absent)
        assert ("fpzip" in methods) == (floats and max_error == 0 and "fpzip" not in absent)
        for row in cell["rows"]:
            assert row["ratio"] == pytest.approx(cell["bytes"] / row["bytes"], rel=1e-3)
            assert row["held"] == (row["error"] <= max_error), (corpus, row)
            assert row["held"] or row["method"] in (ORIGINAL, "zfp")
            for way in ("compress", "decompress"):
                assert 0 < row[f"{way}_q1"] <= row[way] <= row[f"{way}_q3"]
            if cell["limit"]:
                share = row["ratio"] / cell["limit"]
                assert row["of_limit"] == pytest.approx(share, rel=1e-3)
        assert f"\n{corpus}: " in done.stdout
    assert "better than cgx in ratio and both speeds" in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_without_the_peers_it_says_how_to_get_them(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(_peers, "ROOT", tmp_path)
    file = tmp_path / "out.json"
    with warm.executable():
        status = bounded.main([*TINY, "--corpora", "zeros", "--json", str(file)])
    assert status == 0
    assert "make bench-peers" in capfd.readouterr().out
    document = json.loads(file.read_text())
    missing = document["not_measured"]
    assert missing[".venv-bounded"].endswith("make bench-peers")
    assert missing["SZ3"] == "pysz is not installed: make bench-peers"
    (cell,) = document["cells"]
    measured = {row["method"] for row in cell["rows"]}
    assert {OURS, ORIGINAL} <= measured and not measured & set(missing)


def test_a_bound_that_cgx_misses_fails_the_benchmark(monkeypatch, capsys):
    rows = [row_of(OURS, 2.0, 1.0, 1.0, held=False)]
    cell = cell_of("sine", 1e-4, rows)
    measured = {"cells": [cell], "not_measured": {}, "packages": {}}
    monkeypatch.setattr(bounded, "run", lambda *_: measured)
    assert bounded.main(["--corpora", "sine"]) == 1
    assert "WRONG: cgx on sine at 0.0001: off by" in capsys.readouterr().err


def test_a_bad_corpus_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        bounded.main(["--corpora", "noise"])
    assert caught.value.code == 2 and "'noise'" in capsys.readouterr().err


# ---- corpora


def test_the_limit_is_the_entropy_of_rounded_gaussian_values():
    """Against probabilities of all steps, summed up."""
    for sigma, max_error in ((1.0, 1e-2), (0.02, 1e-3), (317.0, 0.5)):
        borders = (np.arange(-8000, 8001) + 0.5) * 2 * max_error
        below = np.array([math.erf(b / sigma / math.sqrt(2)) for b in borders])
        p = np.diff(below) / 2
        p = p[p > 0]
        entropy = -(p * np.log2(p)).sum()
        assert corpora.gaussian_bits(sigma, max_error) == pytest.approx(entropy, abs=1e-3)
    sizes = corpora.Sizes(numel=1024, round_numel=1024, large=1024, steps=1)
    names = ["N(0,1)", "N(0,.02)", INTEGERS, "sine"]
    limits = {
        (c.corpus, c.max_error): c.limit and round(c.limit, 3) for c in corpora.cells(names, sizes)
    }
    # seeds.md 4.3, and the same formula.
    assert limits == {
        ("N(0,1)", 1e-4): 2.232,
        ("N(0,1)", 1e-3): 2.906,
        ("N(0,.02)", 1e-4): 3.682,
        ("N(0,.02)", 1e-3): 5.96,
        (INTEGERS, 0.5): 3.09,
        ("sine", 1e-4): None,
    }


def test_corpora_are_what_they_are_called_and_come_again():
    sizes = corpora.Sizes(numel=1 << 16, round_numel=1000, large=2000, steps=1)
    names = ["N(0,.02)", INTEGERS, "sine", "zeros", "digits", "digits uint8", MEMORY]
    first, again = (list(corpora.cells(names, sizes)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.values, other.values) and one.max_error == other.max_error
    by_name = {cell.corpus: cell.values for cell in first}
    assert float(by_name["N(0,.02)"].std()) == pytest.approx(0.02, rel=0.02)
    assert torch.equal(by_name[INTEGERS], by_name[INTEGERS].round())
    assert by_name[MEMORY].shape == (2000,) and not by_name["zeros"].any()
    assert by_name["digits uint8"].dtype == torch.uint8
    # Shares of the range 0 to 16.
    assert [c.max_error for c in first if c.corpus == "digits"] == [0.016, 0.0016]


def test_the_state_of_a_training_comes_again():
    first, again = state.train(1), state.train(1)
    assert list(first) == list(state.NAMES)
    for name, values in first.items():
        assert values.shape == (829696,) and values.dtype == torch.float32
        assert torch.equal(values, again[name]) and values.any()
    # After one step: (1 - beta) of the clipped gradient, and of its square.
    g = first["gradients"].double()
    clipped = g * min(1.0, 1.0 / float(g.norm()))
    torch.testing.assert_close(first["first moments"].double(), 0.1 * clipped, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(
        first["second moments"].double(), 0.05 * clipped**2, rtol=1e-4, atol=1e-12
    )


# ---- errors


def test_the_worst_error_is_found_wherever_it_is(monkeypatch):
    monkeypatch.setattr(measure, "_CHUNK", 10)
    x = torch.linspace(-1, 1, 35)
    found = x.numpy().copy()
    found[34] += np.float32(0.25)
    assert measure.worst_error(x, found, lossless=False) == 0.25
    assert measure.worst_error(x, x.clone(), lossless=False) == 0.0
    found[3] = np.nan
    assert measure.worst_error(x, found, lossless=False) == math.inf
    special = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert measure.worst_error(special, special.clone(), lossless=False) == 0.0
    for place, other in ((0, 1.0), (1, -math.inf), (2, 1e38), (3, math.nan)):
        found = special.clone()
        found[place] = other
        assert measure.worst_error(special, found, lossless=False) == math.inf
    x, found = torch.linspace(-1, 1, 35), x.numpy().copy()
    with pytest.raises(ValueError, match="34"):
        measure.worst_error(x, found[:34], lossless=False)
    zero, minus = torch.zeros(4), -torch.zeros(4)
    assert measure.worst_error(zero, minus, lossless=True) == math.inf
    bf16 = torch.tensor([1.0, float("nan")], dtype=torch.bfloat16)
    assert measure.worst_error(bf16, bf16.clone(), lossless=True) == 0.0


def test_what_precedes_the_entropy_stage_is_measured_beside_the_roofs(monkeypatch):
    called = []
    monkeypatch.setattr(methods, "stage_alone", lambda x, e: lambda: called.append((x, e)))
    method = methods.Method(
        lambda x, e: methods.Words(x, e, Nothing), methods.Words.takes, threads=2
    )
    monkeypatch.setitem(methods.METHODS, "none", method)
    monkeypatch.setattr(measure, "LEAST_SECONDS", 1e-6)
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    cores = measure.Cores()
    values = torch.randn(1000)
    cell = corpora.Cell("sine", values, 1e-3)
    row = measure.measure(cell, ["none"], 3, cores)
    assert set(row["roofs"]) == {"copy", "torch aminmax", "scan", "stage alone"}
    assert called[0][1] == 1e-3
    assert cores.count < 2 or row["second_core"] > 0
    (found,) = row["rows"]
    assert found["threads"] == 2 and found["bytes"] == 4016 and found["held"]
    lossless = corpora.Cell("weights", values.bfloat16(), 0.0)
    row = measure.measure(lossless, ["none"], 1, cores)
    assert set(row["roofs"]) == {"copy", "torch aminmax", "scan"} and row["rows"][0]["error"] == 0
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


def test_libraries_in_the_place_of_the_entropy_stage_see_the_same_blocks(monkeypatch):
    monkeypatch.setattr(measure, "LEAST_SECONDS", 1e-6)
    values = torch.randn(70_000, generator=torch.Generator().manual_seed(0)) * 0.02
    row = measure.measure(corpora.Cell("gradients", values, 1e-4), [OURS], 1, measure.Cores())
    coders = {one["coder"]: one for one in row["coders"]}
    (ours,) = row["rows"]
    assert coders[entropy_stage.CHOSEN]["ratio"] == pytest.approx(ours["ratio"], rel=1e-3)
    assert coders["zlib 1"]["ratio"] < ours["ratio"]
    assert all(one["compress"] > 0 and one["decompress"] > 0 for one in coders.values())
    document = {"machine": {"cpu": "a", "cores": 2, "simd": "b", "torch": "c"}, "cells": [row]}
    lines = figures.entropy_table(document).splitlines()
    assert any("gradients, 0.0001" in line for line in lines)
    assert sum(line.startswith("| z") for line in lines) == len(coders)
    assert "entropy stage by zlib 1" in bounded.table(row)


class Nothing(methods.Packer):
    def pack(self, words):
        return words.tobytes()

    def unpack(self, packed, out):
        return np.frombuffer(packed, out.dtype)


def test_the_step_of_numpy_is_the_widest_that_holds_the_bound():
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    words = methods.Words(x, 1e-4, Nothing)
    payload = words.compress()
    y = words.decompress(payload).astype(np.float64)
    assert np.abs(y - x.double().numpy()).max() <= 1e-4
    # 2 max_error itself would miss the bound: float32 rounds.
    q = np.rint(x.numpy() * np.float32(1 / 2e-4))
    naive = q.astype(np.float32) * np.float32(2e-4)
    assert np.abs(naive.astype(np.float64) - x.double().numpy()).max() > 1e-4
    assert 1.98e-4 < words._step < 2e-4
    assert words.nbytes(payload) == 4 * 50_000 + 16
    integers = methods.Words(torch.arange(78000, 79000).float(), 0.5, Nothing)
    assert integers._step == 1.0


def test_methods_take_what_they_know():
    f32, bf16 = torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)
    f64, uint16 = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.uint16)
    kinds = ((f32, 1e-4), (f32, 0.0), (f64, 1e-4), (f64, 0.0), (bf16, 0.0), (uint16, 0.0))
    takes = {
        name: "".join("ny"[m.takes(*kind)] for kind in kinds) for name, m in methods.METHODS.items()
    }
    assert takes[OURS] == takes[TWO_THREADS] == takes["pcodec"] == "yyyyyy"
    assert takes[ORIGINAL] == "ynnnnn" and takes["SZ3"] == "ynynnn"
    assert takes["zfp"] == "yyyynn" and takes["fpzip"] == "nynynn" and takes["zipnn"] == "nynnyn"
    assert set(bounded.STYLES) == set(methods.METHODS)


# ---- verdicts, targets and the table


def test_who_is_better():
    ours = row_of(OURS, 3.0, 1.0, 2.0)
    others = [
        row_of("SZ3", 3.1, 1.1, 2.1),
        row_of("pcodec", 3.1, 0.2, 2.1),
        row_of("zstd 1", 3.1, 1.1, 2.0),
        row_of("zfp", 4.0, 9.0, 9.0, held=False),
        row_of("zstd 3", 3.0, 9.0, 9.0),
        row_of("SZ3 no prediction", 9.0, 1.0, 2.0),
        row_of(TWO_THREADS, 3.1, 2.0, 4.0),
    ]
    cell = cell_of("sine", 1e-4, [ours, *others])
    found = figures.better(cell)
    assert {what: [row["method"] for row in rows] for what, rows in found.items()} == {
        "ratio and both speeds": ["SZ3"],
        "ratio and compression": ["zstd 1"],
        "ratio and decompression": ["pcodec"],
    }
    said = bounded.verdict(cell)
    assert said[0].startswith("SZ3 is better than cgx in ratio and both speeds: ratio 1.03x, ")
    assert len(said) == 3
    nobody = bounded.verdict(cell_of("sine", 1e-4, [ours, others[4]]))
    assert nobody == ["nobody is better than cgx in ratio and both speeds"]
    assert figures.better(cell_of("sine", 1e-4, others)) is None


def _met(document):
    found = [t for t in targets.TARGETS if t.what.startswith("bounded")]
    results = Results({"bounded": document})
    return {t.what.removeprefix("bounded, "): t.row(results)[3:5] for t in found}


def test_targets_are_just_met():
    memory = "N(0,.02) at 1e-4 from memory"
    assert _met(document_of()) == {
        "ratio at N(0,1) and N(0,.02), 1e-4 and 1e-3, lowest": ["0.97", "yes"],
        "ratio, lowest of all corpora": ["1x", "yes"],
        "ratio, i.i.d. weights, lowest": ["1.07x", "yes"],
        "ratio, sine at 1e-4": ["41x", "yes"],
        "10^6 zeros": ["200", "yes"],
        f"{memory}, compress": ["1.2", "yes"],
        f"{memory}, decompress": ["2", "yes"],
        f"{memory}, stage before entropy": ["0.3", "yes"],
        f"{memory}, decompress, of a copy": ["0.3", "yes"],
        f"{memory}, two threads": ["1.7x", "yes"],
        "ratio against SZ3, lowest of all corpora": ["1x (SZ3 on sine, 0.0001)", "yes"],
        "speed against SZ3, either way, lowest of all corpora": [
            "1x (SZ3 on sine, 0.0001)",
            "yes",
        ],
        "corpora and bounds with a peer's ratio more than 1 % higher": ["0", "yes"],
        "corpora with a peer better in ratio and both speeds": ["0", "yes"],
        "corpora with a bound missed": ["0", "yes"],
    }


def test_targets_are_missed_by_the_worst_corpus():
    worse = {"sine": {"ratio": 40.5}, "zeros": {"compress": 0.9, "decompress": 0.9, "held": False}}
    missed = {what: said for what, said in _met(document_of(**worse)).items() if said[1] != "yes"}
    assert missed == {
        "ratio, lowest of all corpora": ["0.988x", "**no**"],
        "ratio against SZ3, lowest of all corpora": ["0.988x (SZ3 on sine, 0.0001)", "**no**"],
        "corpora and bounds with a peer's ratio more than 1 % higher": ["1", "**no**"],
        "ratio, sine at 1e-4": ["40.5x", "**no**"],
        "corpora with a peer better in ratio and both speeds": ["1", "**no**"],
        "corpora with a bound missed": ["1", "**no**"],
    }


def test_what_is_missing_is_named():
    document = document_of()
    memory = document["cells"][-1]
    del memory["roofs"]["stage alone"], memory["roofs"]["copy"], memory["rows"][1]
    document["cells"][-2]["shape"] = [4096]
    del document["cells"][-3]["rows"][2]
    said = [row[0] for row in _met(document).values() if row[1] == ""]
    assert said == [
        "not measured: bounded.json has zeros of shape [4096]",
        "not measured: bounded.json has no codec stage alone",
        "not measured: bounded.json has no copy beside its roofs",
        f"not measured: bounded.json has no {TWO_THREADS} on {MEMORY}",
        *["not measured: bounded.json has no SZ3"] * 2,
    ]


def test_the_table_has_a_line_for_each_cell():
    lines = figures.table(document_of()).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 1 + 7
    assert rows[1] == "| N(0,1) | 0.0001 | 3.210 | 97.0 % | 1.00 | 1.00 | 3.000 | " + (
        f"{ORIGINAL}: 3.000 (0.10, 0.10) | nobody |"
    )
    assert rows[6] == (
        "| zeros | 0.0001 | 20000 |  | 1.00 | 1.00 |  | zstd 1: 20200 (1.00, 1.00) | nobody |"
    )
