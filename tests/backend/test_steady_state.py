"""Calls that are made again and again allocate no memory for messages: buffers, shared blocks and
plans are kept from call to call. What is left is bookkeeping of a few hundred bytes (torch's Work,
the record of the call).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

import torch_cgx
from tests.distributed import run_ranks

CALLS = 50


def counted(rank, world_size, bits, feedback=False):
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.cgx_counted.restype = ctypes.c_size_t
    os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"] = str(bits)
    tensors = [torch.ones(n) for n in (1, 1000, 70_000, 3_000_000)]
    residuals = [torch.zeros(t.shape) if feedback else None for t in tensors]

    def calls(times):
        for _ in range(times):
            for tensor, residual in zip(tensors, residuals, strict=True):
                torch_cgx.all_reduce(tensor, residual=residual)
                tensor.fill_(1.0)

    calls(10)
    # A rank that waits is looked at by the watch, whose thread allocates once what torch keeps for
    # each thread.
    for late in range(world_size):
        if rank == late:
            time.sleep(0.3)
        calls(1)
    library.cgx_count(1)
    calls(CALLS)
    library.cgx_count(0)
    total, large, largest = (library.cgx_counted(what) for what in range(3))
    library.cgx_count(1)
    torch.empty(10_000)
    library.cgx_count(0)
    assert library.cgx_counted(1) >= 1, "the counter does not see what torch allocates"
    return total / (CALLS * len(tensors)), large, largest


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed: the extension was built with one"
    library = tmp_path_factory.mktemp("count") / "count_malloc.so"
    source = Path(__file__).with_name("count_malloc.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return str(library)


@pytest.mark.parametrize(("bits", "feedback"), [(32, False), (4, False), (4, True)])
def test_over_shared_memory_nothing_of_4_kib_or_more_is_allocated(counter, bits, feedback):
    for total, large, largest in run_ranks(counted, 2, bits, feedback, env={"LD_PRELOAD": counter}):
        assert large == 0, f"{large} allocations, the largest of {largest} bytes"
        assert total < 100, f"{total} allocations a call"


@pytest.mark.parametrize("bits", [32, 4])
def test_between_hosts_no_message_is_allocated(counter, bits):
    """Gloo keeps a queue of what it sends, in deques that grow by 512 bytes."""
    env = [{"LD_PRELOAD": counter, "CGX_HOST_ID": str(rank)} for rank in range(2)]
    for total, large, largest in run_ranks(counted, 2, bits, env=env):
        assert large == 0, f"{large} allocations, the largest of {largest} bytes"
        assert total < 1000, f"{total} allocations a call"
