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


def test_a_pipeline_sends_a_quarter_of_the_bytes():
    found = {}
    for bits in ("8", "32"):
        finished = run_ranks("pipeline_train.py", "--bits", bits)
        line = r"rank (\d) of 2: steps 0 to 39, (?:loss ([\d.]+) to ([\d.]+), )?sent (\d+) of (\d+)"
        first, last = sorted(re.findall(line, finished.output))
        for _, _, _, sent, raw in (first, last):
            assert int(sent) < int(raw) / 3 if bits == "8" else (sent, raw) == ("0", "0")
        found[bits] = float(last[2])
        assert float(last[2]) < 0.6 * float(last[1])
    assert abs(found["8"] / found["32"] - 1) < 0.05


def test_experts_train_with_few_bits():
    found = {}
    for bits in (("8", "4"), ("32", "32")):
        finished = run_ranks("moe_train.py", "--forward", bits[0], "--backward", bits[1])
        line = r"rank (\d) of 2: steps 0 to 39, loss ([\d.]+) to ([\d.]+)"
        first, last = sorted(re.findall(line, finished.output))
        for _, begin, end in (first, last):
            assert float(end) < 0.4 * float(begin)
        found[bits] = float(first[2]) + float(last[2])
    assert abs(found["8", "4"] / found["32", "32"] - 1) < 0.2
