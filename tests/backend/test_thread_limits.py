"""Threads that the system does not start: errors name the limits; the group goes on when there is
room again.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, run_ranks
from tests.threads import no_more_threads
from torch_cgx import _C
from torch_cgx._threads import start_daemon


def no_worker(rank, world_size):
    """Texts of the errors of calls that need a thread."""
    texts = []
    x = torch.full((1000,), rank + 1.0)
    with no_more_threads():
        # On the caller's thread, and in its order, as without a limit.
        dist.all_reduce(x)
        for _ in range(2):
            with pytest.raises(torch_cgx.ResourceError) as caught:
                dist.all_reduce(x, async_op=True)
            texts.append(str(caught.value))
        # A group of one host over shared memory has no thread until a call needs one.
        group = dist.new_group(range(world_size), backend="cgx")
        dist.barrier(group)
        dist.destroy_process_group(group)
        with pytest.raises(torch_cgx.ResourceError, match="simulated rank 0 .*threads-max"):
            torch_cgx.simulate([x, x])
    dist.all_reduce(x, async_op=True).wait()
    return texts, x[0].item()


def test_the_error_names_the_limits_and_the_group_lives():
    for rank, (texts, value) in enumerate(run_pooled(no_worker, 2)):
        assert value == 6.0
        for text in texts[:2]:
            assert text.startswith(f"cgx:all_reduce on rank {rank}: the system does not start "), (
                text
            )
            assert "the thread cgx-worker (Resource temporarily unavailable)" in text
            assert "has been destroyed" not in text
        for text in texts:
            assert "kernel.threads-max" in text and "OMP_NUM_THREADS=1" in text


def at_the_limit_of_the_user(rank, world_size):
    """In a child, as a user of its own, who may have as many threads as it has."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setgid(48_151)
            os.setuid(48_151)
        dist.init_process_group("cgx", store=dist.HashStore(), rank=0, world_size=1)
        here = len(os.listdir("/proc/self/task"))
        resource.setrlimit(resource.RLIMIT_NPROC, (here, here))
        try:
            dist.all_reduce(torch.ones(10), async_op=True)
            text = "it started"
        except torch_cgx.ResourceError as error:
            text = str(error)
        os.write(writer, f"{os.getuid()} {here} {text}".encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def test_the_limit_of_a_user():
    (text,) = run_ranks(at_the_limit_of_the_user, 1, backend=None)
    user, most, rest = text.split(" ", 2)
    used = r"\d+"
    assert re.search(
        rf"the limit of user {user} \(RLIMIT_NPROC, ulimit -u\) is {most}, {used} in use "
        r"\(reached\)",
        rest,
    ), text


def test_the_limit_of_a_container(tmp_path: Path):
    """The tightest of the groups around, of both versions of control groups."""
    for name, text in {
        "proc/self/cgroup": "8:pids:/a/b\n3:cpuset:/x\n0::/\n",
        "proc/sys/kernel/threads-max": "127000\n",
        "sys/fs/cgroup/pids/a/b/pids.max": "max\n",
        "sys/fs/cgroup/pids/a/b/pids.current": "7\n",
        "sys/fs/cgroup/pids/a/pids.max": "100\n",
        "sys/fs/cgroup/pids/a/pids.current": "100\n",
        "sys/fs/cgroup/pids.max": "50\n",
        "sys/fs/cgroup/pids.current": "20\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    text = _C.thread_limits(str(tmp_path))
    assert "control group /a (pids.max; of a container: --pids-limit) is 100, 100 in use (r" in text
    assert "the kernel's (kernel.threads-max) is 127000" in text
    (tmp_path / "sys/fs/cgroup/pids/a/pids.current").write_text("10\n")
    text = _C.thread_limits(str(tmp_path))
    assert "control group / (pids.max; of a container: --pids-limit) is 50, 20 in use" in text
    assert "reached)" not in text


def test_threads_of_python():
    with no_more_threads(), pytest.raises(torch_cgx.ResourceError, match="cgx-meet .*threads-max"):
        start_daemon(lambda: None, "cgx-meet")
    start_daemon(lambda: None, "cgx-meet").join()
