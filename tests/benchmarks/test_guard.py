"""The regression guard: a loss is found and named, noise is not."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as harness
from benchmarks.report import guard
from tests import warm

BASELINE = {"codec: encode / scan": 0.8, "allreduce: exact / gloo": 4.0, "allreduce: 4 bit": 3.0}


class Machine:
    """Gives a list of measurements, one after another, the last of them for ever."""

    def __init__(self, *measurements):
        self.measurements = list(measurements)
        self.asked = []

    def __call__(self, wanted):
        self.asked.append(set(wanted))
        found = self.measurements[min(len(self.asked), len(self.measurements)) - 1]
        return dict(found)


def test_equal_and_better_and_a_little_worse_pass_at_once():
    machine = Machine({name: ratio * 0.81 for name, ratio in BASELINE.items()})
    assert guard.compare(BASELINE, machine) == []
    assert machine.asked == [set(BASELINE)]
    assert guard.compare(BASELINE, Machine({n: 9 * r for n, r in BASELINE.items()})) == []


def test_a_loss_stays_and_is_named():
    lost = {**BASELINE, "allreduce: exact / gloo": 4.0 * 0.79}
    machine = Machine(lost)
    losses = guard.compare(BASELINE, machine)
    assert [loss.name for loss in losses] == ["allreduce: exact / gloo"]
    assert str(losses[0]) == "allreduce: exact / gloo: 3.160, was 4.000 (21 % less)"
    # Measured three times more, and only what was lost.
    assert machine.asked == [set(BASELINE)] + 3 * [{"allreduce: exact / gloo"}]


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_noise_that_goes_passes(bad):
    noisy = {**BASELINE, "allreduce: 4 bit": 1.0}
    machine = Machine(*bad * [noisy], BASELINE)
    assert guard.compare(BASELINE, machine) == []
    assert len(machine.asked) == bad + 1


def test_noise_in_other_rows_does_not_hide_a_loss():
    first = {**BASELINE, "codec: encode / scan": 0.5, "allreduce: 4 bit": 1.0}
    then = {**BASELINE, "codec: encode / scan": 0.5, "allreduce: exact / gloo": 1.0}
    losses = guard.compare(BASELINE, Machine(first, then))
    assert [(loss.name, loss.best) for loss in losses] == [("codec: encode / scan", 0.5)]


def test_a_row_that_is_gone_or_no_number_is_lost():
    found = {**BASELINE, "allreduce: 4 bit": float("nan")}
    del found["codec: encode / scan"]
    losses = guard.compare(BASELINE, Machine(found), repeats=1)
    assert [loss.name for loss in losses] == ["codec: encode / scan", "allreduce: 4 bit"]
    assert "not measured now" in str(losses[0])


def test_ratios_are_read_from_what_the_parts_write():
    codec = {
        "machine": {"levels": ["scalar", "avx2"]},
        "rows": [
            {"name": "scan fp32", "level": "avx2", "roof": "", "of_roof": None},
            {"name": "encode fp32 4 nearest", "level": "avx2", "roof": "scan fp32", "of_roof": 0.8},
            {"name": "encode fp32 4 nearest", "level": "scalar", "roof": "scan", "of_roof": 0.1},
            {"name": "torch quantize 8", "level": "avx2", "roof": "scan fp32", "of_roof": 0.4},
        ],
    }
    reduced = {
        "rows": [
            {"method": "gloo fp32", "bytes": 65536, "speedup": 1.0},
            {"method": "cgx shm exact", "bytes": 65536, "speedup": 3.5},
        ]
    }
    rows = [{"ratio": ratio} for ratio in (0.9, 1.0, 1.3)]
    every = {"parts": {"host": {"rows": rows}}}
    documents = {"codec": codec, "allreduce": reduced, "collectives": every}
    found = {}
    for probe in guard.PROBES:
        ratios = probe.ratios(documents[probe.part])
        assert all(name.startswith(f"{probe.part}: ") for name in ratios)
        found |= ratios
    assert found == {
        "codec: encode fp32 4 nearest / scan fp32": 0.8,
        "allreduce: cgx shm exact, 64K / gloo": 3.5,
        "collectives: median of all / gloo": 1.0,
    }


def test_the_command_fails_on_a_loss_and_writes_medians(tmp_path, capsys):
    runs = iter([{"codec: a": 1.0}, {"codec: a": 3.0}, {"codec: a": 2.0}])
    probes = (guard.Probe("codec", (), lambda document: document),)
    file = tmp_path / "baseline.json"
    assert guard.write(lambda part, arguments: next(runs), file, probes) == 0
    assert json.loads(file.read_text())["ratios"] == {"codec: a": 2.0}
    assert guard.check(lambda part, arguments: {"codec: a": 1.7}, file, probes) == 0
    assert guard.check(lambda part, arguments: {"codec: a": 1.5}, file, probes) == 1
    assert "LOST codec: a: 1.500, was 2.000 (25 % less)" in capsys.readouterr().out
    assert guard.check(harness.probe, tmp_path / "other.json") == 1
    assert "python -m benchmarks baseline" in capsys.readouterr().err


def test_a_probe_runs_its_part(capsys):
    tiny = ("--quick", "--part", "host", "--only", "barrier", "--seconds", "0.02")
    probe = guard.Probe("collectives", tiny, guard._collectives)
    with warm.executable():
        found = guard.measure(harness.probe, {"collectives: median of all / gloo"}, (probe,))
    assert found["collectives: median of all / gloo"] > 0.1
    assert guard.measure(harness.probe, {"codec: a"}, (probe,)) == {}
    wrong = guard.Probe("collectives", ("--sizes", "3"), guard._collectives)
    with pytest.raises(guard.ProbeFailed, match="collectives: failed: status 2"):
        guard.measure(harness.probe, None, (wrong,))
