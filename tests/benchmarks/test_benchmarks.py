"""The all-reduce benchmark: its bounds and rates by hand, and small runs of the real thing. Speeds
are not tested.
"""

from __future__ import annotations

import argparse
import json
import warnings

import pytest
import torch

from benchmarks import _command, _measure, _methods, allreduce
from tests.benchmarks import runs

TINY = ["--sizes", "4", "5000", "64K", "--repeats", "2", "--no-bf16", "--peers", "powersgd"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allreduce")
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    done = runs.python("-m", "benchmarks.allreduce", *TINY, "--bits", "32", "4", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "out.json").read_text()), folder / "out.png"


def test_every_method_is_measured_at_every_size(finished):
    _, document, _ = finished
    names = {"gloo fp32", "fp16 hook", "PowerSGD rank 1", "PowerSGD rank 4"}
    names |= {f"cgx {over} {bits}" for over in ("shm", "gloo") for bits in ("exact", "4 bit")}
    names.add("cgx shm 4 bit residual")
    found = {(row["method"], row["bytes"]) for row in document["rows"]}
    assert found == {(name, size) for name in names for size in (4, 5000, 65536)}


def test_results_are_verified_and_rates_fit_the_times(finished):
    _, document, _ = finished
    for row in document["rows"]:
        assert row["equal"] and row["within_bound"]
        assert 0 < row["seconds_p10"] <= row["seconds"] <= row["seconds_p90"]
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"])  # 2 (N - 1) / N of two ranks
        assert row["of_roof"] == pytest.approx(row["algbw"] / row["roof"])
        assert row["add_roof"] > 0
        if row["method"] == "gloo fp32":
            assert row["speedup"] == 1.0
    # Four bits really went over the wire: a sum of exact ones errs less.
    errors = {row["method"]: row["relative_error"] for row in document["rows"] if row["bytes"] > 4}
    assert errors["cgx shm 4 bit"] > 0.01
    assert errors["cgx shm exact"] < 1e-6
    assert 1e-5 < errors["fp16 hook"] < 1e-2


def test_wire_bytes_are_counted_for_cgx_and_computed_for_gloo(finished):
    _, document, _ = finished
    rows = {row["method"]: row for row in document["rows"] if row["bytes"] == 65536}
    assert (rows["gloo fp32"]["wire_source"], rows["gloo fp32"]["wire_bytes"]) == ("formula", 65536)
    assert rows["fp16 hook"]["wire_bytes"] == 32768
    # A matrix of 128 x 128 as two factors of one column; at 5000 bytes there is nothing to gain.
    assert rows["PowerSGD rank 1"]["wire_bytes"] == 4 * 256
    small = [row for row in finished[1]["rows"] if row["bytes"] == 5000]
    assert {r["wire_bytes"] for r in small if r["method"] == "PowerSGD rank 4"} == {5000}
    values, buckets = 16384, 32
    for communicator in ("shm", "gloo"):
        for name, payload in (("exact", 4 * values), ("4 bit", values // 2 + 8 * buckets)):
            row = rows[f"cgx {communicator} {name}"]
            assert row["wire_source"] == "measured"
            assert payload < row["wire_bytes"] <= payload + 200
            assert set(row["stages"]) == {"encode", "transfer", "decode"}
            assert all(seconds > 0 for seconds in row["stages"].values())


def test_machine_facts_table_and_picture(finished):
    stdout, document, picture = finished
    machine = document["machine"]
    assert machine["torch"] == torch.__version__
    assert machine["ranks"] == 2 and machine["repeats"] == 2 and machine["cores"] >= 1
    assert machine["cpu"] and machine["kernel"] and machine["python"]
    assert "Where the time goes at 64K" in stdout and "times gloo fp32" in stdout
    assert "WRONG" not in stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and picture.stat().st_size > 10_000


def test_runs_as_a_file_with_three_ranks_and_both_reductions(tmp_path):
    out = tmp_path / "out.json"
    small = ["--ranks", "3", "--sizes", "8", "100K", "--repeats", "1", "--bits", "2"]
    small += ["--communicator", "shm", "--reduction", "SRA", "ONESHOT", "--segment-kb", "64"]
    done = runs.python("benchmarks/allreduce.py", *small, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(r["method"], r["bytes"]): r for r in json.loads(out.read_text())["rows"]}
    sra, once = (rows[f"cgx shm 2 bit {name} 64K", 102400] for name in ("SRA", "ONESHOT"))
    # One-shot sends N - 1 vectors, SRA 2 (N - 1) / N of one.
    assert once["wire_bytes"] / sra["wire_bytes"] == pytest.approx(1.5, rel=0.1)
    assert sra["busbw"] == pytest.approx(sra["algbw"] * 4 / 3)


def test_a_rank_that_fails_fails_the_benchmark():
    # Ranks refuse to make a group with so large buckets.
    unfit = ["--sizes", "1M", "--bits", "4", "--bucket-size", "3000000000000"]
    unfit += ["--communicator", "shm", "--repeats", "1"]
    done = runs.python("-m", "benchmarks.allreduce", *unfit)
    assert done.returncode == 1
    assert "bucket_size='3000000000000' is not allowed" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--sizes", "6"],
        ["--sizes", "-4"],
        ["--ranks", "1"],
        ["--bits", "9"],
        ["--communicator", "tcp"],
    ],
)
def test_bad_arguments_are_named(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        allreduce.arguments(flags)
    assert caught.value.code == 2
    assert flags[1] in capsys.readouterr().err


def test_the_former_name_of_communicator_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="--carrier is deprecated: .* --communicator now"):
        former = allreduce.arguments(["--carrier", "gloo"])
    assert former.communicator == ["gloo"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert former == allreduce.arguments(["--communicator", "gloo"])
        assert allreduce.arguments([]).communicator == ["shm", "gloo"]
    with pytest.raises(SystemExit):
        allreduce.arguments(["--carrier", "tcp"])


def test_users_of_the_command_see_the_warning():
    done = runs.python("-m", "benchmarks.allreduce", "--carrier", "shm", "--ranks", "1")
    assert done.returncode == 2 and "DeprecationWarning: --carrier is deprecated" in done.stderr


def test_sizes_are_read_with_binary_units():
    read = [_command.parse_size(t) for t in ("4", "64K", "64KiB", "1m", "1G")]
    assert read == [4, 65536, 65536, 1 << 20, 1 << 30]
    with pytest.raises(argparse.ArgumentTypeError, match="allowed"):
        _command.parse_size("0")
    assert [_command.size_text(n) for n in (4, 65536, 1536, 1 << 26)] == ["4", "64K", "1.5K", "64M"]


def test_quartiles_lie_between_the_samples():
    assert _command.quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert _command.quartiles([1.0, 9.0]) == (3.0, 5.0, 7.0)
    assert _command.quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (2.0, 3.0, 4.0)


def test_the_maxmin_bound_is_that_of_the_formula():
    reference = _methods.Reference(world_size=2, numel=10, bucket_size=4)
    x = [_methods.contribution(rank, 10).double() for rank in range(2)]
    parts = [slice(0, 4), slice(4, 8), slice(8, 10)]
    ranges = torch.stack([sum(v[part].max() - v[part].min() for v in x) for part in parts])
    torch.testing.assert_close(reference.ranges, ranges)
    # 3 bits: 7 steps, of which half a step per rank may be lost; the fp32 terms are far smaller.
    bound = reference.maxmin_bound(3, two_roundings=False)
    torch.testing.assert_close(bound, ranges / 14, rtol=1e-4, atol=0)
    assert (reference.maxmin_bound(3, two_roundings=True) > bound).all()


@pytest.mark.parametrize("spoil", ["late value", "nan"])
def test_a_wrong_value_is_found(spoil):
    reference = _methods.Reference(world_size=2, numel=1001, bucket_size=512)
    right = _methods.contribution(0, 1001) + _methods.contribution(1, 1001)
    bound = reference.maxmin_bound(8, two_roundings=False)
    inside, error = reference.compare(right, bound, mean=False)
    assert inside and error < 1e-6
    assert not reference.compare(right, bound, mean=True)[0]
    wrong = right.clone()
    wrong[-1] += 1.0 if spoil == "late value" else float("nan")
    assert not reference.compare(wrong, bound, mean=False)[0]
    assert _methods.fingerprint(wrong) != _methods.fingerprint(right)


def test_failures_name_method_and_size():
    row = {"method": "cgx shm 4 bit", "bytes": 65536, "relative_error": 0.5}
    assert _measure.failures([{**row, "equal": True, "within_bound": True}]) == []
    lines = _measure.failures([{**row, "equal": False, "within_bound": False}])
    assert len(lines) == 2 and all(line.startswith("cgx shm 4 bit at 64K") for line in lines)


def test_speedup_is_the_median_of_pairs():
    def one(method, seconds):
        return {"method": method, "seconds": seconds}

    # The second half of the run is ten times slower for everybody: pairs do not notice.
    gloo, cgx = [2.0, 2.0, 20.0, 20.0, 20.0], [1.0, 1.0, 10.0, 10.0, 10.0]
    measured = [
        {"bytes": 4000, "calls_per_sample": 1, "copy_seconds": [1.0], "add_seconds": [2.0],
         "rows": [one(_methods.GLOO, gloo), one("cgx", cgx)]}
    ]  # fmt: skip
    rows = _measure.to_rows(measured, ranks=4)
    assert [row["speedup"] for row in rows] == [1.0, 2.0]
    assert rows[1]["seconds"] == 10.0
    assert rows[1]["busbw"] == pytest.approx(4000 / 10 / 1e9 * 1.5)
    assert rows[1]["roof"] == 2 * rows[1]["add_roof"]


def test_repeated_sums_stay_within_fp32():
    for ranks in (2, 4, 64):
        assert ranks ** _measure.calls_per_sample(4, ranks) * 100 < torch.finfo(torch.float32).max
    assert _measure.calls_per_sample(1 << 26, 2) == 1
