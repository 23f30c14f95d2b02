"""Errors come out of `backward()` as what they are, so that a program can catch them."""

from __future__ import annotations

import pytest
import torch

from tests import warm
from tests.distributed import run_pooled
from tests.faults.forked import Lost, Ranks, join
from tests.hosts.marks import needs_hosts
from tests.utils.hook_failures import train
from torch_cgx.testbed.bed import hosts

LAYOUTS = {
    "shm": ("aaa", {}),
    "gloo": ("aaa", {"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}),
    "hosts": ("abb", {}),
}
# What came out was a matter of chance.
TIMES = {"kill": 2, "kill, float64": 1, "late": 1, "bits": 2}


def _train(rank, world_size, store, kind):
    torch.set_num_threads(1)
    join(rank, world_size, store, timeout=30)
    return train(rank, world_size, kind)


def _all_kinds(_rank, _world_size, layout):
    import torch._dynamo  # noqa: F401  DistributedDataParallel does, for seconds: once, not in each

    hosts_of, common = LAYOUTS[layout]
    env = [{**common, "CGX_HOST_ID": host} for host in hosts_of]
    found = []
    for kind, times in TIMES.items():
        for _ in range(times):
            with Ranks(3, _train, kind, env=env) as ranks:
                found.append((kind, ranks.outcomes(timeout=40)))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_type_survives_the_backward_pass(layout):
    ((*found,),) = run_pooled(_all_kinds, 1, layout, backend=None, timeout=240)
    wanted = {"kill": "PeerLostError", "late": "TimeoutError", "bits": "MismatchError"}
    wanted["kill, float64"] = wanted["kill"]
    assert len(found) == sum(TIMES.values())
    for kind, outcomes in found:
        for rank, outcome in enumerate(outcomes):
            if kind.startswith("kill") and rank == 2:
                assert isinstance(outcome, Lost)
                continue
            message = f"{kind}, rank {rank}: {outcome}"
            assert isinstance(outcome, str), message
            assert outcome.startswith(f"torch_cgx.{wanted[kind]}: "), message
            assert "running the callback" not in outcome, message


@needs_hosts
def test_a_link_that_goes_down_is_a_timeout():
    with hosts(2, rate=None) as bed:
        command = [*warm.python(), "-m", "tests.utils.hook_failures", "link"]
        outputs = bed.run(command, ranks=1, timeout=90, grace=30)
    for output in outputs:
        assert "torch_cgx.TimeoutError: " in output or "torch_cgx.PeerLostError: " in output, output
        assert "running the callback" not in output
