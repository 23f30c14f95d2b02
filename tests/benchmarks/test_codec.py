"""benchmarks/codec.py: a small run of the real thing, and what is read of its rows. Speeds are not
tested.
"""

from __future__ import annotations

import json

import pytest

from benchmarks import _codec_face
from benchmarks.report import targets
from benchmarks.report.results import Results
from tests.benchmarks import runs


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codec")
    files = ["--json", str(folder / "out.json"), "--plot", str(folder / "out.png")]
    done = runs.python(
        "benchmarks/codec.py", "--quick", "--numel", "70000", "--rounds", "3", *files
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "out.png").stat().st_size > 10_000
    return json.loads((folder / "out.json").read_text())


def test_python_is_compared_with_the_engines_row_of_the_same_run(document):
    best = document["machine"]["levels"][-1]
    rates = {row["name"]: row["gb_per_s"] for row in document["rows"] if row["level"] == best}
    rows = {row["name"]: row for row in document["rows"] if row["name"].startswith("Python ")}
    calls = ("encode fp32 {b} nearest", "decode {b}", "decode+add {b}")
    engine = [
        what.format(b=bits) + size
        for size in ("", ", 256 KiB", ", 1 KiB")
        for bits in (4, 8)
        for what in calls
    ]
    two = {(b, size) for size in ("", ", 256 KiB", ", 1 KiB") for b in (4, 8)}
    trips = {
        f"Python {what} {b}{size}": f"Python encode, decode {b}{size}"
        for b, size in two
        for what in ("roundtrip", "roundtrip in place")
    }
    assert set(rows) == {f"Python {name}" for name in engine} | {*trips} | {*trips.values()}
    for name, both in trips.items():
        assert rows[name]["roof"] == both
    for name in engine:
        row = rows[f"Python {name}"]
        assert row["roof"] == name and row["level"] == best
        assert row["of_roof"] == pytest.approx(row["gb_per_s"] / rates[name], abs=2e-3, rel=0.02)
    # Nothing of it is guarded by `python -m benchmarks check`, whose rows begin otherwise.
    asked = {row["ratio"]: row["target"] for row in document["targets"]}
    assert asked["Python / engine, decode 4"] == 0.9
    assert asked["Python / engine, encode fp32 8 nearest, 256 KiB"] == 0.7


def test_what_is_called_is_the_codec():
    import torch

    from torch_cgx import codecs

    values = torch.randn(1000)
    maxmin = codecs.MaxMin(bits=8, bucket_size=64)
    payload, target = maxmin.encode(values), torch.zeros(1000)
    calls = _codec_face.face_calls(maxmin, values, payload, target)
    assert set(calls) == {"encode fp32 {b} nearest", "decode {b}", "decode+add {b}"}
    assert torch.equal(calls["encode fp32 {b} nearest"](), payload)
    calls["decode {b}"]()
    decoded = maxmin.decode(payload, numel=1000)
    assert torch.equal(target, decoded)
    calls["decode+add {b}"]()
    assert torch.equal(target, decoded + decoded)


def test_the_target_is_asked_of_the_slowest_row(document):
    found = {(t.what, t.against): t for t in targets.TARGETS}
    results = Results({"codec": document})
    rows = {row["name"]: row["of_roof"] for row in document["rows"]}
    for what, asked, end in (
        ("`codecs` from Python, 64 MiB, slowest", 0.9, ""),
        ("the same, 256 KiB in L2", 0.7, ", 256 KiB"),
    ):
        target = found[what, "the engine"]
        calls = ("encode fp32 {b} nearest", "decode {b}", "decode+add {b}")
        names = [f"Python {one.format(b=b)}{end}" for b in (4, 8) for one in calls]
        assert target.asked == asked
        assert target.figure(results) == min(rows[name] for name in names)
    call = found["a call of `codecs` on 1 KiB, slowest", "the engine"]
    rates = {row["name"]: row["gb_per_s"] for row in document["rows"]}
    names = [f"encode fp32 {b} nearest, 1 KiB" for b in (4, 8)]
    assert call.figure(results) >= max(
        1.024 / rates["Python " + n] - 1.024 / rates[n] for n in names
    )
    trip = found["`roundtrip`, 64 MiB, slowest", "encode, decode"]
    assert trip.figure(results) == min(rows[f"Python roundtrip {b}"] for b in (4, 8))
