"""A rank that is killed at any moment of a loop of one collective: what the others get, how soon,
and whether they can go on. Used by test_dead_collectives.py and by tests/stress/kills.py.
"""

from __future__ import annotations

import dataclasses
import mmap
import random
import signal
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from tests.faults.forked import Lost, Ranks, join
from tests.faults.texts import LONGEST, head_of

ONE_HOST, ACROSS = 1.0, 1.5  # seconds from the end of the process to the last error
TIMEOUT = 12.0  # of the groups: must not be what ends a wait
SHORT_TIMEOUT = 2.0  # of groups with a rank that is stopped
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "shm": ("aaa", {}),
    "shm 4": ("aaaa", {}),
    "gloo": ("aaa", {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}),
    "hosts ab": ("ab", {}),
    "hosts abb": ("abb", {}),
    "hosts aabb": ("aabb", {}),
}


def variables(layout: str) -> list[dict[str, str]]:
    hosts, common = LAYOUTS[layout]
    return [{**common, "CGX_HOST_ID": host} for host in hosts]


# ---- calls, each of about `n` bytes on every rank, which are made again and again ----

Call = Callable[[], None]
Maker = Callable[[int, int, int], Call]
CALLS: dict[str, Maker] = {}


def _call(maker: Maker) -> Maker:
    CALLS[maker.__name__] = maker
    return maker


def _bytes(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.uint8)


def _parts(n: int, size: int) -> list[torch.Tensor]:
    return [_bytes(max(1, n // size)) for _ in range(size)]


@_call
def broadcast(rank: int, size: int, n: int) -> Call:
    x = _bytes(n)
    return lambda: dist.broadcast(x, 0)


@_call
def broadcast_from_last(rank: int, size: int, n: int) -> Call:
    x = _bytes(n)
    return lambda: dist.broadcast(x, size - 1)


@_call
def all_gather(rank: int, size: int, n: int) -> Call:
    outputs = _parts(n, size)
    x = outputs[rank].clone()
    return lambda: dist.all_gather(outputs, x)


@_call
def all_gather_single(rank: int, size: int, n: int) -> Call:
    x = _bytes(max(1, n // size))
    y = _bytes(len(x) * size)
    return lambda: dist.all_gather_single(y, x)


@_call
def gather(rank: int, size: int, n: int) -> Call:
    outputs = _parts(n, size)
    x = outputs[rank].clone()
    return lambda: dist.gather(x, outputs if rank == 0 else None, 0)


@_call
def scatter(rank: int, size: int, n: int) -> Call:
    inputs = _parts(n, size)
    y = inputs[rank].clone()
    return lambda: dist.scatter(y, inputs if rank == 0 else None, 0)


@_call
def all_to_all(rank: int, size: int, n: int) -> Call:
    inputs, outputs = _parts(n, size), _parts(n, size)
    return lambda: dist.all_to_all(outputs, inputs)


@_call
def all_to_all_single(rank: int, size: int, n: int) -> Call:
    x = _bytes(max(1, n // size) * size)
    y = x.clone()
    return lambda: dist.all_to_all_single(y, x)


@_call
def all_reduce_sum(rank: int, size: int, n: int) -> Call:
    x = torch.zeros(max(1, n // 4))
    return lambda: dist.all_reduce(x)


@_call
def all_reduce_max(rank: int, size: int, n: int) -> Call:
    x = torch.zeros(max(1, n // 8), dtype=torch.int64)
    return lambda: dist.all_reduce(x, dist.ReduceOp.MAX)


@_call
def reduce(rank: int, size: int, n: int) -> Call:
    x = torch.zeros(max(1, n // 4))
    return lambda: dist.reduce(x, 0)


@_call
def reduce_scatter(rank: int, size: int, n: int) -> Call:
    inputs = [torch.zeros(max(1, n // 4 // size)) for _ in range(size)]
    y = inputs[0].clone()
    return lambda: dist.reduce_scatter(y, inputs)


@_call
def reduce_scatter_single(rank: int, size: int, n: int) -> Call:
    y = torch.zeros(max(1, n // 4 // size))
    x = torch.zeros(len(y) * size)
    return lambda: dist.reduce_scatter_single(y, x)


@_call
def barrier(rank: int, size: int, n: int) -> Call:
    return lambda: dist.barrier()


@_call
def send_recv(rank: int, size: int, n: int) -> Call:
    """Around a ring, one message at a time."""
    x, y = _bytes(n), _bytes(n)
    after, before = (rank + 1) % size, (rank - 1) % size

    def run() -> None:
        if rank == 0:
            dist.send(x, after)
            dist.recv(y, before)
        else:
            dist.recv(y, before)
            dist.send(x, after)

    return run


@_call
def batch(rank: int, size: int, n: int) -> Call:
    x, y = _bytes(n), _bytes(n)
    after, before = (rank + 1) % size, (rank - 1) % size

    def run() -> None:
        ops = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, y, before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return run


@_call
def any_source(rank: int, size: int, n: int) -> Call:
    """Rank 0 receives from all, then answers all."""
    x, y = _bytes(n), _bytes(1)

    def run() -> None:
        if rank == 0:
            for source in [dist.recv(x) for _ in range(size - 1)]:
                dist.send(y, source)
        else:
            dist.send(x, 0)
            dist.recv(y, 0)

    return run


# ---- one life of a group ----


class Counts:
    """How many calls each rank has made, in memory that all of them share."""

    def __init__(self, size: int):
        self._memory = mmap.mmap(-1, 8 * size)

    def add(self, rank: int) -> None:
        struct.pack_into("<q", self._memory, 8 * rank, self[rank] + 1)

    def __getitem__(self, rank: int) -> int:
        found: int = struct.unpack_from("<q", self._memory, 8 * rank)[0]
        return found


@dataclasses.dataclass
class Kill:
    """One experiment. delay: of the signal, in calls after all ranks have made some. restart: the
    survivors make a new group. stop: SIGSTOP in place of SIGKILL, which ends in a TimeoutError.
    """

    layout: str
    call: str
    nbytes: int
    victim: int
    delay: float
    restart: bool = True
    stop: bool = False

    def __str__(self) -> str:
        size = f"{self.nbytes >> 20} MiB" if self.nbytes >= 1 << 20 else f"{self.nbytes} bytes"
        return (
            f"{self.call} of {size} over {self.layout}, rank {self.victim} "
            f"{'stopped' if self.stop else 'killed'} {self.delay:.2f} calls after its start"
        )


WARM = 2


def _survive(rank: int, size: int, store: Any, kill: Kill, counts: Counts) -> Any:
    torch.set_num_threads(1)
    join(rank, size, store, timeout=SHORT_TIMEOUT if kill.stop else TIMEOUT)
    call = CALLS[kill.call](rank, size, kill.nbytes)
    began = time.monotonic()
    try:
        while time.monotonic() - began < TIMEOUT + 20:
            call()
            counts.add(rank)
        return "no error"
    except Exception as error:
        noticed, kind, text = time.monotonic(), type(error).__name__, str(error)
    start = time.monotonic()
    again = ""
    try:
        dist.all_reduce(torch.ones(3))
    except torch_cgx.CgxError as error:
        again = type(error).__name__
    later = time.monotonic() - start
    start = time.monotonic()
    dist.destroy_process_group()
    destroyed = time.monotonic() - start
    total = None
    if kill.restart:
        survivors = [r for r in range(size) if r != kill.victim]
        join(survivors.index(rank), len(survivors), store, name="again")
        x = torch.ones(1000, dtype=torch.int64)
        dist.all_reduce(x)
        total = x[0].item()
        dist.destroy_process_group()
    return kind, text, noticed, again, later, destroyed, total


def run(kill: Kill) -> tuple[float, list[str]]:
    """Seconds from the death to the last error, and what was wrong. To be called in a process that
    forks (see `Ranks`).
    """
    size = len(LAYOUTS[kill.layout][0])
    counts = Counts(size)
    with Ranks(size, _survive, kill, counts, env=variables(kill.layout)) as ranks:
        seconds = _wait_warm(counts, size, ranks)
        time.sleep(kill.delay * seconds)
        if kill.stop:
            died = time.monotonic()
            ranks.send_signal(kill.victim, signal.SIGSTOP)
        else:
            ranks.send_signal(kill.victim, signal.SIGKILL)
            died = ranks.wait_end(kill.victim)
        outcomes = ranks.outcomes(timeout=TIMEOUT + 25, but=kill.victim)
    return _judge(kill, died, outcomes)


def _wait_warm(counts: Counts, size: int, ranks: Ranks) -> float:
    """Until all ranks have made some calls; seconds that the slowest takes for one."""
    deadline = time.monotonic() + 60
    first = 0.0
    while min(counts[rank] for rank in range(size)) < WARM:
        if not first and min(counts[rank] for rank in range(size)) >= 1:
            first = time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks do not come to their calls")
        time.sleep(0.0005)
    return max(0.0005, time.monotonic() - first) if first else 0.0005


def _judge(kill: Kill, died: float, outcomes: Sequence[Any]) -> tuple[float, list[str]]:
    wrong = []
    worst = 0.0
    survivors = len(outcomes) - 1
    for rank, outcome in enumerate(outcomes):
        if rank == kill.victim:
            if not kill.stop and not isinstance(outcome, Lost):
                wrong.append(f"{kill}: the victim answered {outcome}")
            continue
        if not isinstance(outcome, tuple):
            wrong.append(f"{kill}: rank {rank}: {outcome}")
            continue
        kind, text, noticed, again, later, destroyed, total = outcome
        where = f"{kill}: rank {rank}, {noticed - died:.2f} s: {kind}: {text}"
        worst = max(worst, noticed - died)
        limit = ONE_HOST if len(set(LAYOUTS[kill.layout][0])) == 1 else ACROSS
        limit = SHORT_TIMEOUT + 0.5 if kill.stop else limit
        if kind != ("TimeoutError" if kill.stop else "PeerLostError"):
            wrong.append(where)
            continue
        head = head_of(text)
        if (head["rank"], head["group"]) != (str(rank), "default_pg") or len(text) > LONGEST:
            wrong.append(f"the text is not as it should be: {where}")
        # On another host only the end of the connection is seen.
        if not kill.stop and f"rank {kill.victim}" not in text and "onnection" not in text:
            wrong.append(f"it names neither the rank nor its connection: {where}")
        if noticed - died > limit + slack():
            wrong.append(f"late: {where}")
        if again != kind or later > 0.5 + slack() or destroyed > 5:
            wrong.append(f"afterwards {again} in {later:.2f} s, {destroyed:.2f} s: {where}")
        if kill.restart and total != survivors:
            wrong.append(f"the new group adds up to {total}: {where}")
    return worst, wrong


_slack = 1.0  # of a busy machine, on which woken ranks wait for a processor


def slack() -> float:
    return _slack


def set_slack(seconds: float) -> None:
    global _slack
    _slack = seconds


def draw(rng: random.Random, call: str, layout: str, nbytes: int) -> Kill:
    """The victim, and the moment: anywhere in a call, or in the next one."""
    size = len(LAYOUTS[layout][0])
    return Kill(layout, call, nbytes, rng.randrange(size), rng.uniform(0, 2), rng.random() < 0.5)
