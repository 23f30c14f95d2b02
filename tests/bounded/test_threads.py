"""Blocks on several threads: each is done once, whatever the runs; the first error is raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from torch_cgx.bounded._threads import Runs, each


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
    runs = Runs(blocks, threads, longest)
    taken = list(iter(runs.take, range(blocks, blocks)))
    assert [block for run in taken for block in run] == list(range(blocks))
    lengths = [len(run) for run in taken]
    assert lengths == sorted(lengths, reverse=True)
    assert all(length <= longest for length in lengths)
    # What the others may have to wait for: a share of a thread's part.
    assert all(length <= max(1, blocks / (4 * threads)) for length in lengths)
    assert runs.take() == range(blocks, blocks)


@pytest.mark.parametrize("longest", [1, 32])
@pytest.mark.parametrize("blocks", [0, 3, 40, 500])
def test_results_are_in_order(blocks: int, longest: int) -> None:
    assert each(blocks, lambda: lambda block: block * block, longest) == [
        block * block for block in range(blocks)
    ]


@pytest.mark.parametrize("longest", [1, 32])
def test_the_first_error_is_raised(longest: int) -> None:
    later = threading.Event()

    def worker() -> Callable[[int], None]:
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
