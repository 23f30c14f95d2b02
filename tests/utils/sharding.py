"""Nets that `fully_shard` has sharded, and their parameters and gradients: for the tests of
cgx_utils.fsdp.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.compat.training import Net, batch, loss_of, values

BITS, BUCKET = 4, 64
GRADIENTS = {"bits": BITS, "bucket_size": BUCKET}
WEIGHTS = {"bits": 8, "bucket_size": BUCKET}
BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def sharded_net(world_size, mesh=None, **options):
    """The same weights in every call; each block is a unit of its own."""
    torch.manual_seed(7)
    net = Net()
    mesh = dist.init_device_mesh("cpu", (world_size,)) if mesh is None else mesh
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def make_grid(world_size, **options):
    """A mesh of two replicas."""
    names = ("replicate", "shard")
    return dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=names, **options)


def whole_parameters(model):
    return values((name, p.full_tensor()) for name, p in model.named_parameters())


def parameter_shards(model):
    """This rank's parts of the parameters, without a collective."""
    return values((name, p.to_local()) for name, p in model.named_parameters())


def gradient_shards(model):
    return values((name, p.grad.to_local()) for name, p in model.named_parameters())


def whole_gradients(model):
    return values((name, p.grad.full_tensor()) for name, p in model.named_parameters())


def is_exact(name, parameter):
    """Whether `compress` leaves this parameter exact by default."""
    return parameter.dim() < 2 or parameter.numel() < 1024


def check_same(found):
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])


def gradients_of_rank(rank):
    """Of the net without shards, on this rank's first batch alone."""
    torch.manual_seed(7)
    net = Net()
    loss_of(net, batch(rank, 0)).backward()
    return {name: p.grad.double().numpy() for name, p in net.named_parameters()}
