"""ZeroRedundancyOptimizer, with DDP's overlap too, and the Join context over both: over cgx as over
gloo.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from cgx_utils import CGXState, cgx_hook
from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import Net, batch, learned, loss_of, train, values


def _zero(model, cls=torch.optim.AdamW, **options):
    return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=cls, **options)


def _sharded(rank, world_size, options, steps=4):
    model = DDP(Net(), bucket_cap_mb=0.02)
    optimizer = _zero(model, lr=3e-3, **options)
    losses = train(model, rank, steps, optimizer)
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"] if rank == 0 else {}
    moments = {key: entry["exp_avg"].clone() for key, entry in state.items()}
    return losses, values(model.module.named_parameters()), moments


def _plain(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.02)
    return train(model, rank, 4, torch.optim.AdamW(model.parameters(), lr=3e-3)), values(
        model.module.named_parameters()
    )


@pytest.mark.parametrize("as_bucket_view", [True, False])
def test_zero(as_bucket_view):
    found = same_as_gloo(_sharded, 2, {"parameters_as_bucket_view": as_bucket_view})
    assert len(found[0][2]) == len(found[0][1]), "the state of every parameter"
    for (losses, parameters, _), plain in zip(found, over("cgx", _plain, 2), strict=True):
        assert losses == plain.value[0]
        assert all(torch.equal(parameters[n], plain.value[1][n]) for n in parameters)


def test_zero_compressed():
    found = compressed(_sharded, 2, {}, 60, bits=4)
    assert all(learned(losses) for losses, _, _ in found)
    assert all(torch.equal(found[0][1][n], found[1][1][n]) for n in found[0][1])


def _overlapped(rank, world_size, bits):
    """DDP's hook steps the optimizer; the first steps, before the buckets are known, do not."""
    model = DDP(Net(), bucket_cap_mb=0.02, static_graph=True)
    optimizer = _zero(model, torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
    hook, state = default.allreduce_hook, None
    if bits:
        hook, state = cgx_hook, CGXState(config={"bits": bits, "bucket_size": 64})
    model.register_comm_hook(state, ddp_zero_hook.hook_with_zero_step(hook, model, optimizer))
    steps = 80 if bits else 5
    losses, changed, before = [], [], values(model.module.named_parameters())
    for step in range(steps):
        model.zero_grad()
        loss = loss_of(model, batch(rank, step))
        loss.backward()
        losses.append(loss.item())
        after = values(model.module.named_parameters())
        changed.append(any(not torch.equal(before[name], after[name]) for name in after))
        before = after
    return losses, changed, before


def _skipping(rank, world_size, changed):
    model = DDP(Net(), bucket_cap_mb=0.02, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, stepped in enumerate(changed):
        loss_of(model, batch(rank, step)).backward()
        if stepped:
            optimizer.step()
        optimizer.zero_grad()
    return values(model.module.named_parameters())


def test_zero_overlapped_with_ddp():
    """torch refuses this over gloo; the reference is plain SGD that skips the same steps."""
    found = [run.value for run in over("cgx", _overlapped, 2, 0)]
    _, changed, parameters = found[0]
    assert changed[-2:] == [True, True]
    expected = over("gloo", _skipping, 2, changed)[0].value
    for name, value in parameters.items():
        assert torch.equal(value, found[1][2][name]), name
        torch.testing.assert_close(value, expected[name])


def test_zero_overlapped_with_ddp_and_cgx_hook():
    found = [run.value for run in over("cgx", _overlapped, 2, 4)]
    assert all(learned(losses) for losses, _, _ in found)
    assert all(torch.equal(value, found[1][2][name]) for name, value in found[0][2].items())


def _refused_over_gloo(rank, world_size):
    model = DDP(Net(), static_graph=True)
    optimizer = _zero(model, torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
    with pytest.raises(RuntimeError, match="Gloo backend"):
        ddp_zero_hook.hook_with_zero_step(default.allreduce_hook, model, optimizer)
    return True


def test_the_overlap_is_refused_over_gloo():
    assert all(run.value for run in over("gloo", _refused_over_gloo, 2))


def _joined(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.02)
    optimizer = _zero(model, lr=3e-3)
    with Join([model, optimizer]):
        for step in range(2 + 2 * rank):
            optimizer.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            optimizer.step()
    tensor = torch.full((100,), float(rank))
    dist.all_reduce(tensor)  # the group is in order afterwards
    return values(model.module.named_parameters()), tensor


def test_join_of_ddp_and_zero():
    first, second = same_as_gloo(_joined, 2)
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])
    assert torch.all(first[1] == 1)
