"""Ranks as forked children of one process: cheap enough to lose some in every test.

    from tests.faults.forked import Ranks

    def job(rank, world_size, store):        # in the child
        ...
        return something that pickles

    with Ranks(3, job) as ranks:             # in a process that has no process group
        ranks.kill(1)
        outcomes = ranks.outcomes(timeout=20)

A child's outcome is what the function returned, or an exception. Times are of the system's
monotonic clock, which all processes share. To be used inside `run_pooled(..., backend=None)`, whose
process has imported torch and has no threads of a process group.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

_names = iter(range(1 << 60))


@dataclass
class Child:
    pid: int
    pipe: int  # to read from
    text: bytes = b""
    ended: float | None = None  # when its end was seen
    status: int | None = None
    notes: list[Any] = field(default_factory=list)


class Lost(Exception):
    """The child ended without an answer; holds its wait status."""


class Ranks:
    """`size` forked children that run `job(rank, size, store, *args)`; see the module's text."""

    def __init__(self, size: int, job: Callable[..., Any], *args: Any, env: Any = None) -> None:
        self.children: list[Child] = []
        port = int(os.environ["MASTER_PORT"])
        keys = f"forked/{os.getpid()}/{next(_names)}"
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                self._run(rank, size, job, args, env, port, keys, writer)
            os.close(writer)
            self.children.append(Child(pid, reader))

    @staticmethod
    def _run(rank, size, job, args, env, port, keys, writer) -> None:
        try:
            os.environ.update((env[rank] if isinstance(env, (list, tuple)) else env) or {})
            # A client of its own: a socket is not to be shared with the parent.
            client = dist.TCPStore("127.0.0.1", port, is_master=False)
            client.set_timeout(datetime.timedelta(seconds=60))
            try:
                value = job(rank, size, dist.PrefixStore(keys, client), *args)
            except BaseException as error:
                value = RuntimeError(f"{error!r}\n{traceback.format_exc()}")
            os.write(writer, pickle.dumps(value))
        finally:
            os._exit(0)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: Any) -> None:
        for child in self.children:
            if child.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
            os.close(child.pipe)

    def send_signal(self, rank: int, number: int) -> None:
        os.kill(self.children[rank].pid, number)

    def wait_end(self, rank: int, timeout: float = 20.0) -> float:
        """When the rank's process ended."""
        child = self.children[rank]
        deadline = time.monotonic() + timeout
        while child.ended is None:
            self._reap(child)
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {rank} is still there after {timeout} s")
            time.sleep(0.001)
        return child.ended

    @staticmethod
    def _reap(child: Child) -> None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.ended, child.status = time.monotonic(), status

    def outcomes(self, timeout: float, but: int | None = None) -> list[Any]:
        """What every child answered: its value, or an exception (`Lost` where it only ended). Rank
        `but` is not waited for.
        """
        deadline = time.monotonic() + timeout
        waiting = {c.pipe: c for rank, c in enumerate(self.children) if rank != but}
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            ready, _, _ = select.select(list(waiting), [], [], left)
            for pipe in ready:
                chunk = os.read(pipe, 1 << 16)
                waiting[pipe].text += chunk
                if not chunk:
                    child = waiting.pop(pipe)
                    if child.status is None:
                        _, child.status = os.waitpid(child.pid, 0)
                        child.ended = time.monotonic()
        return [
            self._outcome(child, child.pipe in waiting or child.status is None)
            for child in self.children
        ]

    @staticmethod
    def _outcome(child: Child, hangs: bool) -> Any:
        if hangs:
            return TimeoutError("no answer; it hangs")
        return pickle.loads(child.text) if child.text else Lost(f"wait status {child.status}")


def exit_code(child: int, seconds: float = 10.0) -> int | str:
    """Of a forked child; "the child hangs" if it has to be killed after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "the child hangs"


def join(rank: int, world_size: int, store: Any, name: str = "cgx", timeout: float = 30.0) -> None:
    """init_process_group over keys of its own."""
    dist.init_process_group(
        "cgx",
        store=dist.PrefixStore(name, store),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )
