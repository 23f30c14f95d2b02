"""Ranks that are slow, stopped, or interrupted by signals; and waits that another thread ends."""

from __future__ import annotations

import datetime
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.faults.forked import Ranks, join
from tests.faults.texts import LONGEST, head_of

LAYOUTS = {
    "shm": {},
    "gloo": {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"},
    "hosts": [{"CGX_HOST_ID": host} for host in "abb"],
}
TIMEOUT = 2.0
EARLY, LATE = 0.1, 0.5  # the tolerance; late ones get the slack of a busy machine
SLACK = 1.0


def use(call):
    x = torch.ones(1000)
    if call == "all_reduce":
        torch_cgx.all_reduce(x, config={"bits": 4})
    elif call == "broadcast":
        dist.broadcast(x, 0)
    else:
        dist.barrier()


def slow(rank, world_size, store, victim, call, wake):
    torch.set_num_threads(1)
    join(rank, world_size, store, timeout=TIMEOUT)
    use(call)
    dist.barrier()
    if rank == victim:
        signal.raise_signal(signal.SIGSTOP)  # the parent wakes it, or nobody does
    start = time.monotonic()
    try:
        use(call)
    except torch_cgx.CgxError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    if wake:
        use("all_reduce")
    return "fine", "", time.monotonic() - start


def stop_one(_rank, _world_size, env, call, wake):
    with Ranks(3, slow, 1, call, wake, env=env) as ranks:
        if wake:
            deadline = time.monotonic() + 30
            while not stopped(ranks.children[1].pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.6 * TIMEOUT)
            ranks.send_signal(1, signal.SIGCONT)
            return ranks.outcomes(timeout=30)
        return ranks.outcomes(timeout=TIMEOUT + 25, but=1)


def stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "barrier"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stopped_rank_is_an_error_at_the_deadline(layout, call):
    (outcomes,) = run_pooled(stop_one, 1, LAYOUTS[layout], call, False, backend=None, timeout=90)
    for rank in (0, 2):
        assert isinstance(outcomes[rank], tuple), f"rank {rank}: {outcomes[rank]}"
        kind, text, seconds = outcomes[rank]
        message = f"rank {rank} after {seconds:.2f} s: {kind}: {text}"
        if call == "broadcast" and kind == "fine":
            # Its part is done, and its process has ended: no reason for the others to fail sooner.
            continue
        if call == "broadcast" and layout != "shm" and outcomes[2][0] == "fine":
            # Between hosts a process that ends without destroying the group is lost.
            assert kind in ("TimeoutError", "PeerLostError"), message
            continue
        assert kind == "TimeoutError", message
        head = head_of(text)
        assert (head["call"], head["rank"], head["size"]) == (call, str(rank), "3"), message
        assert len(text) <= LONGEST, message
        assert text.count("timeout= of init_process_group()") == 1, message
        assert TIMEOUT - EARLY < seconds < TIMEOUT + LATE + SLACK, message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_goes_on_in_time_is_no_error(layout):
    (outcomes,) = run_pooled(
        stop_one, 1, LAYOUTS[layout], "all_reduce", True, backend=None, timeout=90
    )
    assert [o[0] for o in outcomes] == ["fine"] * 3, outcomes


def timeouts(rank, world_size, kind):
    """Every way to give a timeout; rank 1 comes too late."""
    seconds = datetime.timedelta(seconds=1)
    ranks = list(range(world_size))
    group = dist.new_group(ranks, timeout=seconds if kind == "new_group" else None)
    backend = group._get_backend(torch.device("cpu"))
    x = torch.ones(10)
    dist.all_reduce(x, group=group)
    if kind == "set_timeout":
        group.set_timeout(seconds)
    if rank == 1:
        time.sleep(4)
        return None
    options = dist.AllreduceOptions()
    if kind == "call":
        options.timeout = seconds
    start = time.monotonic()
    with pytest.raises((torch_cgx.TimeoutError, TimeoutError)):
        backend.allreduce([x], options).wait()
    return time.monotonic() - start


@pytest.mark.quiet
@pytest.mark.parametrize("kind", ["new_group", "call", "set_timeout"])
def test_every_timeout_is_kept(kind):
    seconds, _ = run_pooled(timeouts, 2, kind, group_timeout=50)
    assert 0.9 < seconds < 1 + LATE + SLACK


def storm(rank, world_size, rounds):
    """A timer that fires every half millisecond, and another thread that sends signals."""
    caught = 0

    def count(*_):
        nonlocal caught
        caught += 1

    numbers = (signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM, signal.SIGPROF)
    before = {number: signal.signal(number, count) for number in numbers}
    over = threading.Event()
    main = threading.main_thread().ident

    def shoot():
        while not over.wait(0.0005):
            signal.pthread_kill(main, signal.SIGUSR1)
            signal.pthread_kill(main, signal.SIGCHLD)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    try:
        for i in range(rounds):
            x = torch.full((5000,), float(i))
            torch_cgx.all_reduce(x, config={"bits": 8})
            y = torch.tensor([i + rank])
            dist.all_reduce(y)
            assert torch.all(x == world_size * i) and y.item() == world_size * i + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        over.set()
        shooter.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    return caught


@pytest.mark.parametrize("layout", ["shm", "gloo"])
def test_signals_change_nothing(layout):
    caught = run_pooled(storm, 2, 150, env=LAYOUTS[layout])
    assert min(caught) > 50


def aborted(rank, world_size, call):
    group = dist.new_group(list(range(world_size)))
    backend = group._get_backend(torch.device("cpu"))
    dist.barrier(group=group)
    if rank == 0:
        timer = threading.Timer(0.5, backend.abort)
        timer.start()
    start = time.monotonic()
    x = torch.ones(1000)
    with pytest.raises(torch_cgx.CgxError, match="abort") as caught:
        if call == "recv":
            dist.recv(x, 1 - rank, group=group)
        elif call == "barrier":
            if rank == 1:
                time.sleep(2)
            dist.barrier(group=group)
        else:
            if rank == 1:
                time.sleep(2)
            dist.all_reduce(x, group=group)
    seconds = time.monotonic() - start
    dist.destroy_process_group(group)
    return seconds, type(caught.value).__name__


@pytest.mark.parametrize("call", ["recv", "barrier", "all_reduce"])
@pytest.mark.parametrize("layout", ["shm", "gloo"])
def test_abort_unblocks_every_waiter(layout, call):
    results = run_pooled(aborted, 2, call, env=LAYOUTS[layout], timeout=60)
    assert results[0][0] < 2 + SLACK and results[1][0] < 4 + SLACK, results
    assert results[0][1] == "AbortedError", results
