"""Linear layers that keep less with DistributedDataParallel, cgx_hook and FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import run_pooled
from torch_cgx import activations
from torch_cgx.activations.functional import linear


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    activations.convert(model, linear=0.25)
    return model


def _x(rank: int, step: int) -> torch.Tensor:
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(10 * step + rank))


def _trained(rank: int, world_size: int, way: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Parameters after some steps; and an estimate of a gradient that all ranks could share."""
    model: nn.Module = _model()
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in (model[0], model[2]):  # type: ignore[index]
            fully_shard(part)
        called: Any = fully_shard(model)
    else:
        called = DistributedDataParallel(model)
    if way == "cgx_hook":
        from cgx_utils import CGXState, cgx_hook

        params = {"bits": 8, "bucket_size": 64}
        called.register_comm_hook(CGXState(None, compression_params=params), cgx_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    losses = []
    torch.manual_seed(5)  # of all ranks
    for step in range(12):
        x = _x(rank, step)
        with activations.compress_saved(min_size=64):
            y = called(x)
        loss = (y - x[:, :8]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0], losses
    torch.manual_seed(5)
    weight = torch.zeros(4, 16, requires_grad=True)
    (estimate,) = torch.autograd.grad(linear(_x(0, 0), weight, keep=0.25).sum(), weight)
    parameters = [p.detach() for p in model.parameters()]
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return whole, estimate


def _every(rank: int, world_size: int) -> dict[str, tuple[list[torch.Tensor], torch.Tensor]]:
    return {way: _trained(rank, world_size, way) for way in ("ddp", "cgx_hook", "fsdp")}


def test_ranks_agree_and_keep_different_rows() -> None:
    first, second = run_pooled(_every, 2, backend="cgx")
    for way in first:
        for a, b in zip(first[way][0], second[way][0], strict=True):
            assert torch.equal(a, b), way
        assert not torch.equal(first[way][1], second[way][1]), way
    # FSDP2 and DDP see the same weights, data and draws.
    for a, b in zip(first["ddp"][0], first["fsdp"][0], strict=True):
        torch.testing.assert_close(a, b)
