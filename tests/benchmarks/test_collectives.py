"""The benchmark of every collective: small runs of its parts, its comparison of results, and what
becomes of times by hand. Speeds are not tested.
"""

from __future__ import annotations

import argparse
import json
import math

import pytest
import torch

from benchmarks import _collectives_calls as calls
from benchmarks import _collectives_creation as creation
from benchmarks import _collectives_rounds as rounds
from benchmarks import collectives
from benchmarks.report import collectives as report
from benchmarks.report import targets_collectives
from benchmarks.report.results import Results
from tests.benchmarks import runs
from tests.hosts.marks import needs_hosts


def _run(file, *flags):
    picture = file.with_suffix(".png")
    files = ["--json", str(file), "--plot", str(picture)]
    done = runs.python("-m", "benchmarks.collectives", *flags, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.stat().st_size > 10_000
    return json.loads(file.read_text())


def test_every_operation_has_the_same_results_over_both_and_runs_are_merged(tmp_path):
    file, tiny = tmp_path / "out.json", ["--rounds", "1", "--seconds", "0.001"]
    document = _run(file, *tiny, "--part", "host", "--ranks", "2", "--sizes", "4")
    part = document["parts"]["host"]
    found = [(row["operation"], row["bytes"]) for row in part["rows"]]
    names = [name for name in calls.OPERATIONS if name != calls.COMPRESSED]
    names = [name for name in names if name not in part["skipped"]]
    assert found == [(name, n) for name in names for n in calls.sizes_of(name, [4])]
    assert part["wrong"] == [] and set(part["skipped"]) <= {"all_to_all"}
    for row in part["rows"]:
        assert (row["hosts"], row["ranks_per_host"], row["rate"]) == (1, 2, None)
        assert 0 < row["ratio_p10"] <= row["ratio_p90"] and row["cgx_seconds"] > 0

    small = [*tiny, "--ranks", "2", "--sizes", "1M", "--quick"]
    more = _run(file, *small, "--part", "copy", "creation", "--layouts", "2x2")
    assert more["parts"]["host"] == part
    copied = more["parts"]["copy"]["rows"]
    assert [row["operation"] for row in copied] == list(calls.COPIED)
    assert all(row["of_copy"] > 0 and row["copy_gb_per_s"] > 0 for row in copied)
    *turns, gloo, cgx = more["parts"]["creation"]["rows"]
    assert [row["operation"] for row in turns] == list(creation.STEPS)
    assert all(row["gloo_seconds"] > 0 and row["cgx_seconds"] > 0 for row in turns)
    assert (gloo["backend"], cgx["backend"], cgx["groups"]) == ("gloo", "cgx", 10)
    assert gloo["used"]["sockets"] >= 1 and gloo["used"]["threads"] > 0
    assert gloo["left"]["sockets"] <= 0 and gloo["left"]["files"] <= 0
    text = report.table(more)
    assert "| barrier | " in text and "| cgx, one host x 2 ranks | " in text
    assert "Not measured yet: `python -m benchmarks.collectives --part fsdp`." in text


@needs_hosts
def test_between_hosts(tmp_path):
    tiny = ["--rounds", "1", "--seconds", "0.001", "--layouts", "2x1", "--rates", "1gbit"]
    tiny += ["--only", "broadcast", "barrier", "--sizes", "64K"]
    document = _run(tmp_path / "out.json", "--part", "hosts", *tiny)
    part = document["parts"]["hosts"]
    assert part["wrong"] == [] and not document["not_measured"]
    assert [(r["operation"], r["bytes"]) for r in part["rows"]] == [
        ("broadcast", 64 << 10),
        ("barrier", 0),
    ]
    assert all((r["hosts"], r["rate"]) == (2, "1gbit") for r in part["rows"])


@pytest.mark.slow
def test_steps_of_fsdp(tmp_path, monkeypatch):
    document = _run(tmp_path / "out.json", "--part", "fsdp", "--quick")
    part = document["parts"]["fsdp"]
    assert part["wrong"] == []
    assert all(r["operation"] == "FSDP2 step" and r["bytes"] > 1 << 20 for r in part["rows"])
    assert part["rows"][0]["hosts"] == 1


def test_a_result_that_differs_is_found(monkeypatch):
    x = torch.zeros(4)
    call = calls.Call(lambda add: x.add_(add), [x], lambda: [x])
    assert calls.differing(call, {"gloo": 1, "cgx": 1, "gloo again": 1}, 3) == []
    assert calls.differing(call, {"gloo": 1, "cgx": 2, "gloo again": 1}, 3) == ["cgx"]
    assert not x.any()
    call.within = 1.0
    assert calls.differing(call, {"gloo": 1, "cgx": 2, "gloo again": 2.5}, 0) == ["gloo again"]
    call.on_cgx = lambda add: x.add_(add + 5)
    assert calls.differing(call, {"gloo": 1, "cgx": 1}, 0) == ["cgx"]


def test_inputs_differ_by_rank_tensor_and_place():
    call = calls.Call(lambda group: None, [torch.zeros(300), torch.zeros(300, dtype=torch.int64)])
    seen = []
    for rank in range(2):
        calls.fill(call, rank)
        seen += [x.tolist() for x in call.inputs]
    assert len({tuple(one) for one in seen}) == 4
    assert seen[0][:2] == [0, 1] and seen[3][:2] == [22, 23] and max(map(max, seen)) == 250


@pytest.mark.parametrize("ranks", range(2, 8))
def test_partners_of_sends_are_each_others(ranks):
    peers = [calls._peer(rank, ranks) for rank in range(ranks)]
    assert peers.count(None) == ranks % 2
    assert all(peers[peer] == rank != peer for rank, peer in enumerate(peers) if peer is not None)
    if ranks % 2 == 0:  # of two hosts with half of the ranks each
        assert all((rank < ranks // 2) != (peer < ranks // 2) for rank, peer in enumerate(peers))


def test_sizes_of_operations():
    sizes = collectives.SIZES
    assert calls.sizes_of("broadcast", sizes) == sizes and calls.sizes_of("barrier", sizes) == [0]
    assert calls.sizes_of("all_gather_object", sizes) == sizes[:4]
    assert calls.sizes_of(calls.COMPRESSED, sizes) == [16 << 20]
    plan = collectives.make_plan(collectives.arguments([]))
    fast = {"hosts": 2, "ranks_per_host": 1, "rate": "10gbit"}
    assert collectives.sizes_between(plan, fast) == sizes
    for other in ({"rate": "1gbit"}, {"hosts": 4}, {"ranks_per_host": 2}):
        assert collectives.sizes_between(plan, fast | other) == sizes[:-1]


def test_rounds_end_with_the_budget(monkeypatch):
    now = 0.0
    monkeypatch.setattr(collectives.time, "monotonic", lambda: now)
    monkeypatch.setitem(collectives.BUDGET, rounds.measure, 150.0)

    def count(seconds, **given):
        made = []

        def run(measurement, job):
            nonlocal now
            now += seconds
            made.append((job["operations"], job["compare"]))
            return {"rows": [], "skipped": {"b": "why"}}

        plan = collectives.Plan([], None, [], [], [], [], **given)
        job = {"operations": ["a", "b"]}
        collectives.in_rounds(plan, ({}, run), rounds.measure, job, collectives.Found())
        assert made == [(["a", "b"], True), *[(["a"], False)] * (len(made) - 1)]
        return len(made)

    assert [count(seconds) for seconds in (1, 37, 38, 51, 1000)] == [4, 4, 3, 2, 2]
    assert count(1000, rounds=5, least_rounds=5) == 5


def test_places_that_were_measured_are_kept_where_a_later_one_fails(monkeypatch, tmp_path):
    file = tmp_path / "out.json"
    old = [_row("broadcast", n, ratio=1) for n in (4, 8)]
    document = {"benchmark": "collectives", "parts": {"host": {"rows": old}}}
    file.write_text(json.dumps(document))
    new = old[0] | {"ratio": 2}

    def fails(plan, found):
        found.rows.append(new)
        raise RuntimeError("the second place")

    monkeypatch.setitem(collectives.MEASURE, "host", fails)
    with pytest.raises(RuntimeError, match="the second place"):
        collectives.main(["--part", "host", "--json", str(file)])
    assert json.loads(file.read_text())["parts"]["host"]["rows"] == [old[1], new]


# ---- rows


def test_the_ratio_of_rounds_and_its_uncertainty():
    assert rounds.ratio_of([2.0] * 6) == pytest.approx((2.0, 2.0, 2.0))
    low, ratio, high = rounds.ratio_of([0.5, 2.0] * 20)
    assert low < ratio < high and ratio == pytest.approx(1.0)


def test_rounds_give_one_row_with_a_control():
    def one(gloo, cgx, again):
        seconds = {"gloo": gloo, "cgx": cgx, "gloo again": again}
        return [{"operation": "barrier", "bytes": 0, "seconds": seconds}]

    (row,) = rounds.to_rows([one(1.0, 1.0, 4.0), one(4.0, 8.0, 1.0)], {"hosts": 1})
    assert row["ratio"] == pytest.approx(math.sqrt(0.5))  # of 2 and 1/4
    assert row["control"] == pytest.approx(1.0)  # of 1/4 and 4
    assert (row["gloo_seconds"], row["cgx_seconds"], row["rounds"]) == (2.0, 4.5, 2)
    assert row["hosts"] == 1


def test_bytes_per_second_against_a_copy():
    seconds = {"cgx": 4.0, "copy": 1.0}
    one = [{"operation": "send and recv", "bytes": 8, "moved": 16, "seconds": seconds}]
    (row,) = rounds.to_copy_rows([one, one], {"hosts": 1})
    assert row["of_copy"] == pytest.approx(0.5)  # twice the bytes in four times the time
    assert (row["cgx_gb_per_s"], row["copy_gb_per_s"]) == pytest.approx((4e-9, 8e-9))


def test_orders_differ_and_each_group_is_at_each_place():
    found = [order for _, order in rounds.orders(6)]
    assert len(set(found)) == 6 and all(set(order) == set(rounds.GROUPS) for order in found)
    assert {order.index("cgx") for order in found[:4]} == {0, 1, 2}


def _row(operation, nbytes, hosts=1, ranks=2, rate=None, **more):
    return {
        "operation": operation,
        "bytes": nbytes,
        "hosts": hosts,
        "ranks_per_host": ranks,
        "rate": rate,
        **more,
    }


def test_merged_documents():
    a, b, c = (_row("broadcast", n, ratio=1) for n in (4, 8, 16))
    old = {"machine": 1, "parts": {"host": {"rows": [a, b]}, "copy": {"rows": [a]}}}
    again = b | {"ratio": 2}
    new = {"machine": 2, "parts": {"host": {"rows": [again, c]}}}
    whole = collectives.merged(old, new, whole=True)
    assert whole["machine"] == 2 and list(whole["parts"]) == ["host", "copy"]
    assert whole["parts"]["host"]["rows"] == [again, c]
    some = collectives.merged(old, new, whole=False)
    assert some["parts"]["host"]["rows"] == [a, again, c]
    assert some["parts"]["copy"] == old["parts"]["copy"]
    assert collectives.merged({}, new, whole=True) == new


@pytest.mark.parametrize(
    "flags",
    [["--part", "x"], ["--only", "sum"], ["--ranks", "1"], ["--layouts", "1x2"], ["--sizes", "3"]],
)
def test_bad_arguments_are_named(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        collectives.arguments(flags)
    assert caught.value.code == 2 and flags[1] in capsys.readouterr().err


def test_layouts():
    assert collectives.layout("4x2") == (4, 2)
    with pytest.raises(argparse.ArgumentTypeError, match="'2x0'; allowed"):
        collectives.layout("2x0")


# ---- the report


def _document():
    host = [
        _row("broadcast", 4, ratio=9.0),
        _row("barrier", 0, ranks=4, ratio=7.5),
        _row("broadcast_object_list", 4, ratio=0.5),
        _row("gather", 16 << 20, ratio=4.5),
        _row("scatter", 64 << 20, ratio=1.6),
        _row("all_reduce MAX", 1 << 20, ratio=3.0),
    ]
    between = [
        _row("barrier", 0, 2, 1, "1gbit", ratio=1.2),
        _row("all_reduce MAX", 4 << 10, 4, 1, "10gbit", ratio=1.4),
        _row(calls.COMPRESSED, 16 << 20, 2, 1, "1gbit", ratio=6.5),
        _row(calls.COMPRESSED, 16 << 20, 2, 1, "10gbit", ratio=2.5),
        _row("broadcast", 16 << 20, 2, 2, "10gbit", ratio=0.96),
    ]
    for row in host + between:
        row |= {
            "control": 1.0,
            "rounds": 4,
            "ratio_p10": row["ratio"] - 0.1,
            "ratio_p90": row["ratio"] + 0.1,
        }
    spread = {"of_copy_p10": 0.38, "of_copy_p90": 0.43, "copy_gb_per_s": 9.0}
    copied = [_row("scatter", 16 << 20, of_copy=0.4, **spread)]
    copied += [_row("isend and irecv", 16 << 20, of_copy=0.3, **spread)]
    machine = {"simd": "avx2", "cpu": "a CPU", "cores": 2, "torch": "2.13.0", "rounds": 4}
    parts = {"host": {"rows": host}, "hosts": {"rows": between}, "copy": {"rows": copied}}
    return {"machine": machine, "parts": parts}


def test_targets_name_the_worst_row():
    results = Results({"collectives": _document()})
    measured = {}
    what = ""
    for target in targets_collectives.targets():
        row = target.row(results)
        what = row[0] if not row[0].startswith("the same") else f"{what} / {row[0]}"
        measured[what] = row[3:5]
    found = list(measured.values())
    assert ["7.5x (barrier, one host x 4 ranks: 7.40 to 7.60)", "**no**"] in found
    assert ["3x (all_reduce MAX of 1 MiB, one host x 2 ranks: 2.90 to 3.10)", "yes"] in found
    assert ["4.5x (gather of 16 MiB, one host x 2 ranks: 4.40 to 4.60)", "yes"] in found
    assert ["1.6x (scatter of 64 MiB, one host x 2 ranks: 1.50 to 1.70)", "yes"] in found
    assert ["0.4 (scatter of 16 MiB, one host x 2 ranks: 0.38 to 0.43)", "**no**"] in found
    objects = "0.5x (broadcast_object_list of 4 B, one host x 2 ranks: 0.40 to 0.60)"
    assert [objects, "**no**"] in found
    barrier = "1.2x (barrier, 2 hosts x 1 rank, 1 Gbit/s: 1.10 to 1.30)"
    assert [barrier, "yes"] in found and [barrier, "**no**"] in found  # of all; asked: 1.3
    assert ["1.3x", "yes"] in found  # the median of that and 1.4
    moved = "0.96x (broadcast of 16 MiB, 2 hosts x 2 ranks, 10 Gbit/s: 0.86 to 1.06)"
    assert [moved, "**no**"] in found
    compressed = f"6.5x ({calls.COMPRESSED} of 16 MiB, 2 hosts x 1 rank, 1 Gbit/s: 6.40 to 6.60)"
    assert [compressed, "yes"] in found
    missing = [one for one, _ in found if one.startswith("not measured")]
    assert "not measured: collectives.json has no part 'fsdp'" in missing
    empty = "not measured: collectives.json has no such rows in the part 'hosts'"
    assert empty in missing  # 64 KiB to 1 MiB


def test_tables_by_place_and_size():
    text = report.table(_document())
    head = "|  | one host x 2 ranks: 4 B | 1 MiB | 16 MiB | 64 MiB | one host x 4 ranks |"
    host, between, copied, *_ = [one for one in text.split("\n\n") if one.startswith("|")]
    lines = host.splitlines()
    assert lines[0] == head and lines[2] == "| broadcast | 9.00 |  |  |  |  |"
    assert lines[3] == "| barrier |  |  |  |  | 7.50 |"
    head, _, *lines = between.splitlines()
    assert head == (
        "|  | 2 hosts x 1 rank, 1 Gbit/s: 16 MiB | 4 hosts x 1 rank, 10 Gbit/s | "
        "2 hosts x 1 rank, 10 Gbit/s: 16 MiB | 2 hosts x 2 ranks, 10 Gbit/s: 16 MiB |"
    )
    assert lines[0] == "| barrier | 1.20 |  |  |  |"
    assert copied.splitlines()[2:] == [
        "| scatter | 0.40 |",
        "| isend and irecv | 0.30 |",
    ]
