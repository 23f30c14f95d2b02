"""The Python blocks of docs/bounded.md and docs/bdi.md run."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.distributed import ROOT, run_pooled
from tests.docs.documents import code_blocks


def _blocks(page, mark):
    blocks = code_blocks((ROOT / "docs" / page).read_text(), mark)
    assert blocks
    return blocks


@pytest.mark.parametrize("page", ["bounded.md", "bdi.md"])
def test_blocks_run_without_a_process_group(page):
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    for block in _blocks(page, "alone"):
        exec(compile(block, page, "exec"), names)
    assert not dist.is_initialized()


def test_checkpoints_are_written_and_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in _blocks("bounded.md", "one process"):
        exec(compile(block, "bounded.md", "exec"), {"__name__": "__main__"})
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.cgx", "checkpoint"}


def _broadcast(rank, world_size, blocks):
    torch.manual_seed(rank)
    names: dict = {"__name__": "__main__"}
    for block in blocks:
        lines = [line for line in block.splitlines() if "init_process_group" not in line]
        exec(compile("\n".join(lines), "bounded.md", "exec"), names)
    return [parameter.detach().clone() for parameter in names["model"].parameters()]


def test_a_model_is_broadcast():
    first, second = run_pooled(_broadcast, 2, _blocks("bounded.md", "two ranks"))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
