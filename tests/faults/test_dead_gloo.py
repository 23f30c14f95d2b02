"""Ranks that are killed in the middle of a long message of a call that Gloo runs.

Gloo loses the error of a transfer that is under way when its connection breaks: plain Gloo waits
until its timeout then.
"""

from __future__ import annotations

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
from tests.faults.forked import Ranks
from tests.faults.test_dead_peers import join

WITHIN, SLACK = 1.5, 1.5  # seconds; the second: for a machine with other work beside it
VALUES = 6 << 20  # int64: 48 MiB, which take tens of milliseconds between two ranks


def call(kind, rank, world_size, victim, x):
    peer = (victim + 1) % world_size
    if kind in ("send", "recv"):  # what the rank does that lives
        if rank in (victim, peer):
            sends = (kind == "send") == (rank == peer)
            (dist.send if sends else dist.recv)(x, peer if rank == victim else victim)
    elif kind == "broadcast":
        dist.broadcast(x, 0)
    elif kind == "all_gather":
        dist.all_gather([torch.empty_like(x) for _ in range(world_size)], x)
    elif kind == "all_reduce":
        dist.all_reduce(x, dist.ReduceOp.BAND)
    elif kind == "all_to_all":
        dist.all_to_all_single(torch.empty_like(x), x)
    elif kind == "gather":
        into = [torch.empty_like(x) for _ in range(world_size)] if rank == 0 else None
        dist.gather(x, into, 0)


def killed_in(rank, world_size, store, kind, victim, share):
    """The victim dies after that share of the time that the call takes."""
    torch.set_num_threads(1)
    join(rank, world_size, store)
    x = torch.ones(VALUES if kind != "all_to_all" else VALUES // 12 * 12, dtype=torch.int64)
    dist.barrier()
    start = time.monotonic()
    call(kind, rank, world_size, victim, x)
    seconds = time.monotonic() - start
    dist.barrier()
    if rank == victim:
        threading.Timer(share * seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:  # the call may be over too early
            call(kind, rank, world_size, victim, x)
            if kind in ("send", "recv") and rank not in (victim, (victim + 1) % world_size):
                return "no part in it"
    except torch_cgx.PeerLostError as error:
        noticed = time.monotonic()
        dist.destroy_process_group()
        return str(error), noticed, time.monotonic() - noticed


def kill_in_the_middle(_rank, _world_size, env, size, kinds, seed):
    worst = {}
    choice = random.Random(seed)
    for kind in kinds:
        victim, share = choice.choice([0, size - 1]), choice.random()
        where = f"{kind}, rank {victim} killed after {share:.2f} of the time"
        with Ranks(size, killed_in, kind, victim, share, env=env) as ranks:
            died = ranks.wait_end(victim, 60)
            outcomes = ranks.outcomes(timeout=40)
        for rank, outcome in enumerate(outcomes):
            if rank == victim or outcome == "no part in it":
                continue
            assert isinstance(outcome, tuple), f"{where}; rank {rank}: {outcome}"
            text, noticed, left = outcome
            assert "rank" in text, (where, text)
            assert left < 3, (where, left, text)
            worst[kind] = max(worst.get(kind, 0.0), noticed - died)
    return worst


KINDS = ["send", "recv", "broadcast", "all_gather", "all_reduce", "all_to_all", "gather"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", ["gloo", "across"])
def test_a_rank_killed_in_the_middle_of_a_long_message_of_gloo(layout, seed):
    env = [{"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}] * 3
    if layout == "across":
        env = [{"CGX_HOST_ID": host} for host in "abb"]
    (worst,) = run_pooled(kill_in_the_middle, 1, env, 3, KINDS, seed, backend=None, timeout=240)
    print(layout, {kind: round(seconds, 2) for kind, seconds in worst.items()})
    assert max(worst.values()) < WITHIN + SLACK, worst
