"""The measuring loop of one rank.

For every size, every method is verified once (which also warms it up: connections, buffers, plans),
and then every repetition runs all methods one after another, so that a slow phase of the machine
meets all of them. The order turns by one from repetition to repetition.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import _stores
from benchmarks._check import Reference, contribution, fingerprint
from benchmarks._methods import STAGES, Method, Variant, make_methods

_TIMEOUT = timedelta(seconds=120)
# Calls per sample: more where one is about as short as the skew with which ranks leave a barrier.
Calls = Sequence[tuple[int, int]]  # bytes up to which, and calls
_CALLS: Calls = ((16 << 10, 20), (256 << 10, 5))
# Short calls vary most, and cost least to repeat.
_SHORT, _MORE_REPEATS = 64 << 10, 3


@dataclass(frozen=True)
class Job:
    """What all ranks measure. sizes: bytes of fp32; seconds: of each size go on with repetitions at
    least so long; calls: per sample, in a row.
    """

    ranks: int
    sizes: list[int]
    repeats: int
    variants: list[Variant] = field(default_factory=list)
    bucket_size: int = 512
    bf16: bool = True
    peers: list[str] = field(default_factory=list)
    seconds: float = 0.0
    calls: Calls = _CALLS

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        fields = json.loads(text)
        return Job(**fields | {"variants": [Variant(**one) for one in fields["variants"]]})


def calls_per_sample(nbytes: int, ranks: int, table: Calls = _CALLS) -> int:
    """How often a method runs between two looks at the clock. A sum run again and again grows by
    the number of ranks each time; it has to stay within fp32.
    """
    growth = math.floor(100 / math.log2(ranks))
    return next((min(calls, growth) for limit, calls in table if nbytes <= limit), 1)


def measure_rank(rank: int, job: Job, port: int, result: str) -> None:
    """Runs one rank of `job`; rank 0 writes what was measured as JSON into the file `result`.

    port: of a TCPStore on the loopback interface.
    """
    torch.set_num_threads(1)
    store = _stores.join(port, _TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.ranks, timeout=_TIMEOUT)
    try:
        methods = make_methods(job.variants, job.bucket_size, job.bf16, job.peers)
        measured = [measure_size(rank, job, methods, nbytes) for nbytes in job.sizes]
        if rank == 0:
            Path(result).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


def measure_size(rank: int, job: Job, methods: list[Method], nbytes: int) -> dict[str, Any]:
    """Verifies and times the methods for one size. Collective; what all ranks measured."""
    x = contribution(rank, nbytes // 4)
    y = torch.empty_like(x)
    reference = Reference(job.ranks, x.numel(), job.bucket_size)
    checks = [_verify(method, reference, x, y) for method in methods]

    calls = calls_per_sample(nbytes, job.ranks, job.calls)
    times: list[list[float]] = [[] for _ in methods]
    counted: list[list[dict[str, float]]] = [[] for _ in methods]
    copies = []
    sums = []
    for repetition in _repetitions(job, nbytes):
        copies.append(_roof_seconds(lambda: y.copy_(x), calls))
        sums.append(_roof_seconds(lambda: y.add_(x), calls))
        for turn in range(len(methods)):
            i = (turn + repetition) % len(methods)
            before = methods[i].counted()
            times[i].append(_sample(methods[i], x, y, calls))
            after = methods[i].counted()
            counted[i].append({name: after[name] - before[name] for name in after})

    mine = {"times": times, "copies": copies, "sums": sums, "counted": counted}
    gathered: list[Any] = [None] * job.ranks
    dist.all_gather_object(gathered, mine)
    rows = []
    for i, method in enumerate(methods):
        rows.append(
            {
                "method": method.name,
                "carrier": method.carrier,
                "bits": method.bits,
                **checks[i],
                "seconds": _slowest([per_rank["times"][i] for per_rank in gathered]),
                **_per_call(method, [r["counted"][i] for r in gathered], job.ranks, nbytes),
            }
        )
    copy = _slowest([per_rank["copies"] for per_rank in gathered])
    add = _slowest([per_rank["sums"] for per_rank in gathered])
    return {
        "bytes": nbytes,
        "calls_per_sample": calls,
        "copy_seconds": copy,
        "add_seconds": add,
        "rows": rows,
    }


def _repetitions(job: Job, nbytes: int) -> Iterator[int]:
    """Numbers of repetitions, equally many on all ranks."""
    start = time.monotonic()
    least = job.repeats * (_MORE_REPEATS if nbytes <= _SHORT else 1)
    for repetition in itertools.count():
        if repetition >= least:
            go_on = torch.tensor([time.monotonic() - start < job.seconds])
            dist.broadcast(go_on, 0)
            if not go_on.item():
                return
        yield repetition


def _verify(
    method: Method, reference: Reference, x: torch.Tensor, y: torch.Tensor
) -> dict[str, Any]:
    y.copy_(x)
    method.run(y)
    inside, error = reference.compare(y, method.bound(reference), method.mean)
    answers: list[Any] = [None] * reference.world_size
    dist.all_gather_object(answers, (fingerprint(y), inside, error))
    return {
        "equal": len({answer[0] for answer in answers}) == 1,
        "within_bound": all(answer[1] for answer in answers),
        "relative_error": max(answer[2] for answer in answers),
    }


def _sample(method: Method, x: torch.Tensor, y: torch.Tensor, calls: int) -> float:
    """Seconds per call on this rank, from the barrier to the end of the last call."""
    y.copy_(x)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        method.run(y)
    return (time.perf_counter() - start) / calls


def _roof_seconds(run: Callable[[], object], calls: int) -> float:
    """Seconds per call of something on this rank's own memory, while all other ranks do it, too."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _slowest(per_rank: list[list[float]]) -> list[float]:
    return [max(samples) for samples in zip(*per_rank, strict=True)]


def _per_call(
    method: Method, counted: list[list[dict[str, float]]], ranks: int, nbytes: int
) -> dict[str, Any]:
    """Wire bytes (of the rank that sends most) and seconds by stage (mean over the ranks, median
    over the repetitions), per call. counted: of every rank and repetition.
    """
    if not counted[0][0]:
        sent = method.wire_bytes(ranks, nbytes)
        return {"wire_bytes": sent, "wire_source": method.wire_source, "stages": None}
    sent = max(c["bytes_sent"] / c["calls"] for of_rank in counted for c in of_rank)
    stages = {
        stage: statistics.median(
            statistics.fmean(c[f"seconds_{stage}"] / c["calls"] for c in repetition)
            for repetition in zip(*counted, strict=True)
        )
        for stage in STAGES
    }
    return {"wire_bytes": sent, "wire_source": method.wire_source, "stages": stages}
