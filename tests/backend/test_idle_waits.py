"""A rank that waits long for a late peer leaves its core to others, whatever carries the call."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

WAIT = 1.0  # seconds that the late rank sleeps
# Of the wait, on all threads of the process. Polling for all of it would be 1 or more. A tenth is
# left to what comes before and after: a poll of the watching thread, the call itself, sanitizers.
MOST = 0.12

LAYOUTS = {
    "shm": {},
    "gloo": {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"},
    "hosts": [{"CGX_HOST_ID": host} for host in "aba"],
}


def _compressed(x):
    torch_cgx.all_reduce(x, config={"bits": 4})


def _received(x):
    if dist.get_rank() == 2:
        dist.send(x, 0)
    elif dist.get_rank() == 0:
        dist.recv(x, 2)


CALLS = {
    "4 bits": _compressed,
    "exact": lambda x: torch_cgx.all_reduce(x, config={"bits": 32}),
    "async": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "reduce_scatter": lambda x: torch_cgx.reduce_scatter_single(
        torch.empty(x.numel() // 3), x, config={"bits": 4}
    ),
    "all_gather": lambda x: torch_cgx.all_gather_single(
        torch.empty(3 * x.numel()), x, config={"bits": 4}
    ),
    # Forwarded to the inner Gloo group:
    "broadcast": lambda x: dist.broadcast(x, 2),
    "MAX": lambda x: dist.all_reduce(x, dist.ReduceOp.MAX),
    "barrier": lambda x: dist.barrier(),
    "recv": _received,
}


def wait_for_rank_2(rank, world_size, call, values):
    """(CPU seconds, seconds) of the call on a rank that is in time; None on the late one."""
    torch.set_num_threads(1)
    for _ in range(2):  # memory and threads are made
        CALLS[call](torch.ones(values))
    x = torch.ones(values)
    dist.barrier()
    if rank == 2:
        time.sleep(WAIT)
        CALLS[call](x)
        return None
    wall, cpu = time.monotonic(), time.process_time()
    CALLS[call](x)
    return time.process_time() - cpu, time.monotonic() - wall


def check(layout, call, values=3 * 4096):
    first, second, _ = run_pooled(wait_for_rank_2, 3, call, values, env=LAYOUTS[layout], timeout=30)
    waiting = [first] if call == "recv" else [first, second]
    for rank, (cpu, wall) in enumerate(waiting):
        message = f"rank {rank} used {cpu:.3f} s of CPU in a call of {wall:.3f} s"
        assert wall > 0.9 * WAIT, f"{message}: it did not wait"
        assert cpu < MOST * wall, message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compressed_all_reduce(layout):
    check(layout, "4 bits")


@pytest.mark.parametrize(
    "layout, call",
    [("shm", "exact"), ("gloo", "async"), ("hosts", "reduce_scatter"), ("hosts", "all_gather")],
)
def test_other_reductions(layout, call):
    check(layout, call)


@pytest.mark.parametrize("layout", ["shm", "hosts"])
def test_long_messages(layout):
    # More than the communicators take at once: ranks wait in the middle of their sends.
    check(layout, "4 bits", values=3 << 21)


@pytest.mark.parametrize("call", ["broadcast", "MAX", "barrier", "recv"])
def test_forwarded_collectives(call):
    check("hosts", call)


def spin(rank, world_size):
    wall, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - wall < 0.3:
        pass
    return (time.process_time() - cpu) / (time.monotonic() - wall)


@pytest.mark.alone
def test_a_busy_wait_would_be_seen():
    (share,) = run_pooled(spin, 1, timeout=30)
    assert share > 2 * MOST
