"""Messages between ranks: other lengths are an error on both sides, in any order of calls."""

from __future__ import annotations

import datetime
import os
import random
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

AT_ONCE = 65536  # bytes: csrc/comm/mail/memory.h
RING = 262144
BEHIND_HEADER = 65536  # csrc/backend/inner/gloo_messages.cc
TAGS = [0, 1, 1023, 1024, 70_000, 2**30 - 1, 2**31 - 1]


def on(hosts: str) -> list[dict[str, str]]:
    """One host, where messages go over shared memory, or several, between which Gloo has them."""
    return [{"CGX_HOST_ID": host} for host in hosts]


def fails(call: Callable[[], object], *words: str) -> str:
    with pytest.raises(torch_cgx.MismatchError) as info:
        call()
    text = str(info.value)
    for word in words:
        assert word in text, text
    return text


Case = tuple[torch.Tensor, torch.Tensor, str, str]  # what is sent and received, and their names

CASES: dict[str, Case] = {
    "shorter": (torch.arange(4.0), torch.zeros(8), "4 float32 values (16", "8 float32 values (32"),
    "longer": (torch.arange(4.0), torch.zeros(2), "4 float32 values (16", "2 float32 values (8"),
    "nothing": (torch.zeros(0), torch.zeros(2), "0 float32 values (0", "2 float32 values (8"),
    "other type": (torch.zeros(4), torch.zeros(4).int(), "4 float32 values", "4 int32 values"),
    "as bytes": (torch.zeros(4).bool(), torch.zeros(5).short(), "4 bool values", "5 int16 values"),
    "long": (torch.zeros(300_000), torch.zeros(299_999), "300000 float32", "299999 float32"),
    "strided": (torch.zeros(9)[::2], torch.zeros(9)[::3], "5 float32", "3 float32"),
}

# Bytes: what is sent, and what the receiver expects.
BORDER = [(0, 1), (1, 0), (1, BEHIND_HEADER), (BEHIND_HEADER, 1), (32, 400_000), (400_000, 32)]
for length in (BEHIND_HEADER - 1, BEHIND_HEADER + 1, BEHIND_HEADER + 4):
    BORDER += [(length, BEHIND_HEADER), (BEHIND_HEADER, length)]
BORDER_CASES: dict[str, Case] = {
    f"{a} for {b} bytes": (
        *(torch.zeros(a).byte(), torch.zeros(b).byte()),
        *(f"{a} uint8 value", f"{b} uint8 value"),
    )
    for a, b in BORDER
} | {
    "longer type": (torch.zeros(1024), torch.zeros(1024).double(), "1024 float32", "1024 float64"),
    "shorter type": (torch.zeros(1024).double(), torch.zeros(1024), "1024 float64", "1024 float32"),
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


def mismatches(rank: int, size: int, cases: dict[str, Case], first: int = 0) -> None:
    for number, (name, (x, y, sent, expected)) in enumerate(cases.items(), first):
        print(name, flush=True)
        group = dist.new_group()
        words = (
            "ranks disagree on a message",
            f"rank 0 sends {sent}",
            f"rank 1 receives {expected}",
        )
        before = y.clone()
        start = time.monotonic()
        # A short message over shared memory is sent when it lies there, over Gloo with its header.
        shared = os.environ["CGX_HOST_ID"] == "aa"
        if rank == 0 and x.nbytes <= (AT_ONCE if shared else BEHIND_HEADER):
            exchange(number % 3, rank, x, group)
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
    env = [{"CGX_HOST_ID": "aa" if hosts == "aa" else host} for host in hosts]
    run_pooled(mismatches, 2, CASES, env=env, timeout=90)


@pytest.mark.parametrize("way", range(3))
def test_short_and_long_messages_for_each_other_are_an_error(way):
    run_pooled(mismatches, 2, BORDER_CASES, way, env=on("ab"), timeout=90)


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


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_messages_keep_their_order(hosts):
    run_pooled(order, 2, env=on(hosts[:2]))
    run_pooled(any_rank, 3, env=on(hosts))


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


def values(count: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count, np.uint8))


def all_pairs(rank: int, size: int) -> None:
    """Each rank sends all others messages of many lengths, received in another order."""
    lengths = [0, 1, 63, 64, 65, 400, 5000, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1]
    lengths += [BEHIND_HEADER - 1, BEHIND_HEADER, BEHIND_HEADER + 1]
    lengths += [RING - 64, RING, RING + 1, 3 * RING + 7]
    peers = [peer for peer in range(size) if peer != rank]
    plan = [(peer, n) for n in range(len(lengths)) for peer in peers]
    random.Random(rank).shuffle(plan)
    works = [dist.isend(values(lengths[n], 100 * rank + n), peer, tag=n) for peer, n in plan]
    random.Random(100 + rank).shuffle(plan)
    boxes = {one: torch.zeros(lengths[one[1]], dtype=torch.uint8) for one in plan}
    works += [dist.irecv(box, peer, tag=n) for (peer, n), box in boxes.items()]
    random.Random(200 + rank).shuffle(works)
    for work in works:
        work.wait()
    for (peer, n), box in boxes.items():
        assert torch.equal(box, values(lengths[n], 100 * peer + n)), (peer, n)


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def lengths_and_types(rank: int, size: int) -> None:
    for number in range(401):
        dtype = DTYPES[number % len(DTYPES)]
        sent = values(number * dtype.itemsize, number)
        if dtype == torch.bool:
            sent = sent % 2
        if rank == 0:
            tensor = sent.view(dtype) if number else torch.zeros(0, dtype=dtype)
            dist.send(tensor, 1, tag=number % 3)
        else:
            box = torch.zeros(number, dtype=dtype)
            dist.recv(box, 0 if number % 2 else None, tag=number % 3)
            assert number == 0 or torch.equal(box.view(torch.uint8), sent), (number, dtype)
    # Strided tensors, and scalars.
    grid = torch.arange(48.0).view(6, 8)
    if rank == 0:
        dist.send(grid.t(), 1)
        dist.send(grid[:, ::3], 1)
        dist.send(torch.tensor(5.0), 1)
        dist.send(grid[:1].expand(4, 8), 1)
    else:
        box = torch.zeros(6, 8)
        dist.recv(box.t(), 0)
        assert torch.equal(box, grid)
        box = torch.zeros(6, 8)
        dist.recv(box[:, 1::3], 0)
        assert torch.equal(box[:, 1::3], grid[:, ::3]) and torch.all(box[:, ::3] == 0)
        one = torch.tensor(0.0)
        dist.recv(one, 0)
        assert one.item() == 5
        box = torch.zeros(4, 8)
        dist.recv(box, 0)
        assert torch.equal(box, grid[:1].expand(4, 8))


@pytest.mark.parametrize("hosts", ["aaaa", "abcc"])
def test_messages_of_all_lengths_and_types(hosts):
    run_pooled(all_pairs, 4, env=on(hosts))
    run_pooled(lengths_and_types, 2, env=on(hosts[:2]))


def waited_twice(rank: int, size: int) -> None:
    """A tensor is its owner's when the work has ended: another wait leaves it alone."""
    for src, length in ((0, 5), (None, 5), (0, 5000), (None, 5000)):
        sent, box = torch.ones(length), torch.zeros(length)
        work = dist.irecv(box, src) if rank else dist.isend(sent, 1)
        assert work is not None
        work.wait()
        assert rank == 0 or torch.all(box == 1)
        box.fill_(7)
        work.wait()
        assert torch.all(box == 7)


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_second_wait_changes_nothing(hosts):
    run_pooled(waited_twice, 2, env=on(hosts))


def both_ways(rank: int, size: int) -> None:
    """Long messages in both directions, beside collectives."""
    sent = torch.full((16 << 20,), float(rank))
    box = torch.zeros(16 << 20)
    works = [dist.isend(sent, 1 - rank), dist.irecv(box, 1 - rank)]
    sums = [torch.full((100_000,), rank + 1.0) for _ in range(8)]
    works += [dist.all_reduce(one, async_op=True) for one in sums]
    for work in works[:: 1 if rank else -1]:
        assert work is not None
        work.wait()
    assert torch.all(box == 1 - rank) and all(torch.all(one == 3) for one in sums)


def beside_a_collective(rank: int, size: int) -> None:
    """A collective that a rank has not made yet holds up no message, nor the reverse."""
    x, box = torch.ones(1000), torch.zeros(100_000)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        dist.send(torch.full((100_000,), 7.0), 1)
        dist.recv(box, 1)
    else:
        work = None
        dist.recv(box, 0)
        dist.send(box, 0)
        dist.all_reduce(x)
    if work is not None:
        work.wait()
    assert torch.all(x == size) and torch.all(box == 7)
    late = dist.irecv(box, 1 - rank, tag=5)
    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    dist.send(torch.full((100_000,), 8.0), 1 - rank, tag=5)
    assert late is not None
    late.wait()
    assert torch.all(box == 8)


def storm(rank: int, size: int) -> None:
    count = 3000
    works = []
    for number in range(count):
        if rank == 0:
            works.append(dist.isend(torch.full((number % 40,), float(number)), 1, tag=number % 7))
        else:
            works.append(dist.irecv(torch.zeros(number % 40), 0, tag=number % 7))
    for number, work in enumerate(works):
        assert work is not None
        work.wait()
        if rank == 1:
            (box,) = work.result()
            assert torch.all(box == number), number


def works(rank: int, size: int) -> None:
    """What a work tells without wait()."""
    box = torch.zeros(200_000)
    work = dist.irecv(box, 1 - rank, tag=3)
    assert work is not None and not work.is_completed()
    future = work.get_future()
    sent = dist.isend(torch.full((200_000,), rank + 1.0), 1 - rank, tag=3)
    assert sent is not None
    (value,) = future.wait()
    assert value is box and torch.all(box == 2 - rank)
    deadline = time.monotonic() + 20
    while not (work.is_completed() and sent.is_completed()):
        assert time.monotonic() < deadline
    assert work.is_success() and sent.is_success() and work.exception() is None
    assert work._source_rank() == 1 - rank
    # Nobody keeps these works, and nobody waits.
    dist.irecv(box, 1 - rank, tag=4)
    dist.isend(torch.full((200_000,), rank + 5.0), 1 - rank, tag=4)
    while box[-1].item() != 6 - rank:
        assert time.monotonic() < deadline
    dist.barrier()


def test_messages_beside_others():
    run_pooled(both_ways, 2, timeout=90)
    run_pooled(beside_a_collective, 2)
    run_pooled(storm, 2, timeout=90)
    run_pooled(works, 2)


def early_end(rank: int, size: int) -> None:
    """A rank that leaves: what it had sent is received, and what it owes is an error at once."""
    group = dist.new_group()
    if rank == 0:
        dist.send(torch.full((1000,), 3.0), 1, group)
        dist.destroy_process_group(group)
        return
    pending = dist.irecv(torch.zeros(8), 0, group, tag=9)
    box = torch.zeros(1000)
    dist.recv(box, 0, group)
    assert torch.all(box == 3)
    start = time.monotonic()
    assert pending is not None
    with pytest.raises(torch_cgx.PeerLostError, match=r"rank 0 .*tag 9.*closed"):
        pending.wait()
    assert time.monotonic() - start < 5
    with pytest.raises(torch_cgx.PeerLostError, match="after a failure in recv"):
        dist.send(box, 0, group)
    dist.destroy_process_group(group)


def late(rank: int, size: int) -> None:
    """A wait that runs out says of which message, and how far it was."""
    group = dist.new_group()
    if rank == 0:
        work = dist.isend(torch.zeros(100_000), 1, group, tag=6)
        assert work is not None
        start = time.monotonic()
        with pytest.raises(
            torch_cgx.TimeoutError, match=r"rank 1 to receive.* tag 6 \(0 of 400000 bytes"
        ):
            work.wait(timeout=datetime.timedelta(milliseconds=300))
        assert 0.25 < time.monotonic() - start < 5
    else:
        with pytest.raises(torch_cgx.TimeoutError, match="tag 6"):
            dist.recv(torch.zeros(3), 0, group, tag=1)
    dist.destroy_process_group(group)


def test_messages_that_do_not_come():
    run_pooled(early_end, 2)
    run_pooled(late, 2)
