"""The sinks of cgx_utils.Monitor: tables, files, TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from cgx_utils.monitor import Csv, JsonLines, Table, TensorBoard

RECORD = {
    "version": 1,
    "step": 100,
    "steps": 100,
    "seconds_per_step": 0.05,
    "exposed_seconds": 0.01,
    "exposed": 0.2,
    "bytes_raw": 4e6,
    "bytes_sent": 5e5,
    "ratio": 7.5,
    "seconds_encode": 1e-3,
    "seconds_transfer": 2e-3,
    "seconds_decode": 3e-3,
    "communicator": "shm",
    "errors": {"a.weight": 0.125, "b.weight": 0.25, "b.bias": 0.0, "c": None},
    "saved_errors": {},
    "saved_bytes": None,
    "kept_bytes": None,
    "bits": {"a.weight": 4, "b.weight": 4, "b.bias": 32, "c": 4},
    "codec": {"a.weight": "maxmin", "b.weight": "maxmin", "b.bias": "exact", "c": "maxmin"},
    "rank": 0,
    "world_size": 2,
}
# Of a Monitor(saved=...).
SAVED = {"saved_errors": {"blocks.0": 0.0625}, "saved_bytes": 12_500_000, "kept_bytes": 1_250_000}
WITH_SAVED = {**RECORD, **SAVED}


def test_table():
    file = io.StringIO()
    table = Table(file)
    table(RECORD)
    table({**RECORD, "step": 200, "exposed": None, "ratio": None})
    head, first, second = file.getvalue().splitlines()
    assert head.split()[:5] == ["cgx:", "step", "ms/step", "exposed", "MB/step"]
    words = "cgx: 100 50.00 20.0 % 0.500 7.50x 1.00 2.00 3.00 b.weight 0.25, a.weight 0.125"
    assert first.split() == words.split()
    assert second.split()[:4] == ["cgx:", "200", "50.00", "0.500"]


def test_a_table_shows_what_is_kept_beside_what_is_sent():
    file = io.StringIO()
    table = Table(file)
    table(WITH_SAVED)
    table({**WITH_SAVED, "step": 200, "saved_bytes": 0, "kept_bytes": 0})
    head, first, second = file.getvalue().splitlines()
    words = "cgx: 100 50.00 20.0 % 0.500 7.50x 12.500 1.250 1.00 2.00 3.00 b.weight 0.25,"
    assert first.split()[:14] == words.split()
    assert second.split()[7:9] == ["0.000", "0.000"]
    for title, cell in (("fewer", "7.50x"), ("saved MB", "12.500"), ("kept MB", "1.250")):
        assert head.index(title) + len(title) == first.index(cell) + len(cell)  # right-aligned


def test_a_table_that_gets_records_of_another_kind_has_a_new_head():
    file = io.StringIO()
    table = Table(file)
    for record in (RECORD, WITH_SAVED, WITH_SAVED, RECORD):
        table(record)
    heads = ["saved" in line for line in file.getvalue().splitlines() if "ms/step" in line]
    assert heads == [False, True, False]
    assert len(file.getvalue().splitlines()) == 3 + 4


def test_json_lines_and_csv(tmp_path):
    lines, rows = JsonLines(tmp_path / "log"), Csv(tmp_path / "log.csv")
    for sink in (lines, rows):
        sink(RECORD)
        sink({**RECORD, "step": 200})
        sink.close()
    found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert found == [RECORD, {**RECORD, "step": 200}]
    table = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert len(table) == 2 * (1 + 4)
    assert table[0]["kept_bytes"] == table[0]["saved_bytes"] == ""
    assert table[0]["seconds_per_step"] == "0.05" and table[0]["name"] == ""
    assert (table[2]["step"], table[2]["name"], table[2]["error"]) == ("100", "b.weight", "0.25")


def test_logs_have_what_is_kept(tmp_path):
    lines, rows = JsonLines(tmp_path / "log"), Csv(tmp_path / "log.csv")
    for sink in (lines, rows):
        sink(WITH_SAVED)
        sink.close()
    assert json.loads((tmp_path / "log").read_text()) == WITH_SAVED
    first, *others = csv.DictReader((tmp_path / "log.csv").open())
    assert (first["saved_bytes"], first["kept_bytes"]) == ("12500000", "1250000")
    assert all(row["kept_bytes"] == "" and row["codec"] for row in others)


class Writer:
    def __init__(self):
        self.scalars = {}
        self.flushed = 0

    def add_scalar(self, name, value, step):
        self.scalars[name, step] = value

    def flush(self):
        self.flushed += 1


def test_tensorboard_gets_scalars():
    writer = Writer()
    sink = TensorBoard(writer)
    sink({**RECORD, "exposed": None})
    sink.close()
    assert writer.scalars["cgx/ratio", 100] == 7.5
    assert writer.scalars["cgx/error/b.weight", 100] == 0.25
    assert writer.scalars["cgx/bits/b.weight", 100] == 4
    # One number for all exact layers, most of them biases and norms.
    assert not any("b.bias" in name for name, _ in writer.scalars)
    assert writer.scalars["cgx/exact_layers", 100] == 1
    assert ("cgx/exposed", 100) not in writer.scalars
    assert not any("saved" in name or "kept" in name for name, _ in writer.scalars)
    assert all(math.isfinite(value) for value in writer.scalars.values())
    assert writer.flushed == 1


def test_tensorboard_gets_what_is_kept():
    writer = Writer()
    TensorBoard(writer)(WITH_SAVED)
    assert writer.scalars["cgx/saved_bytes", 100] == 12_500_000
    assert writer.scalars["cgx/kept_bytes", 100] == 1_250_000
    assert writer.scalars["cgx/saved_error/blocks.0", 100] == 0.0625


class Files:
    """Stands for torch.utils.tensorboard: a SummaryWriter that makes its file at once."""

    class SummaryWriter(Writer):
        def __init__(self, folder):
            super().__init__()
            with open(f"{folder}/events", "a") as file:
                file.write("made\n")
            Files.made = self

        def close(self):
            self.closed = True


def test_sinks_make_their_files_with_the_first_record(monkeypatch, tmp_path):
    """All ranks make the sinks, one has the records: the others leave no file, and touch none."""
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", Files)
    (tmp_path / "old.csv").write_text("of another run")

    def make():
        return [
            TensorBoard(tmp_path),
            JsonLines(tmp_path / "new.jsonl"),
            Csv(tmp_path / "old.csv"),
        ]

    first, other = make(), make()
    for sink in first:
        sink(RECORD)
    for sink in [*other, *make()]:
        sink.close()
    for sink in first:
        sink({**RECORD, "step": 200})
        sink.close()
    assert (tmp_path / "events").read_text() == "made\n" and Files.made.closed
    assert [json.loads(line)["step"] for line in (tmp_path / "new.jsonl").open()] == [100, 200]
    rows = list(csv.DictReader((tmp_path / "old.csv").open()))
    assert len(rows) == 2 * (1 + len(RECORD["bits"])) and rows[0]["step"] == "100"


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_a_file_that_cannot_be_made_is_named_at_once(kind, tmp_path):
    with pytest.raises(FileNotFoundError, match="no/such/log"):
        kind(tmp_path / "no" / "such" / "log")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        kind(tmp_path)


def test_tensorboard_that_is_missing_names_its_package(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        TensorBoard(tmp_path)
