"""One rank of benchmarks/overlap.py: all-reduces under torch's profiler, and its link's counters.

    python -m benchmarks._overlap_rank JOB RESULT

JOB: JSON of bytes (of fp32), bits (a list), calls, sample_seconds. Rank 0 writes RESULT: for every
number of bits the calls, each with `seconds`, `ranges` (by stage, lists of [begin, end] in seconds
since the call's begin) and `samples` ([seconds, bytes sent, bytes received]: the link's counters).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

import torch_cgx

STAGES = ("encode", "transfer", "decode")
_COUNTERS = Path("/sys/class/net/eth0/statistics")
_MARK = "overlap: clock"
# Before the call and after it: the link must be seen at rest.
_MARGIN_SECONDS = 0.004


class Sampler:
    """A thread that reads the link's counters again and again. The interface counts packets after
    the queue that shapes them, so what it counts has left.
    """

    def __init__(self, every: float):
        self.samples: list[tuple[float, int, int]] = []
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            open(_COUNTERS / "tx_bytes", "rb", buffering=0) as sent,
            open(_COUNTERS / "rx_bytes", "rb", buffering=0) as received,
        ):
            while not self._end.is_set():
                for file in (sent, received):
                    file.seek(0)
                values = int(sent.read()), int(received.read())
                self.samples.append((time.perf_counter(), *values))
                time.sleep(self._every)


def traced(x: torch.Tensor, group: dist.ProcessGroup, every: float) -> dict[str, Any]:
    """One all-reduce of `x`, as the file's head says."""
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler, Sampler(every) as sampler:
        # A range whose begin is known on both clocks: that of the profiler and ours.
        mark = time.perf_counter()
        with record_function(_MARK):
            pass
        time.sleep(_MARGIN_SECONDS)
        begin = time.perf_counter()
        dist.all_reduce(x, group=group)
        end = time.perf_counter()
        time.sleep(_MARGIN_SECONDS)
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    shift = mark - next(e.start_ns() for e in events if e.name() == _MARK) * 1e-9
    ranges: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for event in events:
        stage = event.name().removeprefix("cgx:")
        if stage not in ranges or stage == event.name():
            continue
        first = event.start_ns() * 1e-9 + shift - begin
        ranges[stage].append((first, first + event.duration_ns() * 1e-9))
    return {
        "seconds": end - begin,
        "ranges": {stage: sorted(found) for stage, found in ranges.items()},
        "samples": [(now - begin, sent, received) for now, sent, received in sampler.samples],
    }


def main(job_file: str, result_file: str) -> None:
    torch.set_num_threads(1)
    job = json.loads(Path(job_file).read_text())
    dist.init_process_group("cgx", timeout=timedelta(seconds=60))
    source = torch.randn(
        job["bytes"] // 4, generator=torch.Generator().manual_seed(dist.get_rank())
    )
    found = {}
    for bits in job["bits"]:
        group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=bits))
        dist.all_reduce(source.clone(), group=group)  # memory, plan and windows grow
        calls = [traced(source.clone(), group, job["sample_seconds"]) for _ in range(job["calls"])]
        found[str(bits)] = calls
    if dist.get_rank() == 0:
        Path(result_file).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
