"""What each rank is doing right now, in memory that outlives it: ranks write, the driver reads."""

from __future__ import annotations

import dataclasses
import mmap
import struct
import time

_ROW = struct.Struct("<qqqqd")
_SLOT_BYTES = 8 + 2 * _ROW.size
_SLOT_WORDS = _SLOT_BYTES // 8
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


def _row_at(slot: int, count: int) -> int:
    return slot * _SLOT_BYTES + 8 + count % 2 * _ROW.size


class Board:
    """One slot per process; a slot has one writer, which may be killed at any instruction.

    A slot is a count of its rows and the last two rows: the count changes when the new row is
    whole. The count is an aligned word, which is stored at once, and which never comes round: a
    reader may be interrupted for as long as it likes.
    """

    def __init__(self, slots: int):
        self._memory = mmap.mmap(-1, slots * _SLOT_BYTES)
        self._words = memoryview(self._memory).cast("Q")

    def write(self, slot: int, step: int, phase: str, call: int = -1, started: int = -2) -> None:
        count = self._words[slot * _SLOT_WORDS] + 1
        row = (step, PHASES.index(phase), call, started, time.monotonic())
        _ROW.pack_into(self._memory, _row_at(slot, count), *row)
        self._words[slot * _SLOT_WORDS] = count

    def read(self, slot: int) -> Place:
        while True:
            count = self._words[slot * _SLOT_WORDS]
            row = _ROW.unpack_from(self._memory, _row_at(slot, count))
            if self._words[slot * _SLOT_WORDS] == count:
                step, phase, call, started, since = row
                return Place(step, PHASES[phase], call, started, since)
