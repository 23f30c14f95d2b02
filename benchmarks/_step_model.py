"""How long a training step may take, from what computing alone takes and the bytes on the link.

Without overlap a step lasts as long as its computation and then its bytes on the link:

    serial = compute + wire,    wire = bytes that leave a host per step / rate of its link

DistributedDataParallel overlaps: it hands over bucket k when its gradients are ready, r_k after the
step's begin, while the backward pass goes on. One link carries the buckets one after another, each
w_k = wire * (its bytes / bytes of all), and what follows the backward pass (optimizer, next batch)
waits for the last:

    e_0 = 0,  e_k = max(e_(k-1), r_k) + w_k
    overlapped = e_last + (compute - r_last)

compute and r_k are measured with all ranks busy at the same time and nothing sent, each as the
slowest rank of a step has it, since a step of training waits for that one; medians over the steps.
Left out, and so counted as overhead of a method: latency, its codec, its messages' processor time
on this machine's shared cores.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Compute:
    """A step without communication. seconds: of the slowest rank, median over steps; seconds_own:
    of rank 0 alone; bucket_bytes and ready_seconds: of DDP's buckets, in the order of the hooks.
    """

    seconds: float
    seconds_own: float
    bucket_bytes: list[int]
    ready_seconds: list[float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compute_of(ranks: list[dict[str, Any]]) -> Compute:
    """From what benchmarks/_compute_only.py wrote, of every rank. ValueError where it was too
    short: DDP lays out its buckets anew after the first step.
    """
    sizes = [[nbytes for nbytes, _ in step] for step in ranks[0]["buckets"]]
    kept = [i for i, step in enumerate(sizes) if i > 0 and step == sizes[-1]]
    if not kept or not sizes[-1]:
        raise ValueError(f"{len(sizes)} steps tell nothing of the buckets; at least 2 are needed")
    slowest = [max(rank["step_seconds"][i] for rank in ranks) for i in kept]
    ready = [
        statistics.median(max(rank["buckets"][i][k][1] for rank in ranks) for i in kept)
        for k in range(len(sizes[-1]))
    ]
    own = [ranks[0]["step_seconds"][i] for i in kept]
    return Compute(statistics.median(slowest), statistics.median(own), sizes[-1], ready)


def model(alone: Compute, wire_seconds: float) -> tuple[float, float]:
    """Seconds that a step is allowed without and with overlap."""
    total = sum(alone.bucket_bytes)
    end = 0.0
    for nbytes, ready in zip(alone.bucket_bytes, alone.ready_seconds, strict=True):
        end = max(end, ready) + wire_seconds * nbytes / total
    return alone.seconds + wire_seconds, end + alone.seconds - alone.ready_seconds[-1]
