"""The training example without its communication, as `benchmarks.hosts_training` runs it.

    RANK=... python -m benchmarks._compute_only RESULT SCRIPT [ARGUMENT]...

Runs examples/SCRIPT with gloo, but for the gradients: every bucket that DistributedDataParallel
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
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


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
