"""Programs that are unusual, or wrong on all ranks alike, and must not break the group."""

from __future__ import annotations

import ctypes
import datetime
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.faults.forked import Lost, Ranks, exit_code, join


def early(rank, world_size, store, call, how):
    """Rank 2 does its part and leaves, rank 1 comes late: rank 0 still gets its result."""
    torch.set_num_threads(1)
    join(rank, world_size, store)
    dist.barrier()
    if rank == 1:
        time.sleep(1.5)
    x = torch.full((10,), float(rank + 1))
    if call == "gather":
        parts = [torch.empty(10) for _ in range(3)] if rank == 0 else None
        dist.gather(x, parts, dst=0)
        value = sum(part[0].item() for part in parts) if parts else 6.0
    elif call == "reduce":
        dist.reduce(x, 0)
        value = x[0].item() if rank == 0 else 6.0
    else:
        dist.broadcast(x, 0)
        value = 6 * x[0].item()
    # Rank 2 alone leaves early. A source whose process ends with its last byte may reset the
    # connection, and Gloo's own broadcast then waits for the timeout (docs/reliability.md).
    if rank == 1:
        store.set("rank 1 is done", "")
    elif rank == 0:
        store.wait(["rank 1 is done"])
    if how == "destroy":
        dist.destroy_process_group()
    return value


def leave_early(_rank, _world_size, call, how, env):
    with Ranks(3, early, call, how, env=env) as ranks:
        return ranks.outcomes(timeout=30)


OVER_GLOO = [{"CGX_INNER_COMMUNICATOR_TYPE": "GLOO", "CGX_HOST_ID": host} for host in "abc"]


# Over Gloo only a rank that destroys the group tells the others that it has left.
@pytest.mark.parametrize(
    ("how", "env"), [("exit", None), ("destroy", None), ("destroy", OVER_GLOO)]
)
@pytest.mark.parametrize("call", ["gather", "broadcast", "reduce"])
def test_a_rank_may_leave_when_its_part_is_done(call, how, env):
    (outcomes,) = run_pooled(leave_early, 1, call, how, env, backend=None)
    assert outcomes == [6.0] * 3


def forked_abort(rank, world_size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    child = os.fork()
    if child == 0:
        backend.abort()
        os._exit(7)
    code = exit_code(child)
    x = torch.ones(10)
    dist.all_reduce(x)
    dist.barrier()
    return code, x[0].item()


def test_abort_in_a_forked_child_harms_nobody():
    assert run_pooled(forked_abort, 2) == [(7, 2.0)] * 2


def unread(rank, world_size, store):
    """A message that nobody has read, with a tag that a user may choose."""
    join(rank, world_size, store)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.barrier()
    if rank == 1:
        dist.isend(torch.ones(1000), 0, tag=7)
    time.sleep(0.3)
    if rank == 0:
        backend.abort()
    with pytest.raises(torch_cgx.CgxError):
        dist.barrier()
    return "alive"


def abort_with_unread(_rank, _world_size):
    with Ranks(2, unread) as ranks:
        return ranks.outcomes(timeout=30)


def test_an_abort_takes_no_message_of_the_user():
    (outcomes,) = run_pooled(abort_with_unread, 1, backend=None)
    assert not any(isinstance(outcome, Lost) for outcome in outcomes), outcomes
    assert outcomes == ["alive"] * 2


def same_mistake(rank, world_size):
    flags = torch.ones(4, dtype=torch.bool)
    mistakes = [
        lambda: dist.all_reduce(flags, op=dist.ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(4).double(), op=dist.ReduceOp.BAND),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [3, 3]),
    ]
    for mistake in mistakes:
        try:
            mistake()
        except (RuntimeError, ValueError, TypeError) as error:
            assert not isinstance(error, torch_cgx.CgxError), error
        else:
            pytest.fail("the mistake was not noticed")
        # Not a barrier: Gloo's repeats the errors of works that a traceback still holds.
        x = torch.ones(100)
        dist.all_reduce(x)
        assert x[0].item() == world_size


def test_the_same_mistake_on_all_ranks_breaks_nothing():
    run_pooled(same_mistake, 2)


def interrupted(rank, world_size):
    from torch.distributed.distributed_c10d import _coalescing_manager

    group = dist.group.WORLD
    with pytest.raises(KeyError), _coalescing_manager(group=group, device=torch.device("cpu")):
        raise KeyError("in the middle")
    peer = 1 - rank
    x, y = torch.full((10,), float(rank)), torch.empty(10)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, y, peer)]
    )
    for work in works:
        work.wait()
    return y[0].item()


def test_an_exception_while_coalescing_is_forgotten():
    assert run_pooled(interrupted, 2) == [1.0, 0.0]


def short_wait(rank, world_size):
    x = torch.ones(1000)
    if rank == 1:
        time.sleep(1)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(torch_cgx.TimeoutError, match=r"all_reduce number 1 .*rank 0 of 2"):
            work.wait(datetime.timedelta(milliseconds=100))
    work.wait()
    forwarded = dist.broadcast(x.double(), 0, async_op=True)
    forwarded.wait()
    return x[0].item()


def test_a_wait_that_runs_out_leaves_the_collective_alone():
    assert run_pooled(short_wait, 2) == [2.0, 2.0]


def alone(rank, world_size):
    def resident():
        ctypes.CDLL(None).malloc_trim(0)  # freed pages between live ones count as the heap's
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def broadcasts(times):
        for _ in range(times):
            work = dist.broadcast(torch.ones(100_000), 0, async_op=True)
            while not work.is_completed():
                time.sleep(0.0001)
            del work
        time.sleep(0.5)  # two looks of the watch

    broadcasts(50)
    before = resident()
    broadcasts(600)
    return resident() - before


def test_works_that_nobody_waits_for_are_let_go():
    (grown,) = run_pooled(alone, 1)
    assert grown < 120e6  # 240 MB if they were kept


def last_reference(rank, world_size, store, call):
    """A callback is the last to hold the group, on whichever thread it runs."""
    join(rank, world_size, store)
    x = torch.ones(4)
    start = dist.all_reduce if call == "all_reduce" else dist.broadcast
    work = start(x, **({} if call == "all_reduce" else {"src": 0}), async_op=True)
    destroyed = threading.Event()
    seen = []

    def callback(future, group=dist.group.WORLD):
        destroyed.wait(0.5)
        time.sleep(0.2)
        seen.append(group.size())
        return future.value()

    future = work.get_future().then(callback)
    del callback, work
    dist.destroy_process_group()
    destroyed.set()
    future.wait()
    del future
    time.sleep(0.3)  # the callback's thread lets go of the group
    return seen, x[0].item()


def hold_last(_rank, _world_size, call):
    with Ranks(2, last_reference, call) as ranks:
        return ranks.outcomes(timeout=30)


@pytest.mark.parametrize("call", ["all_reduce", "broadcast"])
def test_a_callback_may_hold_the_last_reference_to_its_group(call):
    """Gloo itself ends the process: its thread joins itself."""
    (outcomes,) = run_pooled(hold_last, 1, call, backend=None)
    assert outcomes == [([2], 2.0 if call == "all_reduce" else 1.0)] * 2
