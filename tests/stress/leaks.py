"""Whether many collectives and many groups leave anything in a process: descriptors, threads,
mapped shared memory, memory.

Memory is what the process has written and holds after a collection, sampled as the loop goes. What
counts is by how much it grows after the first quarter, when one-time growth is over, but for the
largest step: a huge page may come at any time. A single odd sample does not matter.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import RankPool
from tests.stress.held import held, resident_memory

SAMPLES = 40
# Bytes per call or group that are no leak. A page more or less in the allocator is 4096 / calls.
PER_CALL = 24.0
# torch's own bookkeeping of a destroyed group and the strings of its store stay below this.
PER_GROUP = 1000.0
# The last 2000 calls stay on record, in torch's flight recorder and in cgx's own: 0.5 to 1 KB each,
# by which a process grows until it has made as many. Full from the beginning on, they do not.
SHORT_RECORDS = {"TORCH_FR_BUFFER_SIZE": "16"}
# What all rounds of a loop together may grow by, however few they are.
UNNOTICED = 1 << 20
# calls, groups: the full counts, and those of a short run.
COUNTS = {"SHM": ((100_000, 1000), (20_000, 80)), "GLOO": ((100_000, 1000), (4_000, 40))}


def growth(samples: list[int], rounds: int) -> float:
    """Bytes per round in the steady state, at least 0."""
    several = len(samples) // 8
    later = samples[len(samples) - 6 * several :]
    # The low median is a sample: a step amid some of them is one step.
    levels = [
        statistics.median_low(later[first : first + several])
        for first in range(0, len(later), several)
    ]
    steps = [after - before for before, after in itertools.pairwise(levels)]
    steady = max(0, sum(steps) - max(steps))
    return steady * len(samples) / (rounds * several * (len(steps) - 1))


def all_reduces(rank: int, world_size: int, calls: int) -> dict[str, Any]:
    """Small ones on a group of their own, exact and compressed, one in ten with a future."""
    dist.destroy_process_group(dist.new_group(list(range(world_size))))
    before = held()
    group = dist.new_group(list(range(world_size)))
    tensor = torch.ones(64)
    config = {"bits": 4, "bucket_size": 64}

    def some(group: Any, count: int) -> None:
        for number in range(count):
            if number % 10 == 9:
                work = dist.all_reduce(tensor, group=group, async_op=True)
                work.get_future().wait()
            elif number % 10 == 4:
                torch_cgx.all_reduce(tensor, group=group, config=config)
            else:
                dist.all_reduce(tensor, group=group)
            tensor.fill_(1)

    some(group, max(1000, calls // 20))
    samples = []
    for _ in range(SAMPLES):
        some(group, calls // SAMPLES)
        samples.append(resident_memory())
    # The threads that run callbacks are started as needed, and end with the group.
    dist.destroy_process_group(group)
    del group
    return {"before": before, "after": held(), "bytes": growth(samples, calls), "rounds": calls}


def groups(rank: int, world_size: int, rounds: int) -> dict[str, Any]:
    """Made, used, destroyed."""
    members = list(range(world_size))

    def some(count: int) -> None:
        for number in range(count):
            group = dist.new_group(members)
            tensor = torch.full((100,), float(rank + number))
            dist.all_reduce(tensor, group=group)
            dist.broadcast(torch.ones(3, dtype=torch.int64), 0, group=group)  # the inner backend's
            assert torch.all(tensor == sum(members) + number * world_size)
            dist.destroy_process_group(group)

    some(max(10, rounds // 20))
    before, samples = held(), []
    for _ in range(SAMPLES):
        some(max(1, rounds // SAMPLES))
        samples.append(resident_memory())
    return {"before": before, "after": held(), "bytes": growth(samples, rounds), "rounds": rounds}


def complaints(what: str, results: list[dict[str, Any]], most: float) -> list[str]:
    found = []
    for rank, result in enumerate(results):
        if any(result["after"][key] > result["before"][key] for key in result["before"]):
            found.append(f"{what}, rank {rank}: {result['before']} before, {result['after']} after")
        if result["bytes"] > max(most, UNNOTICED / result["rounds"]):
            found.append(
                f"{what}, rank {rank}: memory grows by {result['bytes']:.0f} bytes each time"
            )
    return found


def measure(full: bool) -> tuple[dict[str, object], list[str]]:
    """Both loops over both communicators: numbers for the summary, and what is wrong."""
    summary: dict[str, object] = {}
    wrong: list[str] = []
    for communicator, counts in COUNTS.items():
        calls, rounds = counts[0 if full else 1]
        pool = RankPool()
        try:
            env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator, **SHORT_RECORDS}
            for what, job, count, most in (
                ("all-reduces", all_reduces, calls, PER_CALL),
                ("groups", groups, rounds, PER_GROUP),
            ):
                results = pool.run(job, 2, count, timeout=1800.0, group_timeout=60.0, env=env)
                name = f"{count} {what} over {communicator}"
                wrong += complaints(name, results, most)
                summary[name] = f"{max(r['bytes'] for r in results):.1f} bytes each"
        finally:
            pool.close()
    return summary, wrong
