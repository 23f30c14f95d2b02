"""Recipes of torch's own ways: FSDP2, and the script that launchers start, with its checkpoint."""

from __future__ import annotations

import re

import pytest

from tests.recipes.running import Finished, needs_recipes, run_ranks

pytestmark = [needs_recipes, pytest.mark.slow]

LINE = (
    r"rank (\d) of 2: steps (\d+) to 39, loss ([\d.]+) to ([\d.]+), weights (\w+), "
    r"sent (\d+) of (\d+) bytes"
)


def _check(finished: Finished, first_step: int) -> str:
    """Both ranks have ended alike, with compressed bytes; their weights."""
    found = sorted(re.findall(LINE, finished.output))
    assert [(rank, first) for rank, first, *_ in found] == [
        ("0", str(first_step)),
        ("1", str(first_step)),
    ], finished.output
    assert found[0][4] == found[1][4], "weights differ between ranks"
    for _, _, begin, end, _, sent, raw in found:
        assert float(end) < (0.4 if first_step == 0 else 1.0) * float(begin)
        assert 0 < int(sent) < int(raw) / 5
    return found[0][4]


def test_fsdp2_trains_with_fewer_bytes():
    finished = run_ranks("fsdp2_train.py")
    _check(finished, 0)
    assert "cgx: gradients: compressing 2 of 6" in finished.output
    assert "cgx: weights: compressing 2 of 6" in finished.output


def test_the_script_goes_on_from_its_checkpoint(tmp_path):
    whole = _check(run_ranks("train.py"), 0)
    file = str(tmp_path / "last.pt")
    run_ranks("train.py", "--checkpoint", file, "--steps", "20")
    assert _check(run_ranks("train.py", "--checkpoint", file), 20) == whole
