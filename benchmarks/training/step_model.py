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

    RANK=... python -m benchmarks.training.step_model RESULT SCRIPT [ARGUMENT]...

measures these. It runs examples/SCRIPT with gloo, except for the gradients: every bucket that DDP
hands to its communication hook comes back at once, as it is. So the ranks compute what they compute
in training, on the same machine at the same time, and DDP's own work is in it; each goes on with
gradients of its own, so losses mean nothing. Each rank writes RESULT.RANK, as JSON:
`step_seconds`, one per step, and `buckets`, for each step [bytes, seconds from the step's begin to
its hook] of each bucket in the order in which they became ready.
"""

# No `from __future__ import annotations`: register_comm_hook() compares the annotations of the hook
# as objects.

import importlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
    """From what `main` wrote, of every rank. ValueError where it was too
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


# ---- a rank that computes only


class Clock:
    """Notes when steps end and when buckets are ready."""

    def __init__(self) -> None:
        self.step_seconds: list[float] = []
        self.buckets: list[list[tuple[int, float]]] = [[]]
        self._begin = 0.0

    def start(self) -> None:
        self._begin = time.perf_counter()

    def step(self) -> None:
        now = time.perf_counter()
        self.step_seconds.append(now - self._begin)
        self.buckets.append([])
        self._begin = now

    def hook(self, _: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: gives the bucket back."""
        buffer = bucket.buffer()
        nbytes = buffer.numel() * buffer.element_size()
        self.buckets[-1].append((nbytes, time.perf_counter() - self._begin))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


def main(argv: list[str]) -> None:
    result, script, *arguments = argv
    sys.path.insert(0, str(EXAMPLES))
    common: Any = importlib.import_module("common")
    meter: Any = importlib.import_module("meter")
    clock = Clock()
    real_parallel, real_start, real_step = common.data_parallel, meter.Meter.start, meter.Meter.step

    def data_parallel(*args: Any) -> Any:
        ddp = real_parallel(*args)
        ddp.register_comm_hook(None, clock.hook)
        return ddp

    def start(self: Any) -> None:
        dist.barrier()
        real_start(self)
        clock.start()

    def step(self: Any, loss: torch.Tensor) -> None:
        real_step(self, loss)
        clock.step()

    common.data_parallel = data_parallel
    meter.Meter.start, meter.Meter.step = start, step
    # The ranks' weights differ, as they must.
    meter.require_equal_weights = lambda model, ranks: None
    importlib.import_module(Path(script).stem).main(arguments)
    content = {"step_seconds": clock.step_seconds, "buckets": clock.buckets[:-1]}
    Path(f"{result}.{os.environ['RANK']}").write_text(json.dumps(content))


if __name__ == "__main__":
    main(sys.argv[1:])
