"""Objects, point to point, coalescing, pipelines, checkpoints and life cycle: over cgx as over
gloo. (The first three on every dtype: tests/backend/test_collectives.py.)
"""

from __future__ import annotations

import datetime
import gc
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_cgx
from tests.compat.compare import check_equal, over, same_as_gloo
from tests.compat.training import Net, batch, train, values
from tests.distributed import run_pooled, store


def _objects(rank, world_size):
    found = []
    gathered = [None] * world_size if rank == 0 else None
    dist.gather_object({"rank": rank, "data": "x" * 1000 * rank}, gathered, dst=0)
    found.append(gathered)
    if rank == 0:
        dist.send_object_list([{"a": 1}, "text", None], dst=1)
    elif rank == 1:
        box = [None] * 3
        dist.recv_object_list(box, src=0)
        found.append(box)
    part = dist.new_group([0, 1])
    if rank < 2:
        objects = [None, None]
        dist.all_gather_object(objects, ("in part", rank), group=part)
        box = [f"from {rank}"]
        dist.broadcast_object_list(box, src=1, group=part)
        found += [objects, box]
    ring = [
        dist.P2POp(dist.isend, torch.full((3,), float(rank)), (rank + 1) % world_size),
        dist.P2POp(dist.irecv, torch.zeros(3), (rank - 1) % world_size),
        dist.P2POp(dist.isend, torch.arange(4) + rank, (rank - 1) % world_size, tag=7),
        dist.P2POp(dist.irecv, torch.zeros(4).long(), (rank + 1) % world_size, tag=7),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    return [*found, ring[1].tensor, ring[3].tensor]


def test_objects_and_batched_point_to_point():
    found = same_as_gloo(_objects, 3, exact=True, engine=False)
    assert found[2][-2].tolist() == [1.0] * 3 and found[2][-1].tolist() == [0, 1, 2, 3]


def _coalesced(rank, world_size, coalesce):
    manager = dist._coalescing_manager(device=torch.device("cpu")) if coalesce else nullcontext()
    tensors = [torch.randn(n) * (rank + 1) for n in (3, 100, 1000)]
    with manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    shards = [torch.zeros(n) for n in (20, 500)]
    wholes = [torch.randn(world_size * shard.numel()) for shard in shards]
    with dist._coalescing_manager() if coalesce else nullcontext():
        for shard, whole in zip(shards, wholes, strict=True):
            dist.reduce_scatter_single(shard, whole)
    return tensors, shards


@pytest.mark.parametrize("bits", ["32", "4"])
def test_coalescing_changes_nothing(bits):
    """Gloo has no coalescing, so that the reference is cgx without it."""
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": bits, "CGX_COMPRESSION_BUCKET_SIZE": "64"}
    plain, merged = (over("cgx", _coalesced, 3, which, env=env) for which in (False, True))
    for a, b in zip(plain, merged, strict=True):
        check_equal(a.value, b.value, True)
        assert b.calls > 0 and (b.compressed > 0) is (bits == "4")


class _Part(nn.Sequential):
    def __init__(self, index, last):
        torch.manual_seed(index)
        super().__init__(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8 if last else 32))


def _pipeline(rank, world_size, schedule, per_rank):
    indices = [rank + i * world_size for i in range(per_rank)]
    count = world_size * per_rank
    parts = [_Part(i, i == count - 1) for i in indices]
    stages = [
        PipelineStage(part, i, count, torch.device("cpu"))
        for part, i in zip(parts, indices, strict=True)
    ]
    run = schedule(
        stages if per_rank > 1 else stages[0], n_microbatches=4, loss_fn=nn.functional.cross_entropy
    )
    found = []
    for step in range(2):
        x, y = batch(0, step)
        losses = []
        if rank == 0:
            run.step(x, target=y, losses=losses) if world_size == 1 else run.step(x)
        else:
            run.step(target=y, losses=losses)
        found.append([loss.item() for loss in losses])
        found += [p.grad.clone() for part in parts for p in part.parameters()]
        for part in parts:
            part.zero_grad()
    return found


@pytest.mark.parametrize(
    ("schedule", "per_rank"), [(ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)]
)
def test_pipelines(schedule, per_rank):
    _, last = same_as_gloo(_pipeline, 2, schedule, per_rank, exact=True, engine=False)
    assert len(last[0]) == 4


def _sharded_model(world_size):
    net = fully_shard(Net(), mesh=dist.init_device_mesh("cpu", (world_size,)))
    return net, torch.optim.AdamW(net.parameters(), lr=3e-3)


def _checkpoint(rank, world_size, folder, phase):
    """Saves on one number of ranks, loads on another."""
    net, optimizer = _sharded_model(world_size)
    if phase == "save":
        train(net, rank, 2, optimizer)
        model_state, optimizer_state = get_state_dict(net, optimizer)
        dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
        saving = dcp.async_save({"model": model_state}, checkpoint_id=folder + "/async")
        saving.result()
    else:
        model_state, optimizer_state = get_state_dict(net, optimizer)
        dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
        set_state_dict(
            net, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state
        )
    return values((name, p.full_tensor()) for name, p in net.named_parameters())


@pytest.mark.parametrize("first", ["gloo", "cgx"])
def test_checkpoints_move_between_backends_and_numbers_of_ranks(first, tmp_path):
    second = {"gloo": "cgx", "cgx": "gloo"}[first]
    saved = over(first, _checkpoint, 2, str(tmp_path), "save")[0].value
    loaded = over(second, _checkpoint, 3, str(tmp_path), "load")
    for run in loaded:
        assert all(torch.equal(run.value[name], saved[name]) for name in saved)


def _again(rank, world_size):
    """Groups, models and hooks in several lives of the default group."""
    sums = []
    for life in range(4):
        backend = ["cgx", "gloo", "cpu:cgx", "cgx"][life]
        dist.init_process_group(
            backend, store=dist.PrefixStore(str(life), store()), rank=rank, world_size=world_size
        )
        model = DDP(Net())
        train(model, rank, 2)
        mesh = dist.init_device_mesh("cpu", (world_size,))
        tensor = torch.full((100,), float(rank))
        dist.all_reduce(tensor, group=mesh.get_group())
        sums.append(tensor.sum().item())
        del model
        gc.collect()
        dist.destroy_process_group()
        assert not dist.is_initialized()
    return sums


def test_destroy_and_init_again():
    assert run_pooled(_again, 2, backend=None, timeout=120) == [[100.0] * 4] * 2


def _destroy_parts(rank, world_size):
    part = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(100), group=part) if rank < 2 else None
    if rank < 2:
        dist.destroy_process_group(part)
        with pytest.raises(ValueError):
            dist.all_reduce(torch.ones(100), group=part)
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    return tensor[0].item()


def test_a_destroyed_part_leaves_the_rest():
    assert [run.value for run in over("cgx", _destroy_parts, 3)] == [3.0] * 3


def _refused(rank, world_size):
    with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO"):
        dist.monitored_barrier()
    beside = dist.new_group(backend="gloo")
    dist.monitored_barrier(beside, datetime.timedelta(seconds=30))
    with pytest.raises((RuntimeError, ValueError), match="device_id|device"):
        dist.split_group(split_ranks=[[0], [1]])
    with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=9))
    return torch_cgx.stats()["calls"]


def test_what_torch_keeps_for_its_own_backends():
    assert [run.value for run in over("cgx", _refused, 2)] == [0, 0]
