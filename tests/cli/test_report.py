"""`cgx report`: the summary of a Monitor's log."""

import json

import pytest

from tests.utils.test_monitor_sinks import RECORD, SAVED
from torch_cgx.cli import main as cli
from torch_cgx.cli.report import read, remarks, summary


def _write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _later(**other):
    return {**RECORD, "step": 150, "steps": 50, "seconds_per_step": 0.08, "exposed": 0.5, **other}


def test_means_are_over_steps(tmp_path, capsys):
    log = _write(tmp_path / "log", [RECORD, _later()])
    assert cli(["report", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 150
    assert found["seconds_per_step"] == pytest.approx((0.05 * 100 + 0.08 * 50) / 150)
    # The share is that of the times beside it.
    assert found["exposed"] == pytest.approx(found["exposed_seconds"] / found["seconds_per_step"])
    assert found["bytes_sent_in_all"] == pytest.approx(5e5 * 150)
    assert [row["name"] for row in found["layers"]][:2] == ["b.weight", "a.weight"]
    assert found["layers"][0]["error"] == 0.25


def test_text(tmp_path, capsys):
    later = _later(
        bits={**RECORD["bits"], "a.weight": 2}, errors={"a.weight": 0.5, "b.weight": 0.2}
    )
    assert cli(["report", str(_write(tmp_path / "log", [RECORD, later]))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "steps                  150 on 2 ranks, over shm"
    words = dict(line.split("  ", 1) for line in lines[1:3])
    (per_step, *_), (share, _, _, _, _, waits, _) = (text.split() for text in words.values())
    assert float(share) == pytest.approx(100 * float(waits.strip("(")) / float(per_step), rel=0.01)
    assert any(line.split() == "a.weight 2 (was 4) maxmin 0.5 0.125".split() for line in lines)
    assert "- the error of a.weight has grown from 0.125 to 0.5" in lines
    assert any(line.startswith("- no error is known of 1 compressed layers (c") for line in lines)


def test_what_is_kept_for_backward(tmp_path, capsys):
    fewer = {"saved_bytes": 12_500_000, "kept_bytes": 500_000}
    log = str(_write(tmp_path / "log", [{**RECORD, **SAVED}, _later(**fewer)]))
    assert cli(["report", log, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["saved_bytes"] == 12_500_000 and found["kept_bytes"] == 1_000_000  # over steps
    assert cli(["report", log]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("kept for")]
    assert line.split("  ")[-1] == "977 KiB of the 11.9 MiB that was compressed, 12.50x smaller"


def test_without_saved_nothing_is_said_of_it(tmp_path, capsys):
    older = {key: value for key, value in RECORD.items() if key not in SAVED}
    for record in (RECORD, older):
        log = str(_write(tmp_path / "log", [record]))
        assert cli(["report", log]) == 0
        assert "backward" not in capsys.readouterr().out
        assert cli(["report", log, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kept_bytes"] is None


@pytest.mark.parametrize("value", [-1, "many"])
def test_bytes_that_no_monitor_writes(tmp_path, value):
    log = _write(tmp_path / "log", [{**RECORD, **SAVED, "kept_bytes": value}])
    assert cli(["report", str(log)]) != 0


def test_a_truncated_last_line_is_left_out(tmp_path):
    log = _write(tmp_path / "log", [RECORD])
    log.write_text(log.read_text() + '{"version": 1, "st')
    records, notes = read(log)
    assert len(records) == 1
    assert notes == ["the last line is incomplete, and left out"]


def test_missing_records_are_noticed():
    assert "records of 100 steps are missing" in summary([_later()])["remarks"]


@pytest.mark.parametrize(
    "exposed, text", [(0.001, "communication is hidden"), (0.6, "60 % of a step waits"), (0.2, "")]
)
def test_remarks_on_exposure(exposed, text):
    found = remarks({"exposed": exposed, "layers": []})
    assert (not found) if not text else found[0].startswith(text)


@pytest.mark.parametrize(
    "content, text",
    [
        (None, "cannot read"),
        (b"", "has no records"),
        (b"hello\n", "line 1: not a record of a Monitor"),
        (b"[1]\n", "line 1: not a record"),
        (b'{"version": 1}\n', "line 1: not a record"),
        (b'{"version": 9}\n', "line 1: version 9 of a log; this torch_cgx reads 1"),
        (b"\xff\xfe\n", "it is not text"),
    ],
)
def test_bad_logs_are_one_line(tmp_path, capsys, content, text):
    log = tmp_path / "log"
    if content is not None:
        log.write_bytes(content)
    assert cli(["report", str(log)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("cgx report: ") and err.count("\n") == 1
    assert text in err
