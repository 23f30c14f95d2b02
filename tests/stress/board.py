"""What each rank is doing right now, in memory that outlives it: ranks write, the driver reads."""

from __future__ import annotations

import dataclasses
import mmap
import struct
import time

_FORMAT = struct.Struct("<qqqqd")
PHASES = ("idle", "init", "group", "start", "wait", "check", "destroy", "close", "done")


@dataclasses.dataclass(frozen=True)
class Place:
    """step, call: where in the program (-1: before). started: the last step whose first collective
    may have reached other ranks. since: time.monotonic().
    """

    step: int
    phase: str
    call: int
    started: int
    since: float


class Board:
    """One slot per process; a slot has one writer."""

    def __init__(self, slots: int):
        self._memory = mmap.mmap(-1, slots * _FORMAT.size)

    def write(self, slot: int, step: int, phase: str, call: int = -1, started: int = -2) -> None:
        at = slot * _FORMAT.size
        row = (step, PHASES.index(phase), call, started, time.monotonic())
        _FORMAT.pack_into(self._memory, at, *row)

    def read(self, slot: int) -> Place:
        step, phase, call, started, since = _FORMAT.unpack_from(self._memory, slot * _FORMAT.size)
        return Place(step, PHASES[phase], call, started, since)
