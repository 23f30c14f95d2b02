"""How processes end whose groups nobody has destroyed, or somebody still holds. As a script: ends
some processes while a thread of a group lets go of the last reference to a tensor, and prints how.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

import torch_cgx  # noqa: F401  before the processes fork
from tests.distributed import ROOT

gone = threading.Event()
elsewhere = threading.Event()


class Lingering(torch.Tensor):
    """A tensor that takes long to be dropped, on every thread but the main one."""

    def __del__(self) -> None:
        main = threading.get_native_id() == os.getpid()
        if not main:
            elsewhere.set()
        gone.set()
        if not main:
            time.sleep(0.5)


def leave(way: str, end: str) -> dist.ProcessGroup:
    """Returns while another thread drops a tensor; the group is left over or destroyed. No other
    call is under way then: nobody would wait for it.
    """
    dist.init_process_group("cgx", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    op = dist.ReduceOp.MAX if way == "gloo" else dist.ReduceOp.SUM
    while not elsewhere.is_set():
        gone.clear()
        tensor = torch.ones(1_000_000).as_subclass(Lingering)
        with torch._C.DisableTorchFunctionSubclass():
            dist.all_reduce(tensor, op=op, async_op=True)
        del tensor
        assert gone.wait(60)
    if end == "destroyed":
        dist.destroy_process_group()
    return group


def test_a_tensor_that_a_thread_lets_go_of_at_exit_is_no_abort():
    """Python unwinds a thread that asks for its lock too late, and C++ aborts the process then."""
    command = [sys.executable, "-m", "tests.backend.test_exit"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    ended = ["gloo kept 0", "gloo destroyed 0", "engine kept 0", "engine destroyed 0"]
    assert run.stdout.splitlines() == ended, run.stderr


if __name__ == "__main__":
    children = {}
    for case in itertools.product(["gloo", "engine"], ["kept", "destroyed"]):
        pid = os.fork()
        if pid == 0:
            group = leave(*case)  # until Python has shut down
            break
        children[pid] = case
    else:
        for pid, case in children.items():
            print(*case, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
