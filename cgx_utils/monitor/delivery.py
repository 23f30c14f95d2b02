"""Gives records to sinks, each of which may fail without harm to the training."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cgx_utils.monitor.sinks import Table
from torch_cgx._warnings import warn

Sink = Callable[[Mapping[str, Any]], Any]


class Delivery:
    """sinks: what is called with each record. One that raises is dropped, with a warning."""

    def __init__(self, sinks: Iterable[Sink]):
        self._sinks = list(sinks)

    def send(self, record: Mapping[str, Any]) -> None:
        for sink in list(self._sinks):
            self._call(sink, functools.partial(sink, record))

    def close(self) -> None:
        """The sinks' close(), where they have one. Idempotent."""
        for sink in list(self._sinks):
            self._call(sink, getattr(sink, "close", lambda: None))
        self._sinks = []

    def _call(self, sink: Sink, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            self._sinks.remove(sink)
            name = getattr(sink, "__qualname__", type(sink).__qualname__)
            warn(f"cgx: Monitor drops the sink {name}: {type(error).__name__}: {error}")


def listed(sinks: Iterable[Sink] | Sink | None) -> list[Sink]:
    """The argument `sinks` of a Monitor. TypeError: one cannot be called."""
    if sinks is None:
        return [Table()]
    found = [sinks] if callable(sinks) else list(sinks)
    for sink in found:
        if not callable(sink):
            raise TypeError(
                f"sinks holds {sink!r}; allowed: cgx_utils.monitor.Table, JsonLines, Csv, "
                "TensorBoard, functions of a record (a dict)"
            )
    return found


def checked_every(every: Any) -> int:
    """The argument `every` of a Monitor. TypeError, ValueError: no integer, or below 1."""
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every={every!r}; allowed: integers >= 1")
    if every < 1:
        raise ValueError(f"every={every}; allowed: integers >= 1")
    return every
