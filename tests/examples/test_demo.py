"""The demo's table and picture, the comparison's means, and the check that ranks agree."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

import common
import compare
import demo
import forecast
import pytest
import torch
import torch.distributed as dist
from common import Ranks

from tests.distributed import RanksFailed, run_pooled
from torch_cgx import cost
from torch_cgx.cli.advise import source


def fake_run(bits: int, **changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "backend": "gloo" if bits == 32 else "cgx",
        "bits": bits,
        "codec": None if bits == 32 else "maxmin",
        "seed": 0,
        "world_size": 2,
        "parameters": 1000,
        "loss": [2.0 / (1 + i) for i in range(40)],
        "accuracy": 0.98,
        "final_train_loss": 0.1,
        "final_val_loss": 0.2,
        "bytes_sent_per_step": 4000.0 * bits / 32,
        "step_time_ms_median": 1.5,
    }
    return run | changes


def test_table_has_a_line_per_run() -> None:
    lines = demo.table([fake_run(32), fake_run(4, accuracy=0.975)]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("gloo, 32 bits (exact)") and "98.00 %" in lines[2]
    assert (
        lines[3].startswith("cgx maxmin, 4 bits ") and "97.50 %" in lines[3] and "500" in lines[3]
    )
    assert len({len(line) for line in lines}) == 1


def test_running_mean() -> None:
    assert demo.running_mean([1.0, 3.0, 5.0, 10.0], 2) == [2.0, 4.0, 7.5]
    assert demo.running_mean([1.0, 3.0], 2) == [2.0]


def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "demo.png"
    demo.plot([fake_run(32), fake_run(4), fake_run(2)], path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000


def test_table_of_links() -> None:
    columns = {"here": [1.0, 2.0], "1 Gbit/s*": [3.25, 4.0]}
    lines = demo.links([fake_run(32), fake_run(2)], columns).splitlines()
    assert lines[0].split() == ["time", "per", "step", "here", "1", "Gbit/s*"]
    assert lines[2].split()[-4:] == ["1.0", "ms", "3.2", "ms"]
    assert len({len(line) for line in lines}) == 1


def test_predictions_are_of_each_link_and_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = source.profile

    def of_this_length(*arguments: Any) -> source.Profile:
        found = profile(*arguments)
        ready = (0.005,) * len(found.buckets)
        return dataclasses.replace(found, compute_seconds=0.01, ready=ready)

    monkeypatch.setattr(source, "profile", of_this_length)
    monkeypatch.setattr(cost, "measure_speed", lambda config: cost.Speed(1e-9, 1e-9))
    small = {"bits": 4, "codec": "rotated"}
    found = forecast.predict([("gloo", None), ("4", small)])
    assert list(found) == ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s"]
    slow, _, fast = found.values()
    # 605 kB of gradients on 12.5 MB/s, an eighth of them at 4 bits.
    assert 42 < slow[0] - slow[1] < 50
    assert fast[0] - fast[1] < slow[0] - slow[1]


@pytest.mark.parametrize(
    "columns, text",
    [
        ({"a": [10.0, 5.0], "b": [10.0, 9.0]}, "pays on all"),
        ({"a": [10.0, 5.0], "b": [10.0, 9.9]}, "does not pay at b:"),
        ({"a": [10.0, 10.0]}, "does not pay on any"),
    ],
)
def test_the_note_says_where_compression_pays(columns: dict[str, list[float]], text: str) -> None:
    assert text in forecast.note(columns)


def test_measured_times_that_are_far_from_the_predicted_are_told() -> None:
    assert forecast.doubt([20.0, 10.0], [22.0, 14.0]) == ""
    assert "up to 2.0 times as long" in forecast.doubt([20.0, 10.0], [22.0, 20.0])


class _Bar:
    """Of tqdm: shown or not."""

    def __init__(self, disable: bool) -> None:
        self.disable = disable
        self.shown = threading.Event()
        self.lines: list[str] = []

    def refresh(self) -> None:
        self.shown.set()

    def write(self, line: str, file: object) -> None:
        self.lines.append(line)
        self.shown.set()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_run_shows_that_it_goes_on(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(demo, "LINE_SECONDS", 0.01)
    bar = _Bar(disable=not terminal)
    with demo.alive(bar):
        assert bar.shown.wait(30)
    assert bool(bar.lines) is not terminal


def test_missing_module_is_named() -> None:
    with pytest.raises(SystemExit, match="the demo needs no_such_module:"):
        demo.require(["json", "no_such_module"])


def test_summary_of_seeds() -> None:
    exact = [fake_run(32, seed=s, accuracy=0.97 + 0.01 * s) for s in range(3)]
    small = [fake_run(4, seed=s, accuracy=0.97, final_val_loss=0.2 + 0.01 * s) for s in range(3)]
    row = compare.summary(compare.Variant("rotated", 4, feedback=True), small, exact)
    assert row["accuracy_change"] == pytest.approx(-1.0)
    # Student's t of two degrees of freedom, times the standard error of 0, -1 and -2 points.
    assert row["accuracy_interval"] == pytest.approx(4.303 / math.sqrt(3))
    assert row["loss_change"] == pytest.approx(0.05)
    assert row["loss_change_interval"] == pytest.approx(4.303 * 0.05 / math.sqrt(3))
    assert row["val_loss_stdev"] == pytest.approx(0.01)
    assert row["bytes_ratio"] == pytest.approx(8)
    text = compare.line(row)
    assert "accuracy 97.00 % (-1.00 +- 2.48 points)" in text
    assert "rotated, error feedback    4 bits" in text


def test_variants_are_all_that_the_codecs_take() -> None:
    asked = ["--codecs", "maxmin", "trellis", "--bits", "2", "8", "--error-feedback", "off", "on"]
    found = compare.variants(compare.arguments(asked))
    assert [(v.codec, v.bits, v.feedback) for v in found] == [
        ("", 32, False),
        *(("maxmin", 2, False), ("maxmin", 8, False), ("trellis", 2, False)),
        *(("maxmin", 2, True), ("maxmin", 8, True), ("trellis", 2, True)),
    ]
    assert found[0].arguments == ["--backend", "gloo"]
    assert found[-1].arguments == [
        *("--backend", "cgx", "--codec", "trellis", "--bits", "2", "--error-feedback"),
    ]


def test_runs_that_the_file_holds_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def run(script: str, arguments: list[str], processes: int, timeout: float) -> Any:
        asked.append(arguments)
        bits = 4 if "--bits" in arguments else 32
        loss = 0.2 + 0.001 * bits
        return fake_run(bits, seed=int(arguments[-2]), final_val_loss=loss, loss=[1.0, 3.0])

    monkeypatch.setattr(compare, "run_example", run)
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    compare.main(["--seeds", "0", "1", *files])
    assert len(asked) == 4
    compare.main(["--seeds", "0", "1", "2", *files])
    assert len(asked) == 6 and all(call[-2] == "2" for call in asked[4:])
    document = json.loads((tmp_path / "out.json").read_text())
    assert len(document["runs"]) == 6 and [row["bits"] for row in document["rows"]] == [32, 4]
    assert document["rows"][1]["seeds"] == [0, 1, 2] and document["runs"][0]["curve"] == [2.0]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "maxmin    4 bits" in capsys.readouterr().out


def agree(rank: int, world_size: int, different: int | None) -> str:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        if rank == different:
            model.weight[1, 2] += 1e-6
    assert dist.get_world_size() == world_size
    return common.require_equal_weights(model, Ranks(rank, world_size, torch.device("cpu")))


def test_equal_weights_are_told_from_almost_equal_ones() -> None:
    assert len(set(run_pooled(agree, 3, None))) == 1
    with pytest.raises(RanksFailed, match=r"weights of ranks \[2\] differ from those of rank 0"):
        run_pooled(agree, 3, 2)
