"""Messages between two ranks: other lengths are an error on both sides, in any order of calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

TAGS = [0, 1, 1023, 1024, 70_000, 2**30 - 1, 2**31 - 1]


def fails(call: Callable[[], object], *words: str) -> str:
    with pytest.raises(torch_cgx.MismatchError) as info:
        call()
    text = str(info.value)
    for word in words:
        assert word in text, text
    return text


CASES = {
    "shorter": (torch.arange(4.0), torch.zeros(8), "4 float32 values (16", "8 float32 values (32"),
    "longer": (torch.arange(4.0), torch.zeros(2), "4 float32 values (16", "2 float32 values (8"),
    "nothing": (torch.zeros(0), torch.zeros(2), "0 float32 values (0", "2 float32 values (8"),
    "other type": (torch.zeros(4), torch.zeros(4).int(), "4 float32 values", "4 int32 values"),
    "as bytes": (torch.zeros(4).bool(), torch.zeros(5).short(), "4 bool values", "5 int16 values"),
    "long": (torch.zeros(300_000), torch.zeros(299_999), "300000 float32", "299999 float32"),
    "strided": (torch.zeros(9)[::2], torch.zeros(9)[::3], "5 float32", "3 float32"),
}


def exchange(way: int, rank: int, tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Rank 0 sends to rank 1, in one of three ways."""
    if way == 1:
        kind = dist.irecv if rank else dist.isend
        for work in dist.batch_isend_irecv([dist.P2POp(kind, tensor, 1 - rank, group)]):
            work.wait()
    elif rank == 0:
        dist.send(tensor, 1, group)
    else:
        dist.recv(tensor, 0 if way == 0 else None, group)


def mismatches(rank: int, size: int) -> None:
    for number, (name, (x, y, sent, expected)) in enumerate(CASES.items()):
        print(name, flush=True)
        group = dist.new_group()
        words = (
            "ranks disagree on a message",
            f"rank 0 sends {sent}",
            f"rank 1 receives {expected}",
        )
        before = y.clone()
        start = time.monotonic()
        if name == "nothing" and rank == 0:
            dist.send(x, 1, group)  # has left when its receiver finds that it expects something
        else:
            fails(partial(exchange, number % 3, rank, y if rank else x, group), *words)
        assert torch.equal(y, before), name
        assert time.monotonic() - start < 20, name
        later = partial(dist.all_reduce, torch.ones(3), group=group)
        fails(later, "after a failure in", sent, expected)
        dist.destroy_process_group(group)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert torch.all(tensor == size)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_messages_of_another_length_are_an_error_on_both_ranks(hosts):
    run_pooled(mismatches, 2, env=[{"CGX_HOST_ID": host} for host in hosts], timeout=90)


def order(rank: int, size: int) -> None:
    """Messages with one tag keep their order, whatever their lengths; tags are independent."""
    lengths = [3, 5, 3, 0, 70_000, 3, 300_000, 5]

    def message(tag: int, number: int) -> torch.Tensor:
        return torch.full((lengths[number],), tag % 1000 * 10.0 + number)

    numbers = range(len(lengths))
    if rank == 0:
        works = [dist.isend(message(tag, n), 1, tag=tag) for n in numbers for tag in TAGS]
    else:
        received = {(tag, n): torch.zeros(lengths[n]) for tag in reversed(TAGS) for n in numbers}
        works = [dist.irecv(box, 0, tag=tag) for (tag, _), box in received.items()]
    for work in works:
        assert work is not None
        work.wait()
        work.wait()  # a second time costs nothing
    if rank == 1:
        for (tag, n), box in received.items():
            assert torch.equal(box, message(tag, n)), (tag, n)


def any_rank(rank: int, size: int) -> None:
    """Receives from any rank, posted early, do not hold up what this rank sends."""
    works = [dist.irecv(torch.zeros(3), tag=tag) for tag in (4, 5)]
    dist.send(torch.full((3,), float(rank)), (rank + 1) % size, tag=5)
    works[1].wait()
    assert works[1]._source_rank() == (rank - 1) % size
    dist.send(torch.full((3,), float(rank)), (rank + 1) % size, tag=4)
    works[0].wait()
    dist.barrier()
    if rank == 0:  # the first message is that of the receive that was posted first
        boxes = [torch.zeros(n) for n in (2, 2, 2, 4)]
        works = [dist.irecv(boxes[0]), dist.irecv(boxes[1], 1), dist.irecv(boxes[2])]
        works.append(dist.irecv(boxes[3], 1))
        for work in works:
            work.wait()
        assert [box[0].item() for box in boxes] == [0, 1, 2, 3]
    elif rank == 1:
        for number, length in enumerate((2, 2, 2, 4)):
            dist.send(torch.full((length,), float(number)), 0)
    dist.barrier()
    if rank == 0:
        box, heard = torch.zeros(2), set()
        for _ in range(2 * (size - 1)):
            source = dist.recv(box)
            assert torch.all(box == source)
            heard.add(source)
        assert heard == set(range(1, size))
    else:
        for _ in range(2):
            dist.send(torch.full((2,), float(rank)), 0)


def test_messages_keep_their_order():
    run_pooled(order, 2)
    run_pooled(any_rank, 3)


def left(rank: int, size: int) -> float:
    """Receives that nobody answers do not hold up the end of the group."""
    group = dist.new_group()
    boxes = [dist.irecv(torch.zeros(3), src, group, tag) for src, tag in ((None, 0), (None, 1))]
    boxes += [dist.irecv(torch.zeros(3), 1 - rank, group, 0)]
    start = time.monotonic()
    dist.destroy_process_group(group)
    return time.monotonic() - start


def test_receives_that_nobody_answers_end_with_the_group():
    assert max(run_pooled(left, 2)) < 10


def bad(rank: int, size: int) -> None:
    for call in (
        lambda: dist.send(torch.ones(2), 1 - rank, tag=-1),
        lambda: dist.recv(torch.ones(2), 1 - rank, tag=-1),
        lambda: dist.recv(torch.ones(2), tag=-1),
    ):
        with pytest.raises(ValueError, match="tag is -1; allowed: 0 or more"):
            call()
    x = torch.full((2,), float(rank))
    dist.all_reduce(x)
    assert torch.all(x == 1)


def test_negative_tags_are_an_error():
    run_pooled(bad, 2)
