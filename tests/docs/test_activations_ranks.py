"""docs/activations.md: the block for two ranks runs, and the Monitor shows what the page says."""

from __future__ import annotations

import contextlib
import gc
import io

import torch
import torch.distributed as dist

from tests.distributed import run_pooled
from tests.docs.documents import ROOT, code_blocks

TEXT = (ROOT / "docs" / "activations.md").read_text()


def _run(rank, world_size, block):
    names: dict = {"__name__": "__main__"}
    torch.manual_seed(rank)  # of the batches; DDP makes the weights equal
    with contextlib.redirect_stderr(io.StringIO()) as said:
        exec(compile(block, "activations.md", "exec"), names)
    record = names["monitor"].last
    values = [p.detach().clone() for p in names["model"].parameters()]
    names.clear()
    gc.collect()
    dist.destroy_process_group()
    return values, record, said.getvalue()


def test_the_block_for_two_ranks_runs():
    (block,) = code_blocks(TEXT, "two ranks")
    (first, record, said), (second, other, silent) = run_pooled(_run, 2, block, backend=None)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for one in (record, other):
        assert one["step"] == 40 and 0 < one["kept_bytes"] < one["saved_bytes"] / 5
        assert one["ratio"] > 7
    lines = [line for line in said.splitlines() if line.startswith("cgx:  ")]
    assert len(lines) == 3 and "kept MB" in lines[0] and "kept MB" not in silent
