"""The table of faults names tests that exist; the code runs."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed import run_pooled

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()


def test_every_row_has_its_test():
    table = TEXT.split("<!-- faults -->")[1].split("<!-- /faults -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named or "as plain Gloo" in row, row
        for name in named:
            assert (ROOT / name).is_file(), name
    assert "@" not in table  # numbers that nobody filled in


def run_block(rank, world_size, code, folder):
    import os

    os.chdir(folder)
    dist.all_reduce(torch.ones(100))
    scope: dict[str, object] = {}
    exec(code, scope)
    return sorted(name.name for name in Path(folder).iterdir())


def test_the_code_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    (files,) = run_pooled(run_block, 1, block, str(tmp_path))
    assert files == ["trace_0", "trace_0.json"]
