"""One rank of benchmarks/crossover.py: times exact, 16 bits, the asked bits and an autotuned group.

    python -m benchmarks._crossover_rank JOB RESULT

JOB: file with a `CrossoverJob` as JSON; RESULT: file that rank 0 writes, JSON, too. Started with
the variables that torchrun sets.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _measure
from benchmarks._check import contribution
from benchmarks._methods import WidthGroup

_TIMEOUT = timedelta(seconds=120)
# Calls after which the choice for a class of messages has been made.
_SETTLED = 50
# "again": a second group that is exact. What the two differ by is the noise.
METHODS = ("exact", "half", "asked", "tuned", "again")
# Short calls vary more, and cost less.
_SHORT_BYTES, _MORE_REPEATS = 256 << 10, 4


@dataclass(frozen=True)
class CrossoverJob:
    """What both ranks measure. sizes: bytes of fp32."""

    sizes: list[int]
    repeats: int
    bits: int
    bucket_size: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> CrossoverJob:
        return CrossoverJob(**json.loads(text))


class _Group(WidthGroup):
    """A cgx group over whatever carries between the ranks. bits: asked for."""

    def __init__(self, name: str, bits: int, bucket_size: int, autotune: bool = False):
        options = {"bits": bits, "bucket_size": bucket_size, "autotune": autotune}
        super().__init__(name, "any", options)


def _settle(tuned: _Group, x: torch.Tensor) -> None:
    """Calls until the group has made up its mind about messages of this size."""
    y = x.clone()
    for _ in range(_SETTLED):
        y.copy_(x)
        tuned.run(y)


def _class_of(group: Any, nbytes: int) -> dict[str, Any]:
    """What the group knows of messages of this size."""
    rows = torch_cgx.tuning(group)["classes"]  # type: ignore[index]
    (row,) = [row for row in rows if row["bytes"] == nbytes]
    return row


def _measure_job(job: CrossoverJob) -> dict[str, Any]:
    fixed = {"exact": 32, "half": 16, "asked": job.bits}
    groups = [_Group(name, bits, job.bucket_size) for name, bits in fixed.items()]
    tuned = _Group("tuned", job.bits, job.bucket_size, autotune=True)
    again = _Group("again", 32, job.bucket_size)
    rank = dist.get_rank()
    sizes = []
    for nbytes in job.sizes:
        timing = _measure.Job(
            ranks=dist.get_world_size(),
            sizes=[nbytes],
            repeats=job.repeats * (_MORE_REPEATS if nbytes <= _SHORT_BYTES else 1),
            bucket_size=job.bucket_size,
        )
        _settle(tuned, contribution(rank, nbytes // 4))
        predicted = _class_of(tuned.group, nbytes)
        measured = _measure.measure_size(rank, timing, [*groups, tuned, again], nbytes)
        sizes.append(
            {
                "bytes": nbytes,
                "seconds": {row["method"]: row["seconds"] for row in measured["rows"]},
                "right": all(row["equal"] and row["within_bound"] for row in measured["rows"]),
                "predicted": predicted["predicted"],
                "tried": predicted["measured"],
                "choice": predicted["choice"],
            }
        )
    return {**tuned.tuning(), "sizes": sizes}


def main(job_file: str, result_file: str) -> None:
    torch.set_num_threads(1)
    job = CrossoverJob.from_json(Path(job_file).read_text())
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        start = time.monotonic()
        measured = _measure_job(job)
        measured["seconds"] = round(time.monotonic() - start, 1)
        if dist.get_rank() == 0:
            Path(result_file).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
