"""The Monitor of a training that emulates formats and has no process group of the backend cgx."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist

from cgx_utils.monitor import records
from cgx_utils.monitor.delivery import Delivery, Sink, checked_every, listed
from cgx_utils.monitor.formats import Handle, Watch
from cgx_utils.monitor.observer import Clock


class FormatMonitor:
    """Makes a record of what formats do to a training's tensors every `every` steps::

        handle = emulate.apply(model, optimizer, "mxfp4")
        with FormatMonitor(handle, every=100) as monitor:
            for batch in loader:
                loss_of(model, batch).backward()
                optimizer.step()
                monitor.step()

    handle: what torch_cgx.emulate.apply returned. Its `measure` is on in the last step before each
        record only, as measuring takes time, and off after close().
    every: steps in a record.
    sinks: what is called with each record, as of `Monitor`; None: a Table on stderr. Where
        torch.distributed has a group, only rank 0 calls its sinks.
    clock: seconds, for tests.

    A record has version, step, steps, seconds_per_step and formats (records.py). In a training with
    DistributedDataParallel and cgx_hook, `Monitor(model, formats=handle)` has them beside its own.

    TypeError, ValueError: a bad `every`, something else than a handle, one that has a Monitor
    already. close() ends it; it is a context manager, too. Not thread-safe.
    """

    def __init__(
        self,
        handle: Handle,
        every: int = 100,
        sinks: Iterable[Sink] | Sink | None = None,
        *,
        clock: Clock = time.perf_counter,
    ):
        self.every = checked_every(every)
        self.step_number = 0  # steps so far
        self.last: dict[str, Any] | None = None  # the last record
        first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
        self._delivery = Delivery(listed(sinks) if first else [])
        self._watch = Watch(handle)
        self._watch.measure = every == 1
        self._window = 0  # steps since the last record
        self._closed = False
        self._clock = clock
        self._begin = clock()

    def step(self) -> None:
        """A step is over: called after each step of the optimizer."""
        if self._closed:
            return
        self.step_number += 1
        self._window += 1
        if self._window == self.every:
            self._record(self._watch.taken())
        self._watch.measure = self._window + 1 == self.every

    def close(self) -> None:
        """A last record of the steps since the one before, of which no formats are known, then the
        sinks' close(). Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._window:
            self._record({})
        self._watch.close()
        self._delivery.close()

    def __enter__(self) -> FormatMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record(self, formats: dict[str, dict[str, float]]) -> None:
        now = self._clock()
        self.last = {
            "version": records.VERSION,
            "step": self.step_number,
            "steps": self._window,
            "seconds_per_step": (now - self._begin) / self._window,
            "formats": formats,
        }
        self._begin, self._window = now, 0
        self._delivery.send(self.last)
