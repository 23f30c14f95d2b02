"""What a group costs: creation, first call and destruction, cgx and gloo in turns; and many groups
alive at once, in processes of their own: time, memory, sockets and threads of each.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks._collectives_rounds import GROUPS, Row, compared, new_group, slowest
from benchmarks._ranks import everyone

STEPS = ("creation", "first all_reduce", "destruction")


def measure_turns(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank: so many `turns` of each, groups of all ranks. Samples by step."""
    order, taken = list(fields["order"]), {step: {name: [] for name in GROUPS} for step in STEPS}
    for name in order:
        _one(name)
    for turn in range(fields["turns"]):
        for k in range(len(order)):
            name = order[(turn + k) % len(order)]
            for step, seconds in zip(STEPS, _one(name), strict=True):
                taken[step][name].append(seconds)
    return {"rows": [{"operation": step, "seconds": slowest(taken[step])} for step in STEPS]}


def _one(name: str) -> tuple[float, float, float]:
    """Seconds of each step on this rank, all ranks starting together."""
    x = torch.zeros(1)
    dist.barrier()
    start = time.perf_counter()
    group = new_group(name)
    created = time.perf_counter()
    dist.all_reduce(x, group=group)
    used = time.perf_counter()
    dist.barrier()
    destroyed = time.perf_counter()
    dist.destroy_process_group(group)
    del group  # the last reference, with which gloo's threads end
    return created - start, used - created, time.perf_counter() - destroyed


def to_rows(rounds: list[list[Row]], place: Row) -> list[Row]:
    return [
        place | {"operation": same[0]["operation"]} | compared([one["seconds"] for one in same])
        for same in zip(*rounds, strict=True)
    ]


# ---- many groups alive


@dataclass(frozen=True)
class Usage:
    """What this process holds. memory: bytes resident, shared memory included."""

    memory: int
    sockets: int
    threads: int
    files: int

    @staticmethod
    def now() -> Usage:
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        targets = []
        for file in os.listdir("/proc/self/fd"):
            try:
                targets.append(os.readlink(f"/proc/self/fd/{file}"))
            except OSError:  # the folder itself, closed again
                continue
        sockets = sum(target.startswith("socket:") for target in targets)
        memory = int(status["VmRSS"].split()[0]) << 10
        return Usage(memory, sockets, int(status["Threads"]), len(targets))

    def per_group(self, before: Usage, number: int) -> dict[str, float]:
        return {
            name: (getattr(self, name) - getattr(before, name)) / number
            for name in ("memory", "sockets", "threads", "files")
        }


def measure_many(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank: `groups` groups of all ranks over `backend`, made, used once each, destroyed. The
    numbers are per group, of the rank that holds most; left: after destruction.
    """
    backend, number = fields["backend"], fields["groups"]
    _one(backend)  # libraries are loaded, threads of the process started
    before, x = Usage.now(), torch.zeros(1)
    start = time.perf_counter()
    groups = [new_group(backend) for _ in range(number)]
    created = time.perf_counter()
    made = Usage.now()
    for group in groups:
        dist.all_reduce(x, group=group)
    used = time.perf_counter()
    holds = Usage.now()
    del group
    while groups:
        dist.destroy_process_group(groups.pop(0))
    gone = time.perf_counter()
    dist.barrier()
    seconds = [created - start, used - created, gone - used]
    mine = {
        "seconds": [one / number for one in seconds],
        "made": made.per_group(before, number),
        "used": holds.per_group(before, number),
        "left": Usage.now().per_group(before, number),
    }
    gathered = everyone(mine)
    row: Row = {"backend": backend, "groups": number}
    for step, times in zip(STEPS, zip(*(g["seconds"] for g in gathered), strict=True), strict=True):
        row[f"{step.replace(' ', '_')}_seconds"] = max(times)
    for when in ("made", "used", "left"):
        row[when] = {name: max(g[when][name] for g in gathered) for name in mine[when]}
    return {"rows": [row]}
