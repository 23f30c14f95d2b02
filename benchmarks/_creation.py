"""What creating and destroying a group costs, cgx against gloo.

    from benchmarks._creation import creation_times

    creation_times(2, 50)    # {"cgx": seconds, "gloo": seconds, ...}, by ranks that are processes
    creation_times(2, 10, groups=300)    # so many groups alive at once

Both backends take turns in the same processes, beside a default group of gloo over the same store.
Times are of the slowest rank, the median of the repeats. A group counts as created when
`new_group` has returned on all ranks, and as destroyed when its object is gone, too.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks._ranks import on_hosts, on_this_host
from torch_cgx.testbed.bed import Hosts

BACKENDS = ("cgx", "gloo")
_WARM_UP = 2
_TIMEOUT = 600.0  # seconds, on hosts


def creation_times(
    ranks: int, repeats: int, groups: int = 1, bed: Hosts | None = None
) -> dict[str, Any]:
    """Seconds to create a group of all ranks, by backend: {"cgx": s, "gloo": s, "destroy": {...},
    "held": {...}}.

    groups: how many are created one after the other and alive together; times are of one of them.
    held: descriptors, sockets and threads that one group adds to a process. bed: hosts of `ranks`
    ranks each; none: this host.
    """
    job = {"repeats": repeats, "groups": groups}
    if bed is not None:
        return on_hosts(bed, measure, job, ranks, _TIMEOUT)
    return on_this_host(measure, job, ranks)


def measure(job: dict[str, int]) -> dict[str, Any]:
    """The measurement, on one rank; `creation_times` says what it returns."""
    import torch_cgx  # noqa: F401

    created: dict[str, list[float]] = {name: [] for name in BACKENDS}
    destroyed: dict[str, list[float]] = {name: [] for name in BACKENDS}
    held: dict[str, dict[str, float]] = {}
    for repeat in range(_WARM_UP + job["repeats"]):
        for name in BACKENDS:
            seconds, more, kept = _once(name, job["groups"] if repeat >= _WARM_UP else 1)
            if repeat >= _WARM_UP:
                created[name].append(seconds)
                destroyed[name].append(more)
                held[name] = kept
    result: dict[str, Any] = {name: statistics.median(created[name]) for name in BACKENDS}
    result["destroy"] = {name: statistics.median(destroyed[name]) for name in BACKENDS}
    result["held"] = held
    return result


def _once(backend: str, groups: int) -> tuple[float, float, dict[str, float]]:
    gc.collect()
    dist.barrier()
    before = _held()
    start = time.perf_counter()
    made: list[Any] = [dist.new_group(backend=backend) for _ in range(groups)]
    created = _slowest(time.perf_counter() - start) / groups
    kept = {what: (count - before[what]) / groups for what, count in _held().items()}
    dist.barrier()
    start = time.perf_counter()
    while made:
        dist.destroy_process_group(made.pop())
    destroyed = _slowest(time.perf_counter() - start) / groups
    return created, destroyed, kept


def _slowest(seconds: float) -> float:
    value = torch.tensor(seconds, dtype=torch.float64, device="cpu")
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def _held() -> dict[str, int]:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except OSError:  # of the look itself
            continue
    return {
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
