"""The Monitor: records of what compression does while a model trains."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.monitor import records
from cgx_utils.monitor.delivery import Delivery, checked_every, listed
from cgx_utils.monitor.delivery import Sink as Sink
from cgx_utils.monitor.formats import Handle, Watch
from cgx_utils.monitor.observer import Clock, Observer
from cgx_utils.state import CGXState

if TYPE_CHECKING:
    from torch_cgx.activations import Compression, compress_saved

_TIMED = 25  # steps of a record whose exposed communication is measured, at least where it has them


class Monitor:
    """Makes a record every `every` steps, on all ranks, and gives it to the sinks on rank 0.

    target: a DistributedDataParallel instance with `cgx_hook` registered: steps are then found by
        themselves, a step being a backward pass that communicates. Or a process group of the
        backend cgx, for FSDP2 and loops of one's own: call step() after each step. None: the
        default group.
    every: steps in a record. With DDP a step of each (every / number of buckets) compares a sample
        of one bucket, at most 65536 values, with its exact mean, for which all ranks send the
        sample exactly; and some 25 steps of a record measure the exposed communication.
    sinks: what is called with each record (`cgx_utils.monitor`: Table, JsonLines, Csv,
        TensorBoard; or a function of a dict); None: a Table on stderr. A sink that raises is
        dropped, with a warning; the training goes on.
    saved: what compresses saved tensors (torch_cgx.activations.compress_saved, or the result of
        compress). A record then has the errors of the tensors that its last step saved; other
        steps are not measured. And it has the bytes that these tensors had, and now have.
    formats: what emulates formats (the result of torch_cgx.emulate.apply). A record then has what
        they did to this rank's tensors in its last step, which alone is measured. With DDP a step
        ends with its backward pass: what the optimizer casts is of the step before.
    clock: seconds, for tests.

    All ranks of the group make it, with equal `every`: ranks that disagree raise an error.
    ValueError: a bad `every`, a target without cgx_hook, or with a Monitor already. close() ends
    it; it is a context manager, too. Not thread-safe.
    """

    def __init__(
        self,
        target: DistributedDataParallel | dist.ProcessGroup | None = None,
        every: int = 100,
        sinks: Iterable[Sink] | Sink | None = None,
        *,
        saved: compress_saved | Compression | None = None,
        formats: Handle | None = None,
        clock: Clock = time.perf_counter,
    ):
        self.every = checked_every(every)
        self._steps = 0  # the observer counts the ones that it skips: step_number
        self.last: dict[str, Any] | None = None  # the last record
        self._clock = clock
        self._saved = saved
        self._formats: Watch | None = None
        self._state = _state_of(target)
        group = _group_of(target)
        self._backend, device = _backend_of(group, target)
        _check_ranks(group, device, every)
        self._rank, self._size = self._backend.rank(), self._backend.size()
        self._delivery = Delivery(listed(sinks) if self._rank == 0 else [])
        self._window = 0  # steps since the last record
        self._observer: Observer | None = None
        if self._state is not None:
            if self._state.observer is not None:
                raise ValueError("this model has a Monitor already; close() that one first")
            self._observer = Observer(
                self._state.names_of,
                self._sum_exactly,
                self._ended,
                self._size,
                clock,
                functools.partial(_may_compare, weakref.ref(target)),
            )
            self._look_ahead(self._observer)
        if formats is not None:
            self._formats = Watch(formats)
        if self._state is not None:
            self._state.observer = self._observer
        self._measure(every == 1)
        self._group = group
        self._own = dict.fromkeys(records.COUNTERS, 0.0)  # of the samples, since the last record
        self._closed = False
        self._exposed: list[float] = []
        self._counted = records.counters_of(self._backend.stats())
        self._begin = clock()

    @property
    def step_number(self) -> int:
        """Steps so far."""
        return self._steps + (0 if self._observer is None else self._observer.passed)

    def step(self) -> None:
        """A step is over. For a process group only: with DDP it does nothing, as steps are found
        by themselves.
        """
        if self._observer is None and not self._closed:
            self._count(None)

    def close(self) -> None:
        """A last record of the steps since the one before, then the sinks' close(). Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._take_passed()
        if self._window:
            self._record()
        if self._state is not None and self._state.observer is self._observer:
            self._state.observer = None
        self._measure(False)
        if self._formats is not None:
            self._formats.close()
        self._delivery.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- steps

    def _ended(self, exposed: float | None) -> None:
        if not self._closed:
            self._count(exposed)

    def _count(self, exposed: float | None) -> None:
        self._take_passed()
        self._steps += 1
        self._window += 1
        if exposed is not None:
            self._exposed.append(exposed)
        if self._window == self.every:
            self._record()
        if self._observer is not None:
            self._look_ahead(self._observer)
        self._measure(self._window + 1 == self.every)

    def _measure(self, on: bool) -> None:
        """Whether the next step measures saved tensors and formats."""
        for measured in (self._saved, self._formats):
            if measured is not None:
                measured.measure = on

    def _take_passed(self) -> None:
        if self._observer is not None:
            self._steps += self._observer.passed
            self._window += self._observer.passed
            self._observer.passed = 0

    def _look_ahead(self, observer: Observer) -> None:
        """Which step is the next that measures something, and what. Decided from the numbers of the
        steps alone, so alike on all ranks.
        """
        sampled = max(1, self.every // max(1, observer.buckets))
        timed = max(1, self.every // _TIMED)
        number = self._steps + 1
        # The last step has the record, and the one before switches on what is measured in it.
        measures = self._saved is not None or self._formats is not None
        # DDP lays out its buckets anew after the first step.
        while number > 2 and number % sampled and number % timed and number % self.every:
            if measures and (number + 1) % self.every == 0:
                break
            number += 1
        observer.due = number % sampled == 0
        observer.left = number - self._steps - 1

    def _sum_exactly(self, values: torch.Tensor) -> None:
        """Sums a sample over the ranks, in place. Its cost is kept out of the records."""
        from torch_cgx import _config, all_reduce

        before = records.counters_of(self._backend.stats())
        all_reduce(values, group=self._group, config={"bits": _config.EXACT_BITS})
        spent = records.difference(records.counters_of(self._backend.stats()), before)
        self._own = {name: self._own[name] + spent[name] for name in records.COUNTERS}

    def _record(self) -> None:
        now, counted = self._clock(), records.counters_of(self._backend.stats())
        steps, seconds = self._window, (now - self._begin) / self._window
        whole = steps == self.every  # its last step was measured
        difference = records.difference(counted, self._counted)
        spent = {name: (difference[name] - self._own[name]) / steps for name in records.COUNTERS}
        exposed = sum(self._exposed) / len(self._exposed) if self._exposed else None
        decided = {} if self._state is None else self._state.choices()
        if decided:
            raw = sum(one.raw_bytes for one in decided.values())
            sent = sum(one.sent_bytes() for one in decided.values())
            ratio: float | None = raw / sent if sent else None
        else:
            ratio = spent["bytes_raw"] / spent["bytes_sent"] if spent["bytes_sent"] else None
        self.last = {
            "version": records.VERSION,
            "step": self._steps,
            "steps": steps,
            "seconds_per_step": seconds,
            "exposed_seconds": exposed,
            "exposed": exposed / seconds if exposed is not None and seconds > 0 else None,
            **spent,
            "ratio": ratio,
            "communicator": self._backend.stats()["communicator"],
            "errors": {} if self._observer is None else dict(self._observer.errors),
            "saved_errors": {} if self._saved is None else self._saved.errors,
            "saved_bytes": None if self._saved is None else self._saved.bytes_saved,
            "kept_bytes": None if self._saved is None else self._saved.bytes_kept,
            "formats": {} if self._formats is None or not whole else self._formats.taken(),
            "bits": {name: one.bits for name, one in decided.items()},
            "codec": {name: one.codec_name for name, one in decided.items()},
            "rank": self._rank,
            "world_size": self._size,
        }
        self._begin, self._counted, self._window, self._exposed = now, counted, 0, []
        self._own = dict.fromkeys(records.COUNTERS, 0.0)
        self._delivery.send(self.last)


def _state_of(target: Any) -> CGXState | None:
    """The state of the hook of a DDP instance; None for a group."""
    if target is None or isinstance(target, dist.ProcessGroup):
        return None
    if not isinstance(target, DistributedDataParallel):
        raise TypeError(
            f"Monitor of a {type(target).__name__}; allowed: a DistributedDataParallel with "
            "cgx_hook, a ProcessGroup of the backend cgx, None for the default group"
        )
    states = [state for _, state in getattr(target, "_comm_hooks", ())]
    found = [state for state in states if isinstance(state, CGXState)]
    if not found:
        raise ValueError(
            "the model has no CGXState registered: model.register_comm_hook(CGXState(), cgx_hook) "
            "comes before Monitor(model)"
        )
    return found[0]


def _may_compare(found: Callable[[], Any]) -> bool:
    """False in `join` with find_unused_parameters: a rank that has joined then reduces the map of
    used parameters after its last bucket, where the others compare first.
    """
    model = found()
    joins = getattr(getattr(model, "_join_config", None), "enable", False)
    return not (joins and model.find_unused_parameters)


def _group_of(target: Any) -> dist.ProcessGroup:
    if isinstance(target, DistributedDataParallel):
        state = _state_of(target)
        assert state is not None
        return state.group or target.process_group
    if target is not None:
        return target
    if not dist.is_initialized():
        raise RuntimeError('there is no process group yet: dist.init_process_group("cgx") first')
    return dist.distributed_c10d._get_default_group()


def _backend_of(group: dist.ProcessGroup, target: Any) -> tuple[Any, torch.device]:
    from torch_cgx._backend import backend_of
    from torch_cgx._collectives import _device_of

    if isinstance(target, DistributedDataParallel):
        device = next(target.parameters()).device
        return backend_of(group, device), device
    try:
        return backend_of(group, "cpu"), torch.device("cpu")
    except ValueError:  # "cpu:gloo,cuda:cgx"
        device = _device_of(group)
        return backend_of(group, device), device


def _check_ranks(group: dist.ProcessGroup, device: torch.device, every: int) -> None:
    """ValueError, on all ranks, unless all have made a Monitor with the same `every`. A rank that
    calls something else is noticed by the group.
    """
    mine = torch.tensor([every], dtype=torch.int64, device=device)
    numbers = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(numbers, mine, group=group)
    found = [int(one.item()) for one in numbers]
    if len(set(found)) > 1:
        raise ValueError(f"every differs between ranks: {found}, by rank; allowed: equal values")
