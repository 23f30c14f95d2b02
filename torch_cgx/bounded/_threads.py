"""Blocks on several threads.

Threads are the engine's (`_C.CallThreads`): they work in exit functions, and a forked process gets
new ones. They share the work with the caller's thread, which does it alone where the system starts
no more.

An exception that a signal handler raises, at any step of the caller's thread, stops them, and
reaches the caller when they have ended: nothing is written or read afterwards.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from torch_cgx import _C
from torch_cgx.bounded._entropy import Coder, lent

# Starting threads costs more than this number of blocks.
_LEAST_BLOCKS = 4

# Makes what a thread does with a block; it has the coder for itself.
MakeWorker = Callable[[Coder], Callable[[int], Any]]


def runs_of(blocks: int, threads: int, longest: int) -> Iterator[range]:
    """The numbers of all blocks, for several threads: in runs of at most `longest`, which get
    shorter towards the end, so that all threads end together.
    """
    first = 0
    while first < blocks:
        left = blocks - first
        end = first + min(longest, max(1, left // (4 * threads)))
        yield range(first, end)
        first = end


def each(blocks: int, make_worker: MakeWorker, longest_run: int = 1) -> list[Any]:
    """[work(0), ..., work(blocks - 1)], on as many threads as torch uses (torch.set_num_threads);
    each thread has a worker of its own, and takes at most longest_run blocks at a time, one after
    the other. Raises the error of the first block that has one. Workers own what they touch, or the
    caller does until this returns.
    """
    threads = min(_C.intra_op_threads(), blocks)
    if blocks < _LEAST_BLOCKS or threads < 2:
        with lent() as entropy:
            work = make_worker(entropy)
            return [work(block) for block in range(blocks)]
    results: list[Any] = [None] * blocks
    failed: dict[int, Exception] = {}
    # No lock: an exception of a signal handler may leave one taken.
    runs = collections.deque(runs_of(blocks, threads, longest_run))

    def run(helps: bool = True) -> None:
        with lent() as entropy:
            work = make_worker(entropy)
            # A run that has begun goes on after the failure of a later block: one of its blocks may
            # be the first to fail.
            while runs and not failed and not others.stopped and not (helps and others.closing):
                try:
                    some = runs.popleft()
                except IndexError:  # another thread has taken it
                    return
                for block in some:
                    if others.stopped:
                        return
                    try:
                        results[block] = work(block)
                    except Exception as error:
                        failed[block] = error
                        return

    others = _C.CallThreads(run)
    with others:
        others.start(threads - 1)  # within: whatever is raised from here on, they are waited for
        run(helps=False)
    if failed:
        raise failed[min(failed)]
    return results
