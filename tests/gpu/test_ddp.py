"""DistributedDataParallel with cgx_hook, two processes on one GPU: it learns, and ranks agree."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.compat.training import FEATURES, HIDDEN, Net, batch, learned
from tests.gpu import ranks
from tests.gpu.test_collectives import EVERY_WAY, WAYS

STEPS = 60


def _train(rank, world_size, bits, dtype):
    torch.manual_seed(rank)  # rank 0's parameters count
    model = Net().to("cuda", dtype)
    model = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=0.02)
    params = {"bits": bits, "bucket_size": 64}
    model.register_comm_hook(CGXState(None, config=params), cgx_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        output = model(x.to("cuda", dtype))
        loss = nn.functional.cross_entropy(output.float(), y.to("cuda"))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    counters = torch_cgx.stats()
    return losses, flat.cpu(), counters["compressed_calls"], counters["cuda_communicator"]


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("bits", [4, 32])
def test_it_learns_and_ranks_agree(way, bits):
    env, communicator, _ = WAYS[way]
    first, second = ranks.run(_train, 2, bits, torch.float32, env=env, timeout=240)
    assert torch.equal(first[1], second[1]), "parameters differ"
    assert learned(first[0]) and learned(second[0])
    assert (first[2] >= STEPS) == (bits == 4)
    assert first[3] == communicator


def test_bf16_model():
    first, second = ranks.run(_train, 2, 4, torch.bfloat16, env=WAYS["SHM"][0], timeout=240)
    assert torch.equal(first[1], second[1]), "parameters differ"
    assert learned(first[0])


def _wide(rank, world_size):
    """Gradients of some MiB, so that a bucket takes several exchanges."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, HIDDEN)]
    model = DistributedDataParallel(nn.Sequential(*layers).to("cuda"), device_ids=[0])
    model.register_comm_hook(CGXState(None, config={"bits": 4}), cgx_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(8):
        x, y = batch(rank, step % 2)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def test_large_buckets():
    first, second = ranks.run(_wide, 2, env=WAYS["SHM"][0], timeout=240)
    assert torch.equal(first[1], second[1]), "parameters differ"
    assert first[0][-1] < first[0][0]
