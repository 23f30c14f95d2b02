"""DDP's `join`: ranks whose data ends early take part in all that the hook and a Monitor do."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from cgx_utils import AdaptiveBits, CGXState, Monitor
from tests.distributed import run_pooled
from tests.utils.training import Branches, batch, digest, gradients, loss_of, make_model, wrap

STEPS = (5, 2, 0)  # of each rank


def _joined(rank, world_size, unused, last):
    """Rank 0 ends last, or first: it has the records."""
    state = CGXState(
        config={"bits": 4, "bucket_size": 64},
        error_feedback=True,
        adaptive=AdaptiveBits(average_bits=3, candidates=(2, 4), every=1),
    )
    module = Branches() if unused else make_model()
    for parameter in module.parameters():
        dist.broadcast(parameter.detach(), 0)
    model = wrap(module, state, find_unused_parameters=unused, bucket_cap_mb=0.02)
    records = []
    steps = (STEPS if last == 0 else STEPS[::-1])[rank]
    with Monitor(model, 1, records.append) as monitor:
        with model.join():
            for step in range(steps):
                model.zero_grad()
                loss_of(model, batch(rank, step)).backward()
        # All ranks have gone the same way: what follows meets.
        mine = torch.tensor([monitor.step_number])
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        model.zero_grad()
        loss_of(model, batch(rank, 9)).backward()
    return {
        "steps": [record["step"] for record in records],
        "errors": [sorted(record["errors"]) for record in records],
        "exposed": [record["exposed_seconds"] is None for record in records],
        "number": (monitor.step_number, int(mine)),
        "bits": state.state_dict()["adaptive"]["bits"],
        "digest": digest(gradients(model)),
    }


@pytest.mark.parametrize("last", [0, 2])
@pytest.mark.parametrize("unused", [False, True])
def test_a_rank_that_has_joined_counts_and_compares_like_the_others(unused, last):
    found = run_pooled(_joined, 3, unused, last)
    first = found[0]
    assert first["steps"] == [1, 2, 3, 4, 5, 6]
    assert all(one["number"] == (6, 5) for one in found)
    assert all(one["bits"] == first["bits"] and one["digest"] == first["digest"] for one in found)
    assert len(first["bits"]) == 2
    # Without a backward pass there is nothing that communication could be exposed beside.
    assert first["exposed"] == [last == 2] * 5 + [False]
    # With find_unused_parameters no sample is compared, from `join` on.
    assert bool(first["errors"][5]) is not unused
