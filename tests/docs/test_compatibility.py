"""docs/compatibility.md: the table of torch's ways names tests that exist, and all of them; its
code runs.
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.docs.documents import ROOT, code_blocks, marked, table

TEXT = (ROOT / "docs" / "compatibility.md").read_text()


def test_the_table_names_every_file_of_tests():
    named = {row["test"] for row in table(marked(TEXT, "ways"))}
    found = {f"tests/compat/{path.name}" for path in (ROOT / "tests/compat").glob("test_*.py")}
    assert named == found


def _run_block(rank, world_size, block):
    names: dict = {"__name__": "__main__"}
    exec(compile(block, "compatibility.md", "exec"), names)
    model = names["model"]
    model(torch.ones(4, 64)).square().sum().backward()
    calls = torch_cgx.stats()["compressed_calls"]
    finite = all(p.grad.full_tensor().isfinite().all() for p in model.parameters())
    names.clear()
    del model
    gc.collect()
    dist.destroy_process_group()
    return calls, bool(finite)


def test_the_block_for_sharded_models_runs():
    (block,) = code_blocks(TEXT, "sharded ranks")
    assert run_pooled(_run_block, 2, block, backend=None, timeout=120) == [(1, True)] * 2
