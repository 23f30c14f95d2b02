"""What a process holds of the system: descriptors, threads, mapped shared memory, memory."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable


def held() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/maps") as maps:
        blocks = sum("/dev/shm/" in line or "/memfd:" in line for line in maps)
    return {
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared blocks": blocks,
    }


def resident() -> int:
    """Bytes, after a collection."""
    return _resident_pages()[0] * os.sysconf("SC_PAGESIZE")


def resident_memory() -> int:
    """Bytes that the process has written, after a collection: without pages of files, as code comes
    in when it first runs, by up to 2 MiB where the system caches files in huge pages, and without
    shared memory, of which held() counts the blocks.
    """
    total, shared = _resident_pages()
    return (total - shared) * os.sysconf("SC_PAGESIZE")


def _resident_pages() -> tuple[int, int]:
    gc.collect()
    with open("/proc/self/statm") as file:
        _, total, shared, *_ = file.read().split()
    return int(total), int(shared)


def thread_names() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(names)


class Usual:
    """What a process holds between episodes: as much as after its first one, and no more.

    What goes away within PATIENCE is not left over. A thread that has been joined stays among the
    process's tasks until the kernel has had time to end it, and one that writes an error to the
    store is left alone when the store takes too long.
    """

    PATIENCE = 5.0  # seconds, of a machine that has twenty other processes to run

    def __init__(
        self,
        look: Callable[[], dict[str, int]] = held,
        names: Callable[[], list[str]] = thread_names,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.held: dict[str, int] | None = None
        self._loops = 0
        self._look, self._names, self._clock, self._sleep = look, names, clock, sleep

    def left(self) -> tuple[dict[str, int], list[str]]:
        """What the process holds now, with the names of its threads: waits for what goes away."""
        end = self._clock() + self.PATIENCE
        found: dict[str, int] = {}
        while True:
            now, names = self._look(), self._names()
            if now == found:  # twice
                self._adopt(now, names.count("gloo_tcp_loop"))
                if not self._exceeded(now):
                    return now, names
            if self._clock() > end:
                if self.held is None:
                    self.held = now
                return now, names
            found = now
            self._sleep(0.02)

    def _exceeded(self, now: dict[str, int]) -> bool:
        return self.held is None or any(now[key] > self.held[key] for key in self.held)

    def _adopt(self, now: dict[str, int], loops: int) -> None:
        """Gloo's event loop is one thread of the process, which may come later than the first
        episode: what it needs is the new measure then.
        """
        first_loop = self._loops == 0 and loops == 1
        if self.held is None or (first_loop and now["threads"] == self.held["threads"] + 1):
            self.held, self._loops = now, loops
