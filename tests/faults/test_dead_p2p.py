"""A rank that ends, stops or leaves in the middle of a send or a receive over shared memory."""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.faults.forked import Lost, Ranks, join
from tests.faults.texts import LONGEST, head_of

LONG = 200_000_000  # bytes
NOTICED = 2.0  # seconds: 1, and what a busy machine takes to wake a process


def die_when_written(box, position):
    """The process ends when the byte has been received."""

    def watch():
        while box[position] == 0:
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def transfer(rank, world_size, store, boxes, victim, sends, position, any_rank):
    """Rank 0 or 1 dies in the middle of a message between them; rank 2 waits in a collective."""
    torch.set_num_threads(1)
    join(rank, world_size, store)
    dist.barrier()
    # The receiver's tensor, which both see.
    box = torch.frombuffer(boxes, dtype=torch.uint8, count=LONG)
    sender = victim if sends else 1 - victim
    if rank == victim:
        die_when_written(box, position)
    try:
        if rank == 2:
            dist.all_reduce(torch.ones(10))
        elif rank == sender:
            dist.send(torch.ones(LONG, dtype=torch.uint8), 1 - sender, tag=4)
        else:
            dist.recv(box, None if any_rank else sender, tag=4)
    except torch_cgx.CgxError as error:
        noticed = time.monotonic()
        start = noticed
        dist.destroy_process_group()
        return type(error).__name__, str(error), noticed, time.monotonic() - start
    return "no error"


def kill_at_random_bytes(_rank, _world_size, seed):
    rng = random.Random(seed)
    worst = 0.0
    for number in range(6):
        victim, sends, any_rank = number % 2, number % 4 < 2, number % 3 == 0
        position = rng.randrange(LONG // 2)
        boxes = mmap.mmap(-1, LONG)
        where = f"rank {victim} {'sends' if sends else 'receives'}, ends at byte {position}"
        with Ranks(3, transfer, boxes, victim, sends, position, any_rank) as ranks:
            died = ranks.wait_end(victim, 30)
            outcomes = ranks.outcomes(timeout=40)
        boxes.close()
        assert isinstance(outcomes[victim], Lost), where
        for rank in (1 - victim, 2):
            outcome = outcomes[rank]
            assert isinstance(outcome, tuple), f"{where}, rank {rank}: {outcome}"
            kind, text, noticed, destroyed = outcome
            message = f"{where}, rank {rank}, {noticed - died:.2f} s: {kind}: {text}"
            assert kind == "PeerLostError" and f"rank {victim}" in text, message
            assert len(text) <= LONGEST and head_of(text)["rank"] == str(rank), message
            assert noticed - died < NOTICED and destroyed < 5, message
            if rank != 2:
                assert "tag 4" in text and f"of {LONG} bytes" in text, message
            worst = max(worst, noticed - died)
    return worst


def test_a_rank_killed_in_a_long_message(record_property):
    (worst,) = run_pooled(kill_at_random_bytes, 1, 1, backend=None, timeout=170)
    record_property("worst_seconds", worst)


def receive_from_the_dead(rank, world_size, store):
    """A message that is whole is received after its sender has died; a later one is an error."""
    join(rank, world_size, store)
    dist.barrier()
    if rank == 1:
        dist.send(torch.full((1000,), 5.0), 0, tag=2)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)
    box = torch.zeros(1000)
    dist.recv(box, 1, tag=2)
    start = time.monotonic()
    with pytest.raises(torch_cgx.PeerLostError, match="process of rank 1|process has ended"):
        dist.recv(box, None, tag=3)
    seconds = time.monotonic() - start
    dist.destroy_process_group()
    return box.sum().item(), seconds


def stopped(rank, world_size, store):
    """Rank 1 stops in the middle of a message."""
    join(rank, world_size, store, timeout=2)
    dist.barrier()
    box = torch.zeros(LONG, dtype=torch.uint8)
    start = time.monotonic()
    try:
        if rank == 0:
            dist.recv(box, 1, tag=4)
        else:
            work = dist.isend(torch.ones(LONG, dtype=torch.uint8), 0, tag=4)
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGSTOP)
            work.wait()
    except torch_cgx.CgxError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "no error"


def run_forked(_rank, _world_size):
    with Ranks(3, receive_from_the_dead) as ranks:
        outcomes = ranks.outcomes(timeout=30, but=1)
    for rank in (0,):
        total, seconds = outcomes[rank]
        assert total == 5000 and seconds < NOTICED
    with Ranks(2, stopped) as ranks:
        outcomes = ranks.outcomes(timeout=30, but=1)
    if outcomes[0] != "no error":  # it was complete before the stop
        kind, text, seconds = outcomes[0]
        assert kind == "TimeoutError" and "tag 4" in text and f"of {LONG} bytes" in text, text
        assert 1.5 < seconds < 6, seconds


def test_messages_of_ranks_that_die_or_stop():
    run_pooled(run_forked, 1, backend=None, timeout=100)
