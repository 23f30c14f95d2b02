"""How long work on a CUDA device takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], object]


class Clock(Protocol):
    def seconds(self, work: Work, calls: int) -> float:
        """Of one of `calls` calls that are put on the current stream one behind the other."""
        ...


class Events:
    """Between two events on the stream: what the host costs does not count, as long as it is ahead
    of the device.
    """

    def seconds(self, work: Work, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls


class Wall:
    """From an idle device to an idle device: where there are no events that measure."""

    def seconds(self, work: Work, calls: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls
