"""What emulated formats do to tensors, in records: Monitor, FormatMonitor, sinks, cgx report."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings

import pytest
import torch

from cgx_utils import Monitor
from cgx_utils.monitor import Csv, FormatMonitor, JsonLines, Table, TensorBoard
from tests.distributed import run_pooled
from tests.utils.test_monitor import Clock, _state, _step
from tests.utils.test_monitor_sinks import RECORD, Writer
from tests.utils.training import make_model, wrap
from torch_cgx.cli import main as cli

NAMES = ("blocks.0.up/forward.input", "conv1/activations", "fc1.weight/optimizer_state.exp_avg")
NONE = {"underflowed": 0.0, "saturated": 0.0, "sqnr": math.inf, "amax": 0.5, "bits": 16.0}
FORMATS = {
    NAMES[0]: {"underflowed": 0.25, "saturated": 0.0, "sqnr": 12.25, "amax": 3.0, "bits": 4.25},
    NAMES[1]: {"underflowed": 0.5, "saturated": 0.125, "sqnr": 31.5, "amax": 7.0, "bits": 8.25},
    NAMES[2]: {"underflowed": 0.0, "saturated": 0.0, "sqnr": math.nan, "amax": 0.0, "bits": 8.0},
}


class Handle:
    """Stands for what emulate.apply returns: a step that measures has its number as amax."""

    def __init__(self):
        self.measure = True  # whatever somebody left
        self.records = {}
        self.measured = []

    def run(self, step):
        if self.measure:
            self.measured.append(step)
            self.records = {"fc/weights": {**NONE, "amax": float(step)}}


def _seen(records):
    return [(r["step"], r["formats"].get("fc/weights", {}).get("amax")) for r in records]


# ---- Monitor


def _watched(rank, world_size, every, steps):
    model, handle, saved, records = wrap(make_model(), _state()), Handle(), Handle(), []
    saved.errors, saved.bytes_saved, saved.bytes_kept = {}, 0, 0
    with Monitor(model, every, records.append, saved=saved, formats=handle):
        for step in range(1, steps + 1):
            for one in (handle, saved):
                one.run(step)
            _step(model, rank, step)
    assert not handle.measure and not saved.measure
    return _seen(records), handle.measured, saved.measured


@pytest.mark.parametrize("every, steps", [(1, 3), (3, 7), (60, 125)])
def test_the_last_step_of_a_record_is_measured(every, steps):
    """Of 60 steps the Monitor passes by most."""
    whole = list(range(every, steps + 1, every))
    for rank, (seen, formats, saved) in enumerate(run_pooled(_watched, 2, every, steps)):
        assert formats == saved == whole
        rest = [(steps, None)] if steps % every else []  # close() adds what was not measured
        assert seen == ([(step, float(step)) for step in whole] + rest if rank == 0 else [])


def _of_group(rank, world_size):
    handle, records = Handle(), []
    with Monitor(None, 2, records.append, formats=handle) as monitor:
        for step in range(1, 5):
            handle.run(step)
            monitor.step()
        with pytest.raises(ValueError, match="these formats have a Monitor already"):
            Monitor(None, 2, formats=handle)
        with pytest.raises(TypeError, match="emulate.apply returns; this is of type dict"):
            Monitor(None, 2, formats={})
        with Monitor(None, 2, lambda record: None) as plain:
            plain.step()
            plain.step()
    return _seen(records), plain.last["formats"], monitor.last["version"]


def test_of_a_group():
    assert run_pooled(_of_group, 2)[0] == ([(2, 2.0), (4, 4.0)], {}, 1)


# ---- FormatMonitor


def test_steps_records_and_seconds():
    clock, handle, records = Clock(), Handle(), []
    with FormatMonitor(handle, 3, records.append, clock=clock) as monitor:
        for step in range(1, 8):
            clock.now += 2.0
            handle.run(step)
            monitor.step()
    assert handle.measured == [3, 6] and not handle.measure
    assert _seen(records) == [(3, 3.0), (6, 6.0), (7, None)]
    assert set(records[0]) == {"version", "step", "steps", "seconds_per_step", "formats"}
    assert [(r["steps"], r["seconds_per_step"]) for r in records] == [(3, 2.0), (3, 2.0), (1, 2.0)]
    assert monitor.last is records[-1] and monitor.step_number == 7
    monitor.step()
    monitor.close()
    assert len(records) == 3 and monitor.step_number == 7


def test_records_are_copies():
    handle, records = Handle(), []
    with FormatMonitor(handle, 1, records.append) as monitor:
        for step in (1, 2):
            handle.run(step)
            monitor.step()
            handle.records["fc/weights"]["amax"] = -1.0
    assert _seen(records) == [(1, 1.0), (2, 2.0)]


def test_mistakes_of_a_format_monitor():
    handle = Handle()
    for every, error in ((0, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match=r"every=.*; allowed: integers >= 1"):
            FormatMonitor(handle, every)
    with pytest.raises(TypeError, match="sinks holds 'log.csv'"):
        FormatMonitor(handle, 1, ["log.csv"])
    with pytest.raises(TypeError, match="this is of type Linear"):
        FormatMonitor(torch.nn.Linear(2, 2))
    monitor = FormatMonitor(handle, 1, lambda record: None)
    with pytest.raises(ValueError, match=r"have a Monitor already; close\(\) that one first"):
        FormatMonitor(handle)
    monitor.close()
    FormatMonitor(handle).close()


def test_a_monitor_that_is_forgotten_gives_its_handle_back():
    handle = Handle()
    FormatMonitor(handle, 1, lambda record: None)
    FormatMonitor(handle, 1, lambda record: None).close()


def test_a_sink_that_raises_is_dropped_and_the_others_go_on():
    def broken(record):
        raise OSError("disk full")

    handle, records = Handle(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with FormatMonitor(handle, 1, [broken, records.append]) as monitor:
            for _ in range(3):
                monitor.step()
    assert len(records) == 3
    (text,) = [str(w.message) for w in caught if "drops the sink" in str(w.message)]
    assert "OSError: disk full" in text


def _ranks(rank, world_size):
    records = []
    with FormatMonitor(Handle(), 1, records.append) as monitor:
        monitor.step()
    return len(records), monitor.last["step"]


def test_of_several_ranks_the_first_has_sinks():
    assert run_pooled(_ranks, 2, backend="gloo") == [(1, 1), (0, 1)]


# ---- sinks

ALONE = {"version": 1, "step": 100, "steps": 100, "seconds_per_step": 0.05, "formats": FORMATS}
WITH_GRADIENTS = {**RECORD, "formats": FORMATS}
LINE = (
    "worst SQNR 12.2 dB (blocks.0.up/forward.input), underflow 50 % (conv1/activations), "
    "saturation 12.5 % (conv1/activations)"
)


def test_a_table_of_gradients_has_one_line_more():
    file = io.StringIO()
    table = Table(file)
    for record in (WITH_GRADIENTS, {**RECORD, "formats": {}}, RECORD):
        table(record)
    lines = file.getvalue().splitlines()
    assert len(lines) == 1 + 2 + 1 + 1
    assert lines[2].split() == ["cgx:", "formats:", *LINE.split()]


def test_a_table_of_formats_alone():
    file = io.StringIO()
    table = Table(file)
    exact = {"fc/weights": NONE}
    unknown = {NAMES[2]: FORMATS[NAMES[2]]}
    for formats in (FORMATS, exact, unknown, {}):
        table({**ALONE, "formats": formats})
    head, *lines = [line.split() for line in file.getvalue().splitlines()]
    assert head == ["cgx:", "step", "ms/step", "formats"]
    assert lines[0] == ["cgx:", "100", "50.00", *LINE.split()]
    assert lines[1:] == [
        ["cgx:", "100", "50.00", "no", "errors"],
        *[["cgx:", "100", "50.00"]] * 2,
    ]


@pytest.mark.parametrize("record, layers", [(ALONE, 0), (WITH_GRADIENTS, 4)])
def test_csv_has_a_row_for_each_tensor(tmp_path, record, layers):
    sink = Csv(tmp_path / "log.csv")
    sink(record)
    sink.close()
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert len(rows) == 1 + layers + len(FORMATS)
    assert (rows[0]["step"], rows[0]["seconds_per_step"]) == ("100", "0.05")
    assert all(None not in row and None not in row.values() for row in rows)  # of equal lengths
    found = rows[1 + layers]
    assert (found["step"], found["name"], found["bits"]) == ("100", NAMES[0], "4.25")
    assert [float(found[key]) for key in ("underflowed", "saturated", "sqnr", "amax")] == [
        *(0.25, 0.0, 12.25, 3.0)
    ]


def test_json_lines_keep_infinities(tmp_path):
    sink = JsonLines(tmp_path / "log")
    sink({**ALONE, "formats": {"fc/weights": NONE, NAMES[2]: FORMATS[NAMES[2]]}})
    sink.close()
    found = json.loads((tmp_path / "log").read_text())["formats"]
    assert found["fc/weights"] == NONE and math.isnan(found[NAMES[2]]["sqnr"])


@pytest.mark.parametrize("record", [ALONE, WITH_GRADIENTS])
def test_tensorboard_gets_finite_scalars(record):
    writer = Writer()
    TensorBoard(writer)({**record, "formats": {**FORMATS, "fc/weights": NONE}})
    assert writer.scalars[f"cgx/format/sqnr/{NAMES[0]}", 100] == 12.25
    assert writer.scalars[f"cgx/format/underflowed/{NAMES[1]}", 100] == 0.5
    assert writer.scalars["cgx/format/amax/fc/weights", 100] == 0.5
    assert ("cgx/format/sqnr/fc/weights", 100) not in writer.scalars
    assert (f"cgx/format/sqnr/{NAMES[2]}", 100) not in writer.scalars
    assert all(math.isfinite(value) for value in writer.scalars.values())


def test_sinks_take_records_of_older_versions(tmp_path):
    newer = ("saved_errors", "saved_bytes", "kept_bytes", "formats")
    older = {key: value for key, value in RECORD.items() if key not in newer}
    writer = Writer()
    for sink in (Table(io.StringIO()), Csv(tmp_path / "log.csv"), TensorBoard(writer)):
        sink(older)
    assert writer.scalars["cgx/ratio", 100] == 7.5


# ---- cgx report


def _log(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def _later(step, sqnr):
    worse = {**FORMATS[NAMES[1]], "sqnr": sqnr, "saturated": 0.25}
    return {"step": step, "formats": {**FORMATS, NAMES[1]: worse, "fc/weights": NONE}}


def test_report_of_formats(tmp_path, capsys):
    records = [ALONE, {**ALONE, **_later(200, 9.5)}, {**ALONE, **_later(300, 20.0)}]
    log = _log(tmp_path / "log", records)
    assert cli(["report", log, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_sent"] is found["world_size"] is found["bytes_sent_in_all"] is None
    rows = found["formats"]
    assert [row["name"] for row in rows] == [NAMES[1], NAMES[0], "fc/weights", NAMES[2]]
    assert rows[0] == {
        "name": NAMES[1],
        "bits": 8.25,
        "sqnr_worst": 9.5,
        "step": 200,
        "sqnr": 20.0,
        "underflowed": 0.5,
        "saturated": 0.25,
        "amax": 7.0,
    }
    assert rows[2]["sqnr_worst"] == math.inf and rows[3]["sqnr_worst"] is None
    assert cli(["report", log]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [["steps", "300"], ["time", "50", "ms", "per", "step"], []]
    assert lines[4] == [NAMES[1], *"8.25 9.5 dB 200 20.0 dB 50.000% 25.000%".split()]
    assert len(lines) == 8


def test_report_of_gradients_and_formats_shows_the_worst_ten(tmp_path, capsys):
    many = {f"l{i}/weights": {**NONE, "sqnr": float(i)} for i in range(13)}
    log = _log(tmp_path / "log", [RECORD, {**RECORD, "step": 200, "formats": many}])
    assert cli(["report", log]) == 0
    text = capsys.readouterr().out
    assert text.startswith("steps                  200 on 2 ranks, over shm\n")
    assert "b.weight" in text and "l9/weights" in text and "l10/weights" not in text
    assert "and 3 with a better SQNR, or none (--all shows them)" in text
    assert cli(["report", log, "--all"]) == 0
    assert "l12/weights" in capsys.readouterr().out


@pytest.mark.parametrize("formats", [[], [1], {"a": 3}, {"a": {"sqnr": "high"}}, None])
def test_formats_that_are_none_are_refused(tmp_path, capsys, formats):
    log = _log(tmp_path / "log", [{**ALONE, "formats": formats}])
    assert cli(["report", log]) == 1
    assert "line 1: not a record of a Monitor" in capsys.readouterr().err
