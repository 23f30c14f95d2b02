"""Follows the buckets of one DDP instance through `cgx_hook`: exposure and sampled errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch

from cgx_utils.monitor.sample import Sample

Clock = Callable[[], float]


class Bucket(Protocol):
    """The methods of torch's GradBucket that are used here."""

    def index(self) -> int: ...
    def is_last(self) -> bool: ...


class Observer:
    """What `cgx_hook` tells of each bucket, before and after it starts to reduce it.

    The exposed communication of a step lasts from the end of its gradient computation to the end of
    its backward pass, in which DDP waits for the buckets and hands the gradients over. Both moments
    are callbacks of autograd's engine: the first is queued by the hook of the last bucket, the
    second by the first, after DDP's own. Both cost some microseconds, so most steps are passed by.
    A rank that has joined (DDP's `join`) reduces zeros without a backward pass: it counts the step
    and takes part in the comparison, and has no exposed seconds.

    names_of: parameters -> their names. reduce: sums a flat fp32 tensor over the ranks, exactly, in
    place. ended: called after each backward pass that communicated and was not passed by, with the
    exposed seconds. compares: whether this step may compare a sample; alike on all ranks.
    """

    def __init__(
        self,
        names_of: Callable[[list[torch.Tensor]], list[str]],
        reduce: Callable[[torch.Tensor], None],
        ended: Callable[[float | None], None],
        world_size: int,
        clock: Clock,
        compares: Callable[[], bool] = lambda: True,
    ):
        self.errors: dict[str, float | None] = {}  # relative, by name, the last measured
        self.buckets = 0  # of the last whole step
        self.due = False  # whether the next step that is not passed by samples a bucket
        self.left = 0  # steps that come first, and are passed by
        self.passed = 0  # of these, since `ended` was called
        self._turn = 0  # the next bucket that is sampled
        self._names_of, self._reduce, self._ended = names_of, reduce, ended
        self._world_size = world_size
        self._clock = clock
        self._compares = compares
        self._last = False  # whether the bucket under way ends a step that is not passed by
        self._samples: dict[tuple[int, ...], Sample] = {}
        self._pending: tuple[Sample, torch.Tensor, torch.Tensor] | None = None
        self._computed: Any = None

    def before(self, bucket: Any, parameters: list[torch.Tensor], buffer: torch.Tensor) -> None:
        """Called by the hook with a bucket that has this rank's gradients."""
        last = bucket.is_last()
        self._last = last and not self.left
        if self.left:
            self.left -= last
            self.passed += last
            return
        index = bucket.index()
        if index == 0:
            self._pending = None  # of a backward pass that failed
        if self.due and self._pending is None and index >= self._turn and self._compares():
            self._take(index, parameters, buffer)
        if last:
            self.buckets = index + 1

    def after(self, buffer: torch.Tensor, overlaps: bool = True) -> None:
        """Called by the hook when all that it sends for the bucket is under way. overlaps: whether
        the backward pass goes on meanwhile.
        """
        if not self._last:
            return
        self._last = False
        if not overlaps or torch._C._current_graph_task_id() == -1:  # no backward pass
            self._end(None)
            return
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._gradients_computed(buffer.device))

    def _take(self, index: int, parameters: list[torch.Tensor], buffer: torch.Tensor) -> None:
        if buffer.layout != torch.strided or not buffer.is_floating_point():
            return
        if any(parameter.is_complex() for parameter in parameters):
            return
        key = tuple(map(id, parameters))  # the model keeps them
        if key not in self._samples:
            sizes = [parameter.numel() for parameter in parameters]
            self._samples[key] = Sample(self._names_of(parameters), sizes, buffer.device)
        sample = self._samples[key]
        self._pending = sample, buffer, sample.values(buffer)
        self._turn = index + 1

    def _gradients_computed(self, device: torch.device) -> None:
        self._computed = _moment(device, self._clock)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self._backward_ended(device))

    def _backward_ended(self, device: torch.device) -> None:
        self._end(_seconds_between(self._computed, _moment(device, self._clock)))

    def _end(self, exposed: float | None) -> None:
        if self._pending is not None:
            sample, buffer, mine = self._pending
            self._pending = None
            self._compare(sample, buffer, mine)
        if self.due and self._turn >= self.buckets:
            self._turn = 0
        self.due = False
        self._ended(exposed)

    def _compare(self, sample: Sample, buffer: torch.Tensor, mine: torch.Tensor) -> None:
        """Errors of the reduced values in `buffer`, against the exact mean of what ranks had."""
        self._reduce(mine)
        exact = mine.double() / self._world_size
        for name, error in sample.errors(sample.values(buffer).double(), exact).items():
            self.errors[name] = error if error is not None and math.isfinite(error) else None


def _moment(device: torch.device, clock: Clock) -> Any:
    """Seconds, or an event of a CUDA device, whose work the host does not wait for."""
    if device.type != "cuda":
        return clock()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
