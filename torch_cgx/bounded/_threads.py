"""Blocks on several threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

# Starting threads costs more than this number of blocks.
_LEAST_BLOCKS = 4


def each(blocks: int, make_worker: Callable[[], Callable[[int], Any]]) -> list[Any]:
    """[work(0), ..., work(blocks - 1)], on as many threads as torch uses (torch.set_num_threads);
    each thread has a worker of its own. The error of the first block that has one is raised.
    """
    threads = min(torch.get_num_threads(), blocks)
    if blocks < _LEAST_BLOCKS or threads < 2:
        work = make_worker()
        return [work(block) for block in range(blocks)]
    results: list[Any] = [None] * blocks
    failed: dict[int, BaseException] = {}
    lock = threading.Lock()
    numbers = itertools.count()  # next() is one step of the interpreter

    def run() -> None:
        work = make_worker()
        while not failed and (block := next(numbers)) < blocks:
            try:
                results[block] = work(block)
            except BaseException as error:
                with lock:
                    failed[block] = error
                return

    with ThreadPoolExecutor(threads - 1, thread_name_prefix="cgx-bounded") as pool:
        others = [pool.submit(run) for _ in range(threads - 1)]
        run()
        for other in others:
            other.result()
    if failed:
        raise failed[min(failed)]
    return results
