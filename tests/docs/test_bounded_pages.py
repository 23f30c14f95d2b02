"""The Python blocks of docs/bounded.md and docs/bdi.md run, without a process group."""

from __future__ import annotations

import pytest
import torch

from tests.docs.documents import ROOT, code_blocks


@pytest.mark.parametrize("page", ["bounded.md", "bdi.md"])
def test_blocks_run(page, capsys):
    blocks = code_blocks((ROOT / "docs" / page).read_text(), "alone")
    assert blocks
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert not torch.distributed.is_initialized()
