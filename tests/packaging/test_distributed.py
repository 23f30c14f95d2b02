"""The helper that runs functions on ranks: values, tracebacks, deaths, time limits. Over gloo,
which torch brings.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed import RanksFailed, run_pooled, run_ranks, store


def _sum(rank, world_size, scale):
    x = torch.full((8,), scale * rank)
    dist.all_reduce(x)
    return x.tolist()


def _pid(rank, world_size):
    dist.barrier()  # a rank that leaves at once resets what the other still connects to
    return os.getpid(), dist.get_world_size()


def _raise_on_one(rank, world_size):
    dist.barrier()
    if rank == 1:
        raise ValueError("rank one is unwell")
    return rank


def _die_on_zero(rank, world_size):
    dist.barrier()  # a rank may die while another still connects to it
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def _hang_on_one(rank, world_size):
    print("about to sleep", flush=True)
    time.sleep(1000 if rank == 1 else 0)


def _variables(rank, world_size):
    return os.environ.get("CGX_TEST_ONLY"), dist.is_initialized()


def _own_groups(rank, world_size):
    for attempt in range(3):
        prefix = dist.PrefixStore(str(attempt), store())
        dist.init_process_group("gloo", store=prefix, rank=rank, world_size=world_size)
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.destroy_process_group()
    return x.tolist()


def _env_method(rank, world_size):
    dist.init_process_group("gloo")
    x = torch.ones(2)
    dist.all_reduce(x)
    return x.tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_values_come_in_rank_order_and_groups_are_fresh(world_size):
    total = 2.0 * sum(range(world_size))
    for _ in range(3):
        assert run_pooled(_sum, world_size, 2.0, backend="gloo") == [[total] * 8] * world_size


def test_pool_keeps_its_processes_and_run_ranks_does_not():
    first = run_pooled(_pid, 2, backend="gloo")
    assert run_pooled(_pid, 2, backend="gloo") == first
    other = run_ranks(_pid, 2, backend="gloo")
    assert not {pid for pid, _ in first} & {pid for pid, _ in other}
    for pid, _ in other:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_raise_is_reported_with_its_traceback():
    with pytest.raises(RanksFailed, match="rank one is unwell") as caught:
        run_pooled(_raise_on_one, 2, backend="gloo")
    ok, bad = caught.value.outcomes
    assert ok.error is None and ok.value == 0
    assert isinstance(bad.exception, ValueError) and "_raise_on_one" in bad.error


def test_a_death_is_reported_and_the_pool_recovers():
    outcomes = run_pooled(_die_on_zero, 2, backend="gloo", check=False)
    assert outcomes[0].exit_code == -signal.SIGKILL and "SIGKILL" in outcomes[0].error
    assert outcomes[1].value == 1
    assert run_pooled(_sum, 2, 1.0, backend="gloo") == [[1.0] * 8] * 2


def test_a_hang_ends_at_the_limit_with_the_stack():
    start = time.monotonic()
    outcomes = run_pooled(_hang_on_one, 2, backend="gloo", timeout=2, check=False)
    assert time.monotonic() - start < 30
    assert outcomes[0].error is None
    assert outcomes[1].error is not None
    assert "about to sleep" in outcomes[1].log and "_hang_on_one" in outcomes[1].log


def test_environment_is_per_rank_and_undone():
    env = [{"CGX_TEST_ONLY": "a"}, {"CGX_TEST_ONLY": "b"}]
    assert run_pooled(_variables, 2, env=env, backend=None) == [("a", False), ("b", False)]
    assert run_pooled(_variables, 2, backend=None) == [(None, False), (None, False)]


def test_functions_may_make_their_own_groups():
    assert run_pooled(_own_groups, 2, backend=None) == [[2.0, 2.0]] * 2
    assert run_pooled(_env_method, 2, backend=None) == [[2.0, 2.0]] * 2
