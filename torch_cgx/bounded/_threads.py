"""Blocks on several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

# Waking threads costs more than this number of blocks.
_LEAST_BLOCKS = 4


class _Pool:
    """Threads that stay: one takes as long to start, with its entropy coder, as some blocks do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, run: Callable[[], None], times: int) -> list[Future[None]]:
        """Calls it on so many threads."""
        with self._lock:
            if self._executor is None or self._threads < times:
                if self._executor is not None:
                    self._executor.shutdown(wait=False)  # what it was given is done all the same
                self._executor = ThreadPoolExecutor(times, thread_name_prefix="cgx-bounded")
                self._threads = times
            return [self._executor.submit(run) for _ in range(times)]


_pool = _Pool()


def _forget() -> None:
    """A forked process has none of the threads."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget)


class Runs:
    """Numbers of blocks for several threads: in runs of at most `longest`, which get shorter
    towards the end, so that all threads end together.
    """

    def __init__(self, blocks: int, threads: int, longest: int) -> None:
        self._lock = threading.Lock()
        self._next, self._end = 0, blocks
        self._share, self._longest = 4 * threads, longest

    def take(self) -> range:
        """The next run; an empty one when all are taken."""
        with self._lock:
            first, left = self._next, self._end - self._next
            self._next += min(left, self._longest, max(1, left // self._share))
            return range(first, self._next)


def each(
    blocks: int, make_worker: Callable[[], Callable[[int], Any]], longest_run: int = 1
) -> list[Any]:
    """[work(0), ..., work(blocks - 1)], on as many threads as torch uses (torch.set_num_threads);
    each thread has a worker of its own, and takes at most longest_run blocks at a time, one after
    the other. The error of the first block that has one is raised.
    """
    threads = min(torch.get_num_threads(), blocks)
    if blocks < _LEAST_BLOCKS or threads < 2:
        work = make_worker()
        return [work(block) for block in range(blocks)]
    results: list[Any] = [None] * blocks
    failed: dict[int, BaseException] = {}
    lock = threading.Lock()
    runs = Runs(blocks, threads, longest_run)

    def run() -> None:
        work = make_worker()
        while not failed and (some := runs.take()):
            for block in some:
                try:
                    results[block] = work(block)
                except BaseException as error:
                    with lock:
                        failed[block] = error
                    return

    others = _pool.submit(run, threads - 1)
    run()
    for other in others:
        # Not begun: all threads of the pool work for others, and nothing is left to do.
        if not other.cancel():
            other.result()
    if failed:
        raise failed[min(failed)]
    return results
