"""One rank of benchmarks/hosts.py: times the methods, then counts what leaves its host.

    python -m benchmarks._hosts_rank JOB RESULT

JOB: file with a `HostsJob` as JSON; RESULT: file that rank 0 writes, JSON, too. Started on every
host with the variables that torchrun sets, or by mpirun.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import _measure
from benchmarks._check import contribution
from benchmarks._methods import CgxGroup, Gloo, Hook, Method
from tests.hosts.network import read_own

_TIMEOUT = timedelta(seconds=300)
# Enough calls that what the barriers around them send does not count.
_COUNTED_BYTES, _MOST_COUNTED_CALLS = 8 << 20, 256


@dataclass(frozen=True)
class HostsVariant:
    """One configuration of cgx: bits per value (32: exact), further torch_cgx.Options, and how
    these are named in tables.
    """

    bits: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        bits = "exact" if self.bits == 32 else f"{self.bits} bit"
        return " ".join(filter(None, ["cgx", bits, self.label]))


@dataclass(frozen=True)
class HostsJob:
    """What all ranks measure. sizes: bytes of fp32."""

    sizes: list[int]
    repeats: int
    bucket_size: int
    variants: list[HostsVariant]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> HostsJob:
        fields = json.loads(text)
        variants = [HostsVariant(**one) for one in fields.pop("variants")]
        return HostsJob(variants=variants, **fields)


class CgxOnHosts(CgxGroup):
    """One across hosts. With exact sums inside them fewer values are rounded: the bound of two
    roundings holds all the same.
    """

    def __init__(self, variant: HostsVariant, bucket_size: int):
        options = {"bits": variant.bits, "bucket_size": bucket_size, **variant.options}
        carrier = str(options.get("cross_communicator", "GLOO")).lower()
        super().__init__(variant.name, carrier, options)


def _measure_job(job: HostsJob) -> list[dict[str, Any]]:
    methods: list[Method] = [Gloo(), Hook(torch.float16)]
    methods += [CgxOnHosts(variant, job.bucket_size) for variant in job.variants]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    hosts: list[Any] = [None] * ranks
    dist.all_gather_object(hosts, os.uname().nodename)
    # One rank of each host reads the counters of its link.
    reads = hosts.index(hosts[rank]) == rank
    timing = _measure.Job(
        ranks=ranks, sizes=job.sizes, repeats=job.repeats, bucket_size=job.bucket_size
    )
    measured = []
    for nbytes in job.sizes:
        size = _measure.measure_size(rank, timing, methods, nbytes)
        x = contribution(rank, nbytes // 4)
        for row, method in zip(size["rows"], methods, strict=True):
            row["link_bytes_by_host"] = _link_bytes(method, x, reads)
            row["staging_bytes"] = method.staging_bytes()
        measured.append(size)
        if rank == 0:
            seconds = ", ".join(f"{r['method']} {min(r['seconds']):.4f}" for r in size["rows"])
            print(f"{nbytes} bytes: {seconds}", flush=True)
    return measured


def _link_bytes(method: Method, x: torch.Tensor, reads: bool) -> list[float]:
    """Bytes that left each host per call, in frames on its link; hosts in the order of ranks."""
    y = x.clone()
    ranks = dist.get_world_size()
    calls = min(max(_COUNTED_BYTES // (4 * x.numel()), 1), _MOST_COUNTED_CALLS)
    # Sums of sums grow: back to the start before they leave the range of fp32 (see _measure).
    fresh = _measure.calls_per_sample(4, ranks)

    def run() -> None:
        for call in range(calls):
            if call % fresh == 0:
                y.copy_(x)
            method.run(y)

    sent = _sent(run, reads) - _sent(lambda: None, reads)
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, sent / calls if reads else None)
    return [one for one in gathered if one is not None]


def _sent(call: Callable[[], None], reads: bool) -> int:
    def counter() -> int:
        dist.barrier()
        value = read_own().sent_bytes if reads else 0
        dist.barrier()
        return value

    before = counter()
    call()
    return counter() - before


def main(job_file: str, result_file: str) -> None:
    torch.set_num_threads(1)
    if "RANK" not in os.environ:  # started by mpirun
        from torch_cgx import launch

        launch.setup()
    job = HostsJob.from_json(Path(job_file).read_text())
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        start = time.monotonic()
        measured = _measure_job(job)
        if dist.get_rank() == 0:
            seconds = round(time.monotonic() - start, 1)
            Path(result_file).write_text(json.dumps({"seconds": seconds, "sizes": measured}))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
