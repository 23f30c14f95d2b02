"""Buckets that are longer than the group's messages, over real communicators: they work at every
size, whether the group has them or a call.
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

SIZES = (1, 5902, 30_001, 70_000)
SPEC = {"bits": 8, "bucket_size": 30_000}
# Episode 275 of the stress program with seed 20261122 is the first one.
GROUPS = [
    {"shm_segment_kb": 17, "segment_kb": 16, "cross_reduction": "RING", "intra_compress": "0"},
    {"shm_segment_kb": 16, "segment_kb": 1, "fusion_buffer_mb": 1},
    {"inner_communicator": "GLOO", "shm_segment_kb": 16, "segment_kb": 1, "fusion_buffer_mb": 1},
]


def inputs(size: int, n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(n, generator=generator) for _ in range(size)]


def all_sizes(rank: int, world_size: int, hosts: str) -> int:
    os.environ["CGX_HOST_ID"] = hosts[rank]
    several = len(set(hosts)) > 1
    compared = 0
    for number, given in enumerate(GROUPS):
        across = ("cross_reduction", "intra_compress")  # means something else on one host
        given = {k: v for k, v in given.items() if several or k not in across}
        reductions = ("AUTO",) if several or number > 0 else ("SRA", "RING")
        for reduction in reductions:
            options = {**given, "inner_reduction": reduction}
            own = dist.new_group(pg_options=torch_cgx.Options(**options, **SPEC))
            asked = dist.new_group(pg_options=torch_cgx.Options(**options))
            for n in SIZES:
                tensors = inputs(world_size, n)
                x, y = tensors[rank].clone(), tensors[rank].clone()
                dist.all_reduce(x, group=own)
                torch_cgx.all_reduce(y, group=asked, config=SPEC)
                layers = [(n // 3, None), (n - n // 3, {**SPEC, "bits": 4})]
                z = tensors[rank].clone()
                torch_cgx.all_reduce(z, group=asked, layers=layers)
                if n > 16 and rank == n % world_size:  # smaller ones are exact
                    group = {
                        "hosts": list(hosts) if several else None,
                        "options": torch_cgx.Options(**options),
                    }
                    name = given.get("cross_reduction", "AUTO") if several else reduction
                    group["algorithm"] = name.lower()
                    found = torch_cgx.simulate(tensors, config=SPEC, **group).result
                    assert torch.equal(x, found) and torch.equal(y, found), (options, n)
                    found = torch_cgx.simulate(tensors, layers=layers, **group).result
                    assert torch.equal(z, found), (options, n)
                    compared += 1
                shards = torch.cat([t[: n // 3] for t in tensors])
                out = torch.empty(n // 3)
                torch_cgx.reduce_scatter_single(out, shards.clone(), group=asked, config=SPEC)
                wanted = world_size * shards.view(world_size, -1)[rank]
                step = (shards.max() - shards.min()) * world_size / 255 if n > 2 else 0.0
                assert torch.all((out - wanted).abs() <= 2 * step), (options, n)
                whole = torch.empty(n * world_size)
                torch_cgx.all_gather_single(whole, tensors[rank], group=asked, config=SPEC)
                for part, sent in zip(whole.view(world_size, -1), tensors, strict=True):
                    step = (sent.max() - sent.min()) / 255
                    assert torch.all((part - sent).abs() <= step), (options, n)
            for group in (own, asked):
                dist.destroy_process_group(group)
    return compared


@pytest.mark.parametrize("hosts", ["aaa", "bba", "abc"])
def test_every_size(hosts: str) -> None:
    assert sum(run_pooled(all_sizes, 3, hosts, timeout=100)) >= 9
