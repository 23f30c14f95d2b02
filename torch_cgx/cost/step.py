"""The time of a training step; formulas: the package's docstring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_cgx.cost.allreduce import Cost


@dataclass(frozen=True)
class Compute:
    """A step without communication. seconds: of all of it. ready: when each bucket is, from the
    step's beginning, in the order of the buckets.
    """

    seconds: float
    ready: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(not 0 <= moment <= self.seconds for moment in self.ready):
            raise ValueError(f"ready={self.ready}; allowed: from 0 to seconds={self.seconds}")


@dataclass(frozen=True)
class Step:
    """seconds: of the step. exposed: communication that the backward pass does not hide, 0 to
    seconds. host_bytes: that leave a host.
    """

    seconds: float
    exposed: float
    host_bytes: float


def predict(compute: Compute, costs: Sequence[Cost], busy_cores: bool = False) -> Step:
    """costs: of the all-reduce of each bucket. busy_cores: the ranks' computation keeps all cores
    of a host busy, so that the work of the communication delays it.
    """
    if len(costs) != len(compute.ready):
        raise ValueError(
            f"{len(costs)} costs; allowed: one for each of {len(compute.ready)} buckets"
        )
    end = delay = 0.0
    for ready, cost in zip(compute.ready, costs, strict=True):
        end = max(end, ready + delay) + cost.seconds
        if busy_cores:
            delay += cost.work.processor
    last = compute.ready[-1] if compute.ready else 0.0
    # What was delayed by the last bucket is waited for anyway.
    seconds = max(end, last) + compute.seconds - last
    return Step(seconds, seconds - compute.seconds, sum(cost.host_bytes for cost in costs))
