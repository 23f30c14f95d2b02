"""Training with cgx_utils.fsdp: losses fall, all ranks keep the same parameters, also with replicas
(HSDP), and the bytes are what the codecs say.
"""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

import torch_cgx
from cgx_utils import fsdp
from tests.compat.training import Net, batch, loss_of, train
from tests.distributed import run_pooled
from tests.utils.sharding import (
    BF16,
    BITS,
    BUCKET,
    GRADIENTS,
    WEIGHTS,
    check_same,
    gradient_shards,
    gradients_of_rank,
    is_exact,
    make_grid,
    parameter_shards,
    sharded_net,
    whole_parameters,
)

# ---- training


def _trained(rank, world_size, options, steps, compress=True):
    model = sharded_net(world_size, **options)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        if compress:
            fsdp.compress(model, GRADIENTS, WEIGHTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    return losses, whole_parameters(model), said.getvalue()


TRAINED = {
    "bf16": ({"mp_policy": BF16}, 2),
    "fp16 sums": ({"mp_policy": MixedPrecisionPolicy(None, torch.float16)}, 2),
    "no reshard": ({"reshard_after_forward": False}, 2),
    "reshard to fewer": ({"reshard_after_forward": 2}, 4),
}
STEPS = 24


@pytest.mark.parametrize("case", TRAINED)
def test_training_converges_with_equal_parameters(case):
    options, ranks = TRAINED[case]
    found = run_pooled(_trained, ranks, options, STEPS)
    assert all(losses[-1] < 0.7 * losses[0] for losses, *_ in found)
    check_same([one[1] for one in found])
    first, *others = [said for *_, said in found]
    assert "gradients: compressing 5 of 16 parameters" in first and "maxmin 4 bits" in first
    assert "weights: compressing 5 of 16" in first and "maxmin 8 bits" in first
    assert others == [""] * (ranks - 1)


def test_one_rank_sends_nothing_and_is_exact():
    ((_, found, _),) = run_pooled(_trained, 1, {}, 3)
    ((_, gloo, _),) = run_pooled(_trained, 1, {}, 3, False, backend="gloo")
    check_same([found, gloo])


def _bytes(rank, world_size, gradients, weights):
    model = sharded_net(world_size)
    fsdp.compress(model, gradients, weights)
    loss_of(model, batch(rank, 0)).backward()
    torch_cgx.reset_stats()
    loss_of(model, batch(rank, 1)).backward()
    counters = torch_cgx.stats()
    return counters["bytes_sent"], counters["messages_sent"]


def test_bytes_of_a_step():
    """Of two ranks each sends its half of every buffer, encoded; blocks are gathered twice. The
    exact parameters are gathered exactly, which counts elsewhere.
    """
    ((sent, messages), _) = run_pooled(_bytes, 2, GRADIENTS, WEIGHTS)
    block, root = 2 * 64 * 128, 32 * 64
    expected = 0
    for unit, gathers in ((block, 2), (block, 2), (root, 1)):
        half = unit // 2
        expected += half * BITS // 8 + 8 * half // BUCKET
        expected += gathers * (half + 8 * half // BUCKET)
    # The three reduce-scatters of what is exact: biases and norms, of a few hundred values.
    exact = 3
    assert messages == 3 + 5 + exact
    assert 0 <= sent - expected <= 64 * messages + exact * 1024, (sent, expected)


# ---- replicas


def _hybrid(rank, world_size, steps, way):
    if way == "options":
        options = torch_cgx.Options(bits=BITS, bucket_size=BUCKET)
        mesh = make_grid(world_size, backend_override={"replicate": ("cgx", options)})
    else:
        mesh = make_grid(world_size)
    replicas = mesh.get_group("replicate")
    if way == "hook":
        model = sharded_net(world_size, mesh["shard"])
        fsdp.compress(model, GRADIENTS, replicas=replicas)
    else:
        model = sharded_net(world_size, mesh)
        fsdp.compress(model, GRADIENTS, replicas="exact" if way == "exact" else None)
    loss_of(model, batch(rank, 0)).backward()
    first = gradient_shards(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    counters = torch_cgx.stats(replicas)
    return losses, parameter_shards(model), first, counters["compressed_calls"], counters["calls"]


@pytest.mark.parametrize("way", ["hook", "options", "exact"])
def test_replicas(way):
    found = run_pooled(_hybrid, 4, STEPS, way)
    assert all(losses[-1] < 0.7 * losses[0] for losses, *_ in found)
    for rank in (0, 1):  # and its replica
        check_same([found[rank][1], found[rank + 2][1]])
        check_same([found[rank][2], found[rank + 2][2]])
    calls = (0 if way == "exact" else 3 * (STEPS + 1), 3 * (STEPS + 1))
    assert all(one[3:] == calls for one in found)
    local = [gradients_of_rank(rank) for rank in range(4)]
    for name, parameter in Net().named_parameters():
        mean = np.mean([one[name] for one in local], axis=0)
        ours = torch.cat([found[0][2][name], found[1][2][name]]).double().numpy()
        if way != "options" and is_exact(name, parameter):
            assert np.abs(ours - mean).max() < 1e-6, name
        else:
            assert 1e-4 < np.linalg.norm(ours - mean) / np.linalg.norm(mean) < 0.3, name
