"""python -m benchmarks: its parts, what happens when one fails, and the table of targets."""

from __future__ import annotations

import dataclasses
import json
import re
import time

import pytest

from benchmarks import __main__ as harness
from benchmarks import _peers, codec_peers
from benchmarks.report import targets
from benchmarks.report.results import Results
from tests import warm

TINY = {
    "allreduce": ("--sizes", "8", "--repeats", "1", "--bits", "4", "--communicator", "shm")
    + ("--no-bf16", "--peers"),
    "collectives": ("--quick", "--part", "host", "--only", "broadcast", "barrier")
    + ("--sizes", "8", "--seconds", "0.02"),
}


@pytest.fixture
def tiny_parts(monkeypatch):
    """Two parts that run, one that fails, one that cannot run here."""
    parts = {n: dataclasses.replace(harness.PARTS[n], quick=a) for n, a in TINY.items()}
    parts["wrong"] = harness.Part(
        "wrong", "collectives", "bad sizes", "wrong", quick=("--sizes", "3")
    )
    parts["lost"] = harness.Part(
        "lost", "codec_peers", "no environment", "lost", quick=("--quick",)
    )
    monkeypatch.setattr(harness, "PARTS", parts)
    return parts


def test_every_part_runs_and_failures_have_reasons(tiny_parts, tmp_path, capfd, monkeypatch):
    if (_peers.environment("hivemind") / ".ready").exists():
        del tiny_parts["lost"]
    with warm.executable():
        status = harness.main(["all", "--quick", "--out", str(tmp_path)])
    said = capfd.readouterr().out
    assert status == 1
    lines = {line.split()[0]: line for line in said.splitlines()[-len(tiny_parts) :]}
    assert set(lines) == set(tiny_parts)
    assert " done " in lines["allreduce"] and " done " in lines["collectives"]
    assert " failed " in lines["wrong"] and "'3'" in lines["wrong"]
    if "lost" in lines:
        assert "not measured" in lines["lost"] and "make bench-peers" in lines["lost"]
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {f"{n}.{kind}" for n in TINY for kind in ("json", "png")}
    rows = json.loads((tmp_path / "collectives.json").read_text())["parts"]["host"]["rows"]
    assert [(r["operation"], r["bytes"]) for r in rows] == [("broadcast", 8), ("barrier", 0)]
    assert all(0 < r["ratio_p10"] <= r["ratio_p90"] and r["cgx_seconds"] > 0 for r in rows)


def test_results_of_this_revision_are_kept(tiny_parts, tmp_path, monkeypatch):
    monkeypatch.setattr(harness._command, "git_revision", lambda: "abc")
    (tmp_path / "collectives.json").write_text(json.dumps({"machine": {"revision": "abc"}}))
    outcomes = harness.run(["collectives"], True, tmp_path, resume=True)
    assert [one.status for one in outcomes] == ["kept"]
    monkeypatch.setattr(harness._command, "git_revision", lambda: "abd")
    assert not harness.kept(tiny_parts["collectives"], tmp_path)


def test_a_part_that_takes_too_long_is_ended_with_all_it_started():
    part = dataclasses.replace(
        harness.PARTS["collectives"], quick=("--part", "host", "--seconds", "600")
    )
    start = time.monotonic()
    outcome = harness.run_part(part, quick=True, out=None, limit=1.0, drop=True)
    assert (outcome.status, outcome.reason) == ("failed", "not done after 1 s")
    assert time.monotonic() - start < 20


def test_nothing_of_the_tests_is_imported():
    """Except the extension module tests._machinery, which has the core on raw addresses: roofs."""
    files = sorted((harness.ROOT / "benchmarks").rglob("*.py"))
    assert len(files) > 10
    imported = re.compile(r"^\s*(from|import) tests\b(?! import _machinery$)", re.M)
    wrong = [f.name for f in files if imported.search(f.read_text())]
    assert not wrong


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["nothing"], "nothing"),
        (["all", "--quick", "--commit-results"], "not with --quick"),
        (["all", "--commit-results", "--out", "x"], "not with --out"),
        (["all", "--resume"], "--resume needs"),
        (["codec", "check"], "stands alone"),
    ],
)
def test_bad_arguments_are_named(flags, named, capsys):
    with pytest.raises(SystemExit) as caught:
        harness.arguments(flags)
    assert caught.value.code == 2
    assert named in capsys.readouterr().err


def test_peers_that_are_not_there_say_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr(_peers, "ROOT", tmp_path)
    monkeypatch.delenv("CGX_TEST_OPENMPI", raising=False)
    for find, target in (
        (_peers.deepspeed_op, "bench-peers"),
        (_peers.hivemind_python, "bench-peers"),
        (_peers.openmpi_mpirun, "build-mpi"),
    ):
        with pytest.raises(_peers.PeerMissing, match=f"make {target}"):
            find()


def test_the_matrix_of_powersgd_is_nearly_square():
    shapes = {n: _peers.matrix_shape(n) for n in (1, 1250, 16384, 1 << 24, 3 << 10)}
    assert shapes[1] == (1, 1) and shapes[1250] == (2, 625)
    assert shapes[16384] == (128, 128) and shapes[1 << 24] == (4096, 4096)
    assert all(rows * columns == n for n, (rows, columns) in shapes.items())


def test_a_peer_is_compared_with_what_does_the_same():
    seconds = {"cgx encode 8": [1.0, 2.0, 1.0], "hivemind quantize 8": [10.0, 20.0, 30.0]}
    rows = {r["name"]: r for r in codec_peers.to_rows({"seconds": seconds}, 4_000_000_000)}
    assert rows["cgx encode 8"]["ours"] is None and rows["cgx encode 8"]["gb_per_s"] == 4.0
    assert rows["hivemind quantize 8"]["ours"] == 10.0


def _results(speedup, deepspeed):
    def row(method, **more):
        return {"method": method, "bytes": 64 << 20, **more}

    rows = [row("cgx shm exact", seconds=1.0, speedup=speedup)]
    rows += [row("DeepSpeed shm", seconds=deepspeed)] if deepspeed else []
    rows.append({"method": "cgx shm exact", "bytes": 16 << 10, "speedup": 8.0, "seconds": 1.0})
    return Results({"allreduce": {"rows": rows, "machine": {"simd": "avx2"}}})


def test_targets_say_what_was_measured_and_whether_it_is_met():
    found = {(t.what, t.against): t for t in targets.TARGETS}
    exact = found["exact over SHM, 2 ranks, 64 MiB", "gloo fp32"]
    assert exact.row(_results(3.5, None))[2:] == [">= 3.5x", "3.5x", "yes", "avx2"]
    assert exact.row(_results(3.49, None))[2:] == [">= 3.5x", "3.49x", "**no**", "avx2"]
    peer = found["exact over SHM, 2 ranks, 64 MiB", "DeepSpeed's SHM op"]
    assert peer.row(_results(3.5, 1.2))[3:] == ["1.2x", "yes", "avx2"]
    said = peer.row(_results(3.5, None))
    assert said[3].startswith("not measured: allreduce.json has no 'DeepSpeed shm'")
    latency = found["exact over SHM, 2 ranks, 16 KiB, time", "gloo fp32"]
    assert latency.row(_results(3.5, None))[2:] == ["<= 0.15x", "0.125x", "yes", "avx2"]
    # 4 bits of 64 MiB: 8 MiB of codes and 0.25 MiB of extremes.
    of_bits = {2: 0, 4: 3 * (8 + 0.25) + 1, 8: 0}
    rows = [
        {"method": f"cgx {b} bit", "bytes": 64 << 20, "staging_bytes": n * 2**20}
        for b, n in of_bits.items()
    ]
    runs = [{"hosts": 2, "rate": "1gbit", "ranks_per_host": 1, "rows": rows}]
    sharded = found[
        "FSDP2, GPT, 4-bit gradients, 8-bit weights, loss above", "fp32, mean of 3 seeds"
    ]
    row = {"bits": [4, 8], "val_losses": [2.0] * 3, "percent_over_base": 0.51}
    document = {"rows": [{"bits": [32, 32]}, row], "machine": {"simd": "avx2"}}
    assert sharded.row(Results({"fsdp": document}))[3:] == ["0.51 %", "**no**", "avx2"]
    row["val_losses"] = [2.0] * 2
    assert "less than 3 seeds" in sharded.row(Results({"fsdp": document}))[3]
    local = found["DiLoCo, 4 bits, 2 hosts at 50 Mbit/s, loss at equal time", "DDP over gloo"]
    document["rows"] = [{"loss": 2.5}, {"loss": 2.4}, {"loss": 2.0}]
    assert local.row(Results({"diloco": document}))[3:] == ["0.8x", "yes", "avx2"]
    memory = targets.TARGETS[-1]
    results = Results({"hosts": {"runs": runs, "machine": {"simd": "avx512"}}})
    assert memory.row(results)[2:] == ["<= 1x", "1x", "yes", "avx512"]
    rows[1]["staging_bytes"] *= 1.01
    assert memory.row(results)[3:] == ["1.01x", "**no**", "avx512"]
    empty = targets.table(Results({})).splitlines()
    assert len(empty) == 2 + len(targets.TARGETS)
    assert all("not measured" in line for line in empty[2:])
