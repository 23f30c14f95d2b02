"""Processing of blocks on several threads.

The threads are the engine's (`_C.CallThreads`), which also work in exit functions and in a forked
process. The caller's thread works with them, and alone if the system starts no further threads.

If a signal handler raises an exception in the caller's thread, at any step, the other threads stop.
The exception reaches the caller after they have ended, so no memory is written or read afterwards.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from torch_cgx import _C
from torch_cgx.bounded._entropy import Coder, lent

# For fewer blocks, starting threads takes longer than it saves.
_LEAST_BLOCKS = 4

# Makes the function that a thread calls for each block; no other thread uses its coder.
MakeWorker = Callable[[Coder], Callable[[int], Any]]


def ranges_of(blocks: int, threads: int, longest: int) -> Iterator[range]:
    """The numbers of all blocks, in ranges for several threads. A range has at most `longest`
    blocks; towards the end they get shorter, so that all threads end at about the same time.
    """
    first = 0
    while first < blocks:
        left = blocks - first
        end = first + min(longest, max(1, left // (4 * threads)))
        yield range(first, end)
        first = end


def each(blocks: int, make_worker: MakeWorker, longest_range: int = 1) -> list[Any]:
    """[work(0), ..., work(blocks - 1)], computed on as many threads as torch uses
    (torch.set_num_threads). Each thread makes its own `work` function, and takes at most
    longest_range blocks at a time. Raises the error of the first block that failed. Memory that
    `work` uses must exist until this function returns.
    """
    threads = min(_C.intra_op_threads(), blocks)
    if blocks < _LEAST_BLOCKS or threads < 2:
        with lent() as entropy:
            work = make_worker(entropy)
            return [work(block) for block in range(blocks)]
    results: list[Any] = [None] * blocks
    failed: dict[int, Exception] = {}
    # No lock: an exception of a signal handler may leave one taken.
    ranges = collections.deque(ranges_of(blocks, threads, longest_range))

    def run(helps: bool = True) -> None:
        with lent() as entropy:
            work = make_worker(entropy)
            # After a failure, ranges that have begun are continued: one of their blocks may have a
            # lower number and fail, too.
            while ranges and not failed and not others.stopped and not (helps and others.closing):
                try:
                    some = ranges.popleft()
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
        others.start(threads - 1)  # inside of `with`, which waits for them after any exception
        run(helps=False)
    if failed:
        raise failed[min(failed)]
    return results
