"""The example that trains in less memory, with tiny settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import train_small_memory as example

TINY = ["--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "8"]
TINY += ["--data-mb", "0.3", "--steps", "20"]


def test_it_keeps_less_and_learns_as_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main([*TINY, "--json", str(tmp_path / "r.json")])
    result = json.loads((tmp_path / "r.json").read_text())
    plain, small = result["plain"], result["small"]
    assert plain["kept"] / 10 < small["kept"] < plain["kept"] / 6 and small["peak"] < plain["peak"]
    assert plain["losses"][0] == small["losses"][0]  # the forward pass is the same
    assert small["losses"] != plain["losses"]
    assert small["losses"][-1] == pytest.approx(plain["losses"][-1], abs=0.05)
    assert plain["losses"][-1] < plain["losses"][0] - 0.5
    assert "loss, steps 19 to 20" in capsys.readouterr().out


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["--steps", "0"])
    assert "--steps 0: must be positive" in capsys.readouterr().err
