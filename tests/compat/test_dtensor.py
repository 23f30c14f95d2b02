"""DTensor, DeviceMesh and tensor parallelism: over cgx as over gloo."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as tp

import torch_cgx
from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import Block, Net, batch, learned, train, values

LAYOUTS = [Replicate(), Shard(0), Shard(1)]


def _redistributed(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    whole = torch.arange(35.0).reshape(5, 7)  # splits evenly over no two or three ranks
    found = {}
    for source, target in itertools.product(LAYOUTS, LAYOUTS):
        spread = distribute_tensor(whole, mesh, [source])
        moved = spread.redistribute(mesh, [target])
        assert torch.equal(moved.full_tensor(), whole), (source, target)
        found[f"{source} to {target}"] = moved.to_local()
    for reduction in ("sum", "avg", "max", "min"):
        for target in LAYOUTS:
            local = whole * (rank + 1)
            partial = DTensor.from_local(local, mesh, [Partial(reduction)], run_check=False)
            found[f"{reduction} to {target}"] = partial.redistribute(mesh, [target]).to_local()
    for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        typed = whole.to(dtype)
        spread = distribute_tensor(typed, mesh, [Shard(1)])
        assert torch.equal(spread.full_tensor(), typed), dtype
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_redistribution_of_all_placements(world_size):
    found = same_as_gloo(_redistributed, world_size)
    assert len(found[0]) == 9 + 12


def _products(rank, world_size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(8, 8, generator=generator) for _ in range(2))
    found = {}
    for x, y in itertools.product(itertools.product(LAYOUTS, LAYOUTS), repeat=2):
        product = distribute_tensor(left, mesh, x) @ distribute_tensor(right, mesh, y)
        found[f"{x} @ {y}"] = product.full_tensor()
    weight = distribute_tensor(right, mesh, [Shard(0), Shard(1)], src_data_rank=None)
    weight.requires_grad_(True)
    out = torch.softmax(distribute_tensor(left, mesh, [Shard(0), Replicate()]) @ weight, -1)
    out.square().mean().full_tensor().backward()
    found["gradient"] = weight.grad.full_tensor()
    return found


def test_products_and_gradients_on_two_mesh_dimensions():
    for values_of_rank in same_as_gloo(_products, 4):
        assert len(values_of_rank) == 82


def _meshes(rank, world_size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = []

    def add_up(group):
        tensor = torch.full((50,), 2.0**rank)
        dist.all_reduce(tensor, group=group)
        found.append(tensor)

    add_up(mesh["replicate"].get_group())
    add_up(mesh["shard"].get_group())
    add_up(mesh["replicate", "shard"]._flatten("all").get_group())
    add_up(DeviceMesh("cpu", [3, 1, 2, 0]).get_group())  # ranks out of order
    add_up(DeviceMesh.from_group(dist.new_group(), "cpu").get_group())
    pairs = DeviceMesh("cpu", [[0, 3], [1, 2]], mesh_dim_names=("x", "y"))
    add_up(pairs["y"].get_group())
    found.append(torch.tensor([*mesh.get_coordinate(), pairs["y"].get_local_rank()]))
    found.append(torch.tensor([mesh["shard"].size(), mesh.ndim, *mesh.shape]))
    return found


def test_sub_meshes():
    # Powers of two: sums are exact in any order.
    found = same_as_gloo(_meshes, 4, exact=True)
    assert [tensor[0].item() for tensor in found[0][:6]] == [5.0, 3.0, 15.0, 15.0, 15.0, 9.0]


def _mesh_options(rank, world_size):
    """A mesh dimension with options of its own."""
    override = {"shard": ("cgx", torch_cgx.Options(bits=4, bucket_size=64))}
    mesh = init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("replicate", "shard"), backend_override=override
    )
    x = torch.randn(1000)
    for name in ("replicate", "shard"):
        dist.all_reduce(x, group=mesh.get_group(name))
    return [torch_cgx.stats(mesh.get_group(n))["compressed_calls"] for n in ("replicate", "shard")]


def test_a_mesh_dimension_with_options_of_its_own():
    assert [run.value for run in over("cgx", _mesh_options, 4)] == [[0, 1]] * 4


class _Attention(nn.Module):
    """Two heads of 32, which tensor parallelism spreads over ranks."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.out = nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 32)).transpose(0, 1) for f in self.qkv)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(0, 1).flatten(1))


def _parallel(rank, world_size, steps, sharded):
    shape = (2, 2) if sharded else (2,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor")[-len(shape) :])
    net = Net()
    net.blocks.append(_Attention())
    block = {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
    attention = {f"qkv.{i}": tp.ColwiseParallel() for i in range(3)}
    attention["out"] = tp.RowwiseParallel()
    for layer in net.blocks:
        plan = block if isinstance(layer, Block) else attention
        tp.parallelize_module(layer, mesh["tensor"], plan)
    tp.parallelize_module(
        net, mesh["tensor"], {"last": tp.ColwiseParallel(output_layouts=Replicate())}
    )
    if sharded:
        fully_shard(net, mesh=mesh["data"])
    # Ranks of one tensor-parallel group need equal data.
    source = rank // 2 if sharded else 0
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, foreach=False)
    losses = train(net, source, steps, optimizer)
    whole = ((n, p.full_tensor() if isinstance(p, DTensor) else p) for n, p in _named(net))
    return losses, values(whole)


def _named(net):
    return net.named_parameters()


def test_tensor_parallel():
    first, second = same_as_gloo(_parallel, 2, 3, False)
    assert first[0] == second[0]


def test_tensor_parallel_and_fully_shard():
    found = same_as_gloo(_parallel, 4, 3, True)
    assert all(torch.equal(found[0][1][n], found[3][1][n]) for n in found[0][1])


def test_tensor_parallel_compressed():
    """Activations at 8 bits: whether that serves a model is for the user to see; it trains here."""
    assert all(learned(losses) for losses, _ in compressed(_parallel, 2, 60, False))


def _sequence(rank, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    net = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    plan = {
        "0": tp.SequenceParallel(sequence_dim=0),
        "1": tp.ColwiseParallel(input_layouts=Shard(0)),
        "3": tp.RowwiseParallel(output_layouts=Shard(0)),
    }
    tp.parallelize_module(net, mesh, plan)
    x, y = batch(0, 0)
    local = distribute_tensor(x, mesh, [Shard(0)])
    out = net(local)
    out = out if isinstance(out, DTensor) else DTensor.from_local(out, mesh, [Shard(0)])
    with tp.loss_parallel():
        logits = out.redistribute(mesh, [Shard(1)])
        loss = nn.functional.cross_entropy(logits, distribute_tensor(y, mesh, [Replicate()]))
        loss.backward()
    return loss.full_tensor().detach(), {
        n: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for n, p in net.named_parameters()
    }


def test_sequence_and_loss_parallel():
    same_as_gloo(_sequence, 2)
