"""Ranks that leave when their part of a collective is done, which is no loss for the others; and
waits that another thread ends.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.conformance.catalogue import Case, Place, Started, start
from tests.distributed import run_pooled
from tests.faults.forked import Ranks, join

OPS = [
    "broadcast", "all_gather", "all_gather_single", "gather", "scatter", "all_to_all",
    "all_to_all_single", "all_to_all_splits", "barrier", "batch", "all_reduce", "reduce",
    "reduce_scatter", "reduce_scatter_single",
]  # fmt: skip
REDUCING = [op for op in OPS if "reduce" in op]
LAYOUTS = {"shm": "aaa", "hosts": "abb"}
SMALL, LONG = 10, 1_000_000  # int32 values
SLACK = 1.0  # of a busy machine


def case_of(op: str, n: int, root: int, key: int = 0) -> Case:
    return Case(op, n, torch.int32, "SUM" if op in REDUCING else "", root, "plain", key)


def cases(long_first: bool) -> Iterator[tuple[Case, int]]:
    """Each operation, with a rank that leaves: the root, where it waits for nobody, and another."""
    for number, op in enumerate(OPS):
        n = LONG if (number % 2 == 0) == long_first else SMALL
        yield case_of(op, n, 0, number), 2
        if op in ("broadcast", "scatter"):
            yield case_of(op, n, 2, number), 2


def make_call(case: Case, leaver: int, place: Place) -> Started:
    """The rank after the one that leaves comes late."""
    start(case_of("barrier", 0, 0), place).wait()
    if place.me == (leaver + 1) % place.size:
        time.sleep(0.1)
    one = start(case, place)
    one.wait()
    return one


def destroy(rank: int, size: int, long_first: bool) -> list[str]:
    wrong = []
    for case, leaver in cases(long_first):
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=15))
        one = make_call(case, leaver, Place.of(group))
        if rank == leaver:
            dist.destroy_process_group(group)
        if text := one.complaint():
            wrong.append(f"{case}, rank {leaver} leaves: {text}")
        dist.barrier()
        if rank != leaver:
            dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("long_first", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_destroys_its_group_is_no_loss(layout: str, long_first: bool) -> None:
    env = [{"CGX_HOST_ID": host} for host in LAYOUTS[layout]]
    for rank, wrong in enumerate(run_pooled(destroy, 3, long_first, env=env, timeout=90)):
        assert not wrong, f"rank {rank}: " + "\n".join(wrong)


def leave(rank: int, size: int, store: Any, case: Case, leaver: int) -> str:
    torch.set_num_threads(1)
    join(rank, size, store, timeout=15)
    one = make_call(case, leaver, Place.of())
    if rank == leaver:
        return ""  # and its process ends
    store.set(f"done/{rank}", "")
    # The others leave together: one alone is to be early.
    store.wait([f"done/{r}" for r in range(size) if r != leaver])
    return one.complaint()


def leaves(_rank: int, _size: int, hosts: str, long_first: bool) -> list[str]:
    wrong = []
    env = [{"CGX_HOST_ID": host} for host in hosts]
    for case, leaver in cases(long_first):
        print(case, leaver, flush=True)
        with Ranks(3, leave, case, leaver, env=env) as ranks:
            outcomes = ranks.outcomes(timeout=40)
        if outcomes != [""] * 3:
            wrong.append(f"{case}, rank {leaver} leaves: {outcomes}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("long_first", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_whose_process_ends_is_no_loss(layout: str, long_first: bool) -> None:
    (wrong,) = run_pooled(leaves, 1, LAYOUTS[layout], long_first, backend=None, timeout=170)
    assert not wrong, "\n".join(wrong)


# Ranks 0 and 2 of three, each with a call in which it waits for rank 1.
def waiting(op: str) -> Case:
    return case_of(op, SMALL, 1 if op in ("broadcast", "scatter") else 0)


def waits(op: str, rank: int) -> bool:
    """Whether a rank that is not rank 1 waits for it."""
    return not (op in ("gather", "reduce") and rank != 0) and not (op == "batch" and rank == 0)


def aborted(rank: int, size: int) -> list[str]:
    """A group for each call: all but rank 1 make it, then a thread of rank 0 aborts the group."""
    wrong = []
    for op in OPS:
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=15))
        place = Place.of(group)
        communicator = torch_cgx.stats(group)["communicator"]
        start(case_of("barrier", 0, 0), place).wait()
        backend = group._get_backend(torch.device("cpu"))
        timer = threading.Timer(0.1, backend.abort)
        if rank == 0:
            timer.start()
        if rank == 1:
            dist.barrier()  # now the others have their errors
        begin = time.monotonic()
        kind = text = ""
        try:
            start(waiting(op), place).wait()
        except torch_cgx.CgxError as error:
            kind, text = type(error).__name__, str(error)
        seconds = time.monotonic() - begin
        where = f"{op} after {seconds:.2f} s: {kind}: {text}"
        if rank == 0:
            timer.join()
        if rank == 1:
            # Over Gloo the abort may not have come here yet, and the part of a gather needs nobody.
            silent = not text and (op not in ("gather", "reduce") or communicator == "shm")
            if silent or seconds > 1 + SLACK:
                wrong.append(f"a call of an aborted group has to fail at once: {where}")
        elif seconds > 1 + SLACK or ((waits(op, rank) or text) and "abort" not in text):
            wrong.append(where)
        if rank != 1:
            dist.barrier()
        dist.barrier()
        dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("layout", [*LAYOUTS, "gloo"])
def test_an_abort_ends_every_wait(layout: str) -> None:
    hosts = LAYOUTS.get(layout, "aaa")
    communicator = "GLOO" if layout == "gloo" else "SHM"
    env = [{"CGX_HOST_ID": host, "CGX_INNER_COMMUNICATOR_TYPE": communicator} for host in hosts]
    for rank, wrong in enumerate(run_pooled(aborted, 3, env=env, timeout=90)):
        assert not wrong, f"rank {rank}: " + "\n".join(wrong)
