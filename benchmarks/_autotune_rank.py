"""One rank of benchmarks/autotune.py: times fixed widths, an autotuned group and gloo in turns.

    python -m benchmarks._autotune_rank JOB RESULT

JOB: file with an `AutotuneJob` as JSON; RESULT: file that rank 0 writes, JSON, too. Started with
the variables that torchrun sets.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks._check import Reference, contribution, fingerprint
from benchmarks._methods import GLOO, Gloo, Method, WidthGroup

TIMEOUT = timedelta(seconds=120)
# Calls between two looks at the clock: more where a call is short beside the way out of a barrier.
_CALLS = ((16 << 10, 16), (256 << 10, 4))
_MOST_CALLS_OF_GLOO = 2  # which is what nobody chooses from, and slow
_FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 3, 10, 2000
# Short calls vary by more, since threads wake each other up: they get so many times as long.
_SHORT, _LONGER = 256 << 10, 3
CHOICES = ("exact", "half", "asked")
# "again": a second group that is exact. What the two differ by is the noise.
METHODS = (*CHOICES, "tuned", "again", GLOO)


@dataclass(frozen=True)
class AutotuneJob:
    """What all ranks measure. communicator: inside the host; "" between hosts. sizes: bytes of
    fp32; seconds: to be spent on each, three times as many on short messages over Gloo; settle:
    calls of a size that the autotuned group has made when the measurement begins, at most; number:
    of the processes, which make their groups in another order each time.
    """

    communicator: str
    sizes: list[int]
    seconds: float
    settle: int
    bits: int
    bucket_size: int
    number: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> AutotuneJob:
        return AutotuneJob(**json.loads(text))


class _Group(WidthGroup):
    def __init__(self, name: str, job: AutotuneJob, bits: int, autotune: bool = False):
        options = {"bits": bits, "bucket_size": job.bucket_size, "autotune": autotune}
        if job.communicator:
            options["inner_communicator"] = job.communicator
        super().__init__(name, job.communicator or "GLOO", options)


class Sampler:
    """Runs methods in turns: every round all of them once, in an order drawn anew, so that none
    always follows the same one.
    """

    def __init__(self, methods: list[Method], x: torch.Tensor, calls: int):
        self._methods = methods
        self._x, self._y = x, torch.empty_like(x)
        self._calls = [
            min(calls, _MOST_CALLS_OF_GLOO) if isinstance(method, Gloo) else calls
            for method in methods
        ]
        self._draw = random.Random(x.numel())  # the same on all ranks

    def rounds(self, number: int) -> list[list[tuple[float, float]]]:
        """By method: when this rank began a sample, and when it had ended it, in seconds a call."""
        times: list[list[tuple[float, float]]] = [[] for _ in self._methods]
        for _ in range(number):
            order = self._draw.sample(range(len(self._methods)), len(self._methods))
            for i in order:
                times[i].append(self._sample(self._methods[i], self._calls[i]))
        return times

    def _sample(self, method: Method, calls: int) -> tuple[float, float]:
        self._y.copy_(self._x)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            method.run(self._y)
        return start / calls, time.perf_counter() / calls


def seconds_of(per_rank: list[list[tuple[float, float]]]) -> list[float]:
    """Of each sample: from when the last rank began to when the last one had ended. The ranks'
    clock is this machine's, also where they are on several hosts of it.
    """
    return [
        max(end for _, end in ranks) - max(start for start, _ in ranks)
        for ranks in zip(*per_rank, strict=True)
    ]


def calls_per_sample(nbytes: int) -> int:
    return next((calls for limit, calls in _CALLS if nbytes <= limit), 1)


def _right(method: Method, reference: Reference, x: torch.Tensor) -> bool:
    """Whether all ranks get the same sum, and it is near enough."""
    y = x.clone()
    method.run(y)
    inside, _ = reference.compare(y, method.bound(reference), method.mean)
    answers: list[Any] = [None] * reference.world_size
    dist.all_gather_object(answers, (fingerprint(y), inside))
    return len({answer[0] for answer in answers}) == 1 and all(answer[1] for answer in answers)


def _counts(group: Any) -> dict[str, int]:
    stats = torch_cgx.stats(group)
    return {name: int(stats[f"tuned_{name}"]) for name in CHOICES}


def _everyone(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def measure_size(job: AutotuneJob, methods: list[Method], nbytes: int) -> dict[str, Any]:
    """Times the methods for one size. Collective; the same on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = contribution(rank, nbytes // 4)
    reference = Reference(ranks, x.numel(), job.bucket_size)
    tuned = next(method for method in methods if method.name == "tuned")
    assert isinstance(tuned, _Group)
    before = sum(_counts(tuned.group).values())
    checks = [_right(method, reference, x) for method in methods]
    calls = calls_per_sample(nbytes)
    # It settles beside its choices alone; gloo and the second exact group are only measured.
    Sampler([one for one in methods if one.name in (*CHOICES, "tuned")], x, calls).rounds(
        (job.settle - 1) // calls
    )
    settled = sum(_counts(tuned.group).values()) - before
    sampler = Sampler(methods, x, calls)
    start_counts = _counts(tuned.group)
    spent = _seconds_tuning(tuned)
    start = time.monotonic()
    times = sampler.rounds(_FIRST_ROUNDS)
    each = max(_everyone((time.monotonic() - start) / _FIRST_ROUNDS))
    seconds_here = job.seconds * (_LONGER if nbytes <= _SHORT and job.communicator != "SHM" else 1)
    rounds = min(max(math.ceil(seconds_here / each), _LEAST_ROUNDS), _MOST_ROUNDS)
    for mine, more in zip(times, sampler.rounds(rounds - _FIRST_ROUNDS), strict=True):
        mine += more
    per_rank = _everyone(times)
    counts = _counts(tuned.group)
    seconds = {
        method.name: seconds_of([one[i] for one in per_rank]) for i, method in enumerate(methods)
    }
    rows = torch_cgx.tuning(tuned.group)["classes"]  # type: ignore[index]
    (known,) = [row for row in rows if row["bytes"] == nbytes]
    return {
        "bytes": nbytes,
        "calls_per_sample": calls,
        "settled_after": settled,
        "right": all(checks),
        "seconds": seconds,
        "taken": {name: counts[name] - start_counts[name] for name in CHOICES},
        "tuning_seconds": _seconds_tuning(tuned) - spent,
        "predicted": known["predicted"],
        "measured": known["measured"],
        "choice": known["choice"],
    }


def _seconds_tuning(tuned: _Group) -> float:
    return float(torch_cgx.stats(tuned.group)["seconds_tuning"])


def measure_job(job: AutotuneJob) -> dict[str, Any]:
    """Collective, in a process group of all ranks; the same on all ranks."""
    # That small ones are compressed is what is measured.
    warnings.filterwarnings("ignore", message="cgx: all_reduce of")
    bits = {"exact": 32, "half": 16, "asked": job.bits, "tuned": job.bits, "again": 32}
    order = [METHODS[(i + job.number) % len(METHODS)] for i in range(len(METHODS))]
    methods: list[Method] = [
        Gloo() if name == GLOO else _Group(name, job, bits[name], autotune=name == "tuned")
        for name in order
    ]
    sizes = [measure_size(job, methods, nbytes) for nbytes in job.sizes]
    tuned = methods[order.index("tuned")]
    assert isinstance(tuned, _Group)
    return {**tuned.tuning(), "sizes": sizes}


def main(job_file: str, result_file: str) -> None:
    torch.set_num_threads(1)
    job = AutotuneJob.from_json(Path(job_file).read_text())
    dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        measured = measure_job(job)
        if dist.get_rank() == 0:
            Path(result_file).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
