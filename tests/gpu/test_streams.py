"""Calls stand in the order of the caller's streams, and wait() blocks a stream, not the CPU."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.gpu import ranks
from tests.gpu.test_collectives import EVERY_WAY, WAYS
from torch_cgx.codecs import MaxMin

TURNS = 50 if ranks.FAKE else 1000
SLEEP = 4_000_000_000  # cycles: 2 s and more
# The driver may wait for the device when it allocates; the fake device's then does.
ALLOCATIONS_WAIT = {"STUB_DRIVER_ALLOC_WAITS": "1"}


def _warm_up():
    """Ends with an idle device. The first sleep of a process loads its kernel, which takes time,
    and may wait for all that runs: a measured one would count that too.
    """
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()


def _turns(rank, world_size, turns):
    producer, consumer = torch.Stream(device="cuda"), torch.Stream(device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.accelerator.synchronize()
    for turn in range(turns):
        n = 1000 + 37 * (turn % 50)
        with producer:
            x = torch.full((n,), float(rank + turn), device="cuda")
            x.mul_(2)
            work = dist.all_reduce(x, async_op=True)
        with consumer:
            work.wait()
            expected = 2.0 * (world_size * turn + sum(range(world_size)))
            wrong.add_((x != expected).sum())
            x.record_stream(consumer)
        del x  # its memory may be handed out again at once
    consumer.synchronize()
    with consumer:
        return wrong.item()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_producers_and_consumers_on_streams_of_their_own(way):
    # Ranks of one GPU take turns on it over NCCL, whose kernels wait for each other.
    turns = TURNS // 5 if way == "NCCL" else TURNS
    assert ranks.run(_turns, 2, turns, env=WAYS[way][0], timeout=300) == [0, 0]


def _codec_turns(rank, world_size, turns):
    codec, side = MaxMin(4, 64), torch.Stream(device="cuda")
    expected = codec.roundtrip(torch.arange(3000.0))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    wanted = expected.to("cuda")
    torch.accelerator.synchronize()
    for _ in range(turns):
        with side:
            x = wanted.clone()  # already what it decodes to; made on the stream, and spoilt on it
            x.copy_(torch.arange(3000.0))
            sent = codec.encode(x)
            x.fill_(-1)
            wrong.add_((codec.decode(sent, numel=3000) != wanted).sum())
    with side:
        return wrong.item()


def test_codecs_on_a_side_stream():
    assert ranks.run_alone(_codec_turns, TURNS) == 0


def _not_blocked(rank, world_size):
    x = torch.ones(1 << 14, device="cuda")  # takes few of the slots that messages over NCCL have
    dist.all_reduce(x)  # connects, and allocates
    dist.barrier()
    _warm_up()
    start = time.perf_counter()
    torch.cuda._sleep(SLEEP)
    x.fill_(rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    returned = time.perf_counter() - start
    still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    return returned, still_busy, time.perf_counter() - start, x.unique().tolist()


@pytest.mark.parametrize("way", ["NCCL", "SHM"])
def test_wait_does_not_block_the_cpu(way):
    env = WAYS[way][0] | ALLOCATIONS_WAIT
    for returned, busy, total, values in ranks.run(_not_blocked, 2, env=env):
        assert values == [3.0]
        assert busy and returned < total / 3, (returned, total)


def _codec_not_blocked(rank, world_size):
    codec, x = MaxMin(), torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    codec.decode(codec.encode(x), out)
    _warm_up()
    start = time.perf_counter()
    torch.cuda._sleep(SLEEP)
    for _ in range(10):
        codec.decode(codec.encode(x), out)
    returned = time.perf_counter() - start
    busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    return returned, busy, time.perf_counter() - start


def test_codecs_do_not_block_the_cpu():
    returned, busy, total = ranks.run_alone(_codec_not_blocked, env=ALLOCATIONS_WAIT)
    assert busy and returned < total / 3, (returned, total)


def _captured(rank, world_size):
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)  # connects
    codec = MaxMin()
    sent = codec.encode(x)
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    calls = (
        lambda: dist.all_reduce(x),
        lambda: codec.encode(x),
        lambda: codec.decode(sent, numel=1000),
    )
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = x + 1  # an empty graph is a warning
        for call in calls:
            with pytest.raises(RuntimeError, match="CUDA graph"):
                call()
    graph.replay()
    torch.cuda.synchronize()
    assert kept.unique().tolist() == [3.0]
    dist.all_reduce(x)
    return x.unique().tolist()


@ranks.real
@pytest.mark.parametrize("way", ["SHM", "NCCL"])
def test_calls_inside_the_capture_of_a_graph_are_refused(way):
    assert ranks.run(_captured, 2, env=WAYS[way][0]) == [[4.0]] * 2
