"""Sub-groups, overlapping groups, groups used from several threads, two jobs at once, destroy and
make anew.
"""

from __future__ import annotations

import datetime
import os
import threading

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled, store

COMMUNICATORS = ["SHM", "GLOO"]


def value(rank: int, n: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(100 * salt + rank))


def check_group(members, group, salt, bits):
    tensor = value(dist.get_rank(), 3000, salt)
    torch_cgx.all_reduce(tensor, group=group, config={"bits": bits})
    exact = sum(value(r, 3000, salt).double() for r in members)
    relative = ((tensor.double() - exact).norm() / exact.norm()).item()
    assert relative < {32: 1e-6, 8: 0.02}[bits], (members, relative)


def subsets(rank, world_size):
    for members in ([0, 2], [1, 2], [0, 1, 2, 3], [3], [2, 0, 3]):
        group = dist.new_group(members)
        if rank in members:
            for bits in (32, 8):
                check_group(members, group, len(members), bits)
            assert dist.get_world_size(group) == len(members)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert torch.all(tensor == world_size)


@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_new_group_of_any_subset(communicator):
    run_pooled(subsets, 4, env={"CGX_INNER_COMMUNICATOR_TYPE": communicator}, timeout=120)


def overlapping(rank, world_size):
    groups = {
        members: dist.new_group(list(members)) for members in [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
    }
    for _ in range(20):
        works, results = [], []
        for members, group in groups.items():
            if rank in members:
                tensor = torch.full((1000,), float(rank + 1))
                works.append(dist.all_reduce(tensor, group=group, async_op=True))
                results.append((tensor, sum(r + 1 for r in members)))
        for work in reversed(works):
            work.wait()
        for tensor, expected in results:
            assert torch.all(tensor == expected)


def test_overlapping_groups_at_once():
    run_pooled(overlapping, 3)


def from_threads(rank, world_size):
    groups = [dist.new_group(list(range(world_size))) for _ in range(4)]
    failures = []

    def drive(number, group):
        try:
            for step in range(50):
                tensor = torch.full((501,), float(rank + number + step))
                dist.all_reduce(tensor, group=group)
                expected = sum(r + number + step for r in range(world_size))
                assert torch.all(tensor == expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=item) for item in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_groups_used_concurrently_from_threads(communicator):
    run_pooled(from_threads, 3, env={"CGX_INNER_COMMUNICATOR_TYPE": communicator})


def two_jobs(rank, world_size):
    """Ranks 0, 1 are one job and ranks 2, 3 another: same ranks, same host, own stores."""
    job, rank_in_job = divmod(rank, 2)
    for _ in range(3):  # the same keys of the store each time, as under torchrun
        dist.init_process_group(
            "cgx",
            store=dist.PrefixStore(f"job{job}", store()),
            rank=rank_in_job,
            world_size=2,
        )
        for step in range(30):
            tensor = torch.full((10_000,), float(10 * job + rank_in_job + step))
            dist.all_reduce(tensor)
            assert torch.all(tensor == 20 * job + 1 + 2 * step)
        dist.destroy_process_group()
    return True


@pytest.mark.alone
def test_two_jobs_on_one_host_and_destroy_and_init_again():
    before = set(os.listdir("/dev/shm"))
    assert run_pooled(two_jobs, 4, backend=None) == [True] * 4
    left = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("cgx")}
    assert not left


def split_groups(rank, world_size):
    backend = torch_cgx._backend.backend_of()
    members = [0, 1] if rank < 2 else [2, 3]
    color = rank // 2
    part = backend.split_group(dist.PrefixStore(f"split{color}", store()), members, backend.options)
    tensor = torch.full((100,), float(rank))
    part.allreduce([tensor]).wait()
    assert torch.all(tensor == sum(members))
    assert part.size() == 2 and part.rank() == rank % 2


def test_split():
    run_pooled(split_groups, 4)


def device_mesh(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name in ("replicate", "shard"):
        tensor = torch.full((100,), float(rank))
        dist.all_reduce(tensor, group=mesh.get_group(name))
        other = rank ^ (2 if name == "replicate" else 1)
        assert torch.all(tensor == rank + other)


def test_device_mesh():
    run_pooled(device_mesh, 4)


@pytest.mark.parametrize("backend", ["cpu:cgx", "cpu:cgx,cuda:cgx", "cgx"])
def test_device_strings(backend):
    assert run_pooled(device_string, 2, backend=backend) == ["cgx"] * 2


def device_string(rank, world_size):
    tensor = torch.full((100,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.all(tensor == 3)
    return dist.group.WORLD._get_backend(torch.device("cpu")).name()


def cuda_only(rank, world_size):
    tensor = torch.full((100,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.all(tensor == 3)
    names = [dist.group.WORLD._get_backend(torch.device(d)).name() for d in ("cpu", "cuda")]
    tensor = torch.full((100,), float(rank + 1))
    return names


def test_cgx_for_cuda_beside_gloo_for_cpu():
    assert run_pooled(cuda_only, 2, backend="cpu:gloo,cuda:cgx") == [["gloo", "cgx"]] * 2


def test_cgx_for_cpu_beside_nccl_for_cuda_parses():
    import torch.distributed.distributed_c10d as c10d

    config = c10d.BackendConfig(dist.Backend("cpu:cgx,cuda:nccl"))
    assert config.get_device_backend_map() == {"cpu": "cgx", "cuda": "nccl"}


def timeouts(rank, world_size):
    group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    backend = torch_cgx._backend.backend_of(group)
    if rank == 0:
        with pytest.raises(torch_cgx.TimeoutError, match="rank 0 waited .* for rank 1"):
            dist.all_reduce(torch.ones(1000), group=group)
        with pytest.raises(torch_cgx.TimeoutError):  # the first cause, at once
            dist.all_reduce(torch.ones(1000), group=group)
    else:
        threading.Event().wait(2.5)
        with pytest.raises(torch_cgx.CgxError):
            dist.all_reduce(torch.ones(1000), group=group)
    assert backend.options._timeout == datetime.timedelta(seconds=1)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)  # other groups are not touched
    assert torch.all(tensor == world_size)


def test_a_slow_peer_is_a_timeout_and_other_groups_live_on():
    run_pooled(timeouts, 2)
