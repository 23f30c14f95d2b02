"""One rank of benchmarks/exact.py: times exact all-reduces of cgx, of gloo, and of gloo again.

    python -m benchmarks._exact_rank JOB RESULT

JOB: file with an `ExactJob` as JSON; RESULT: file that rank 0 writes, JSON, too. Started on every
host with the variables that torchrun sets.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import _measure
from benchmarks._methods import CgxGroup, Gloo, Method

CONTROL = "gloo again"
EXACT = "cgx exact"
_TIMEOUT = timedelta(seconds=300)
# Up to 16 MiB a sample is several calls in a row, as of the buckets of a model: the skew with which
# ranks leave a barrier, and the first call after another group's, weigh little.
_CALLS = ((16 << 10, 20), (256 << 10, 10), (1 << 20, 6), (4 << 20, 4), (16 << 20, 2))
# Bytes where the two are nearest to each other: measured so many times as long.
_NEAR, _LONGER = (256 << 10, 4 << 20), 3


@dataclass(frozen=True)
class ExactJob:
    """What all ranks measure. sizes: bytes of fp32; repeats, seconds: of each size, at least
    (three times as many seconds from 256 KiB to 4 MiB, where the two are nearest to each other);
    settings: torch_cgx.Options of each cgx group, beside the communicator's; number: of the
    processes, which make their groups in another order each time.
    """

    sizes: list[int]
    repeats: int
    seconds: float
    settings: list[dict[str, Any]]
    number: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> ExactJob:
        return ExactJob(**json.loads(text))


class GlooAgain(Gloo):
    """A second group of gloo, which does what the first one does: how far two medians of the same
    thing lie apart is what this measurement cannot tell.
    """

    name = CONTROL


class CgxExact(CgxGroup):
    """An exact group over Gloo, on one host as between several."""

    def __init__(self, settings: dict[str, Any]):
        label = " ".join(f"{name}={value}" for name, value in settings.items())
        options = {"bits": 32, "inner_communicator": "GLOO", "cross_communicator": "GLOO"}
        super().__init__(" ".join(filter(None, [EXACT, label])), "gloo", options | settings)


def _of(job: _measure.Job, nbytes: int) -> _measure.Job:
    near = _NEAR[0] <= nbytes <= _NEAR[1]
    return dataclasses.replace(job, seconds=job.seconds * (_LONGER if near else 1))


def main(job_file: str, result_file: str) -> None:
    torch.set_num_threads(1)
    job = ExactJob.from_json(Path(job_file).read_text())
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        start = time.monotonic()
        make = [Gloo, GlooAgain, *(functools.partial(CgxExact, one) for one in job.settings)]
        if job.number % 2:  # and so another one follows each
            make.reverse()
        first = job.number // 2 % len(make)
        methods: list[Method] = [one() for one in make[first:] + make[:first]]
        timing = _measure.Job(
            ranks=dist.get_world_size(),
            sizes=job.sizes,
            repeats=job.repeats,
            seconds=job.seconds,
            calls=_CALLS,
        )
        rank = dist.get_rank()
        sizes = [_measure.measure_size(rank, _of(timing, s), methods, s) for s in job.sizes]
        if rank == 0:
            seconds = round(time.monotonic() - start, 1)
            Path(result_file).write_text(json.dumps({"seconds": seconds, "sizes": sizes}))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
