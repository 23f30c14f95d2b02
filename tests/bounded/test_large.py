"""More values than int32 counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_cgx import bounded

GIB = 2**30
MEMORY = Path("/proc/meminfo")


def free_bytes() -> int:
    """0: not known."""
    lines = MEMORY.read_text().splitlines() if MEMORY.exists() else []
    found = [line for line in lines if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) * 1024 if found else 0


@pytest.mark.slow
def test_more_than_two_to_the_31_values() -> None:
    if free_bytes() < 8 * GIB:
        pytest.skip("needs 8 GiB of free memory")
    count = 2**31 + 70_000
    payload = bounded.compress(torch.zeros(1, dtype=torch.bool).expand(count))
    info = bounded.info(payload)
    assert info.shape == (count,) and sum(block.values for block in info.blocks) == count
    for start, stop in ((2**31 - 70_000, 2**31 + 70_000), (count - 5, count)):
        part = bounded.decompress(payload, rows=slice(start, stop))
        assert part.shape == (stop - start,) and not part.any()
