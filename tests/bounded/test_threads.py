"""Blocks on several threads: each is done once, whatever the runs; the first error is raised; no
thread works on when an exception has left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.threads import no_more_threads
from torch_cgx.bounded._entropy import Coder
from torch_cgx.bounded._threads import each, ranges_of


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("blocks", [0, 1, 5, 31, 32, 33, 1000])
@pytest.mark.parametrize("threads", [2, 9])
@pytest.mark.parametrize("longest", [1, 2, 32])
def test_runs_hold_each_block_once_and_get_shorter(blocks: int, threads: int, longest: int) -> None:
    taken = list(ranges_of(blocks, threads, longest))
    assert [block for run in taken for block in run] == list(range(blocks))
    lengths = [len(run) for run in taken]
    assert lengths == sorted(lengths, reverse=True)
    assert all(length <= longest for length in lengths)
    # What the others may have to wait for: a share of a thread's part.
    assert all(length <= max(1, blocks / (4 * threads)) for length in lengths)


@pytest.mark.parametrize("longest", [1, 32])
@pytest.mark.parametrize("blocks", [0, 3, 40, 500])
def test_results_are_in_order(blocks: int, longest: int) -> None:
    assert each(blocks, lambda _: lambda block: block * block, longest) == [
        block * block for block in range(blocks)
    ]


@pytest.mark.parametrize("longest", [1, 32])
def test_the_first_error_is_raised(longest: int) -> None:
    later = threading.Event()

    def worker(_: Coder) -> Callable[[int], None]:
        def work(block: int) -> None:
            if block == 70:
                later.set()
                raise ValueError("block 70")
            if block == 1:  # in another run
                assert later.wait(30)
                raise ValueError("block 1")

        return work

    with pytest.raises(ValueError, match="^block 1$"):
        each(400, worker, longest)


class Raised(Exception):
    """By the handler of a signal."""


@pytest.fixture
def raising() -> Iterator[list[int]]:
    """SIGUSR1 raises; what it is called with is kept."""
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        raise Raised

    before = signal.signal(signal.SIGUSR1, handler)
    yield heard
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("as_error", [False, True], ids=["beside", "as the error of a block"])
def test_threads_have_ended_when_a_signal_handler_raises(
    as_error: bool, raising: list[int]
) -> None:
    """Also when it raises again while they are waited for."""
    main, begun, ended = threading.get_ident(), threading.Barrier(3), []

    def worker(_: Coder) -> Callable[[int], None]:
        if not as_error and threading.get_ident() == main:
            begun.wait(30)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(30)

        def work(block: int) -> None:
            if threading.get_ident() == main:
                begun.wait(30)
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(30)
            assert not ended
            begun.wait(30)
            while not raising:
                time.sleep(0.001)
            time.sleep(0.2)  # the caller waits for this thread
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.2)
            ended.append(block)

        return work

    left = []
    with contextlib.suppress(Raised):  # of the second signal, if it comes later than the first
        try:
            each(400, worker)
        except Raised:
            left.extend(ended)
            time.sleep(0.001)
    assert len(left) == len(ended) == 2
    assert len(raising) == 2


def test_an_interrupt_goes_before_the_error_of_a_block() -> None:
    main, begun, failed = threading.get_ident(), threading.Event(), threading.Event()

    def worker(_: Coder) -> Callable[[int], None]:
        def work(block: int) -> None:
            if threading.get_ident() == main:
                begun.set()
                assert failed.wait(30)
                raise KeyboardInterrupt
            assert begun.wait(30)  # after a failure the caller's thread would begin no block
            failed.set()
            raise ValueError(f"block {block}")

        return work

    with pytest.raises(KeyboardInterrupt):
        each(400, worker)


def test_the_caller_does_all_where_no_thread_starts() -> None:
    found = set()

    def worker(_: Coder) -> Callable[[int], int]:
        found.add(threading.get_ident())
        return lambda block: block

    def numbers() -> tuple[int, int]:
        """Of threads: at the limit, and without it."""
        with no_more_threads():
            assert each(40, worker) == list(range(40))
        at_the_limit = len(found)
        for _ in range(100):  # a thread may come too late to get a block
            each(400, worker)
        return at_the_limit, len(found)

    child = os.fork()  # which has no threads of earlier calls
    if child == 0:
        status = 99
        try:
            signal.alarm(60)
            before, after = numbers()
            status = 10 * before + after
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
