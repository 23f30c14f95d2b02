"""The parts of c10d's Backend that torch and its tools ask for beside the collectives."""

from __future__ import annotations

import datetime

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled


def completion_hook(rank, world_size):
    seen = []
    group = dist.group.WORLD
    group._register_on_completion_hook(lambda info: seen.append((info.op_type, info.seq)))
    for _ in range(3):
        dist.all_reduce(torch.ones(100))
    torch_cgx._backend.backend_of().wait_for_pending_works()
    with pytest.raises(RuntimeError, match="already registered"):
        group._register_on_completion_hook(lambda info: None)
    return len(seen)


def test_completion_hooks_see_every_engine_call():
    assert run_pooled(completion_hook, 2) == [3, 3]


def timing(rank, world_size):
    work = dist.all_reduce(torch.ones(1_000_000), async_op=True)
    work.wait()
    assert 0 < work._get_duration() < 60_000
    return True


def test_durations():
    assert run_pooled(timing, 2) == [True, True]


def timeouts(rank, world_size):
    backend = torch_cgx._backend.backend_of()
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=7))
    assert backend.options._timeout == datetime.timedelta(seconds=7)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    return torch.all(tensor == world_size).item()


def test_set_timeout():
    assert run_pooled(timeouts, 2) == [True, True]


def names(rank, world_size):
    backend = torch_cgx._backend.backend_of()
    assert backend.name() == "cgx" and backend.rank() == rank and backend.size() == world_size
    assert backend.supports_splitting and backend.supports_coalescing
    assert dist.get_backend() == "cgx" and dist.get_backend_config() == "cpu:cgx,cuda:cgx"
    assert len(backend.hosts()) == world_size and len(set(backend.hosts())) == 1
    assert isinstance(backend.options, torch_cgx.Options)
    assert set(backend.settings()) == {row["name"] for row in torch_cgx._C.settings()}
    return True


def test_names_sizes_and_settings():
    assert run_pooled(names, 2) == [True, True]


def counters(rank, world_size):
    torch_cgx.reset_stats()
    dist.all_reduce(torch.ones(1000))
    torch_cgx.all_reduce(torch.randn(10_000), config={"bits": 4})
    stats = torch_cgx.stats()
    assert (stats["calls"], stats["compressed_calls"], stats["numel"]) == (2, 1, 11_000)
    assert stats["bytes_raw"] == 44_000
    # Two ranks: one message each way and call, a header of 56 bytes before the payload.
    expected = 56 + 4000 + 56 + 8 * 20 + 5000
    assert stats["bytes_sent"] == stats["bytes_received"] == expected
    assert stats["messages_sent"] == 2
    assert all(stats[f"seconds_{what}"] > 0 for what in ("encode", "transfer", "decode"))
    (communicator,) = stats["communicators"]
    assert communicator == stats["communicator"] == "shm"
    assert stats["communicators"]["shm"]["bytes_sent"] == expected
    torch_cgx.reset_stats()
    assert torch_cgx.stats()["calls"] == torch_cgx.stats()["bytes_sent"] == 0
    return True


def test_statistics():
    assert run_pooled(counters, 2) == [True, True]
