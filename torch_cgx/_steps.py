"""Numbers that tell apart the random numbers of calls with equal steps on one group.

A call with a step draws its random numbers from (seed, step, tensor number, rank, stage, element).
The high half of a tensor number says who counts the steps: 0 for the caller of a collective, others
for a `CGXState`, a `DiLoCo`, an `fsdp.compress`. They count from 1, in the order in which they
reduce over a group first, which is the same on all ranks; checkpoints hold their numbers. The
largest is that of messages between two ranks, which each rank counts by itself. The low half tells
apart the calls or buffers of one step.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch_cgx._warnings import warn

if TYPE_CHECKING:
    from torch_cgx._C import ProcessGroupCGX

MOST = 2**63 - 1
_HALF = 32  # bits
_MESSAGES = (2**31 - 1) << _HALF  # number of the first message of a step


class _Group:
    """What is known of one process group. step, calls: of explicit calls, the last step and its
    calls so far. sent_step, sent: the same of messages; messages: all of them. counters: by number.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.calls = 0
        self.sent_step: int | None = None
        self.sent = 0
        self.messages = 0
        self.counters: dict[int, weakref.ref[Any]] = {}


_groups: dict[int, _Group] = {}  # by serial number


def check_step(step: Any) -> None:
    """TypeError, ValueError unless `step` is None or an integer of 0 to 2^63 - 1."""
    if step is None:
        return
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"step={step!r}; allowed: integers of 0 to 2**63 - 1, None")
    if not 0 <= step <= MOST:
        raise ValueError(f"step={step}; allowed: integers of 0 to 2**63 - 1, None")


def number_of_call(backend: ProcessGroupCGX, step: int) -> int:
    """The tensor number of an explicit call: its number among the calls with this step."""
    group = _groups.setdefault(backend.serial, _Group())
    if step != group.step:
        group.step, group.calls = step, 0
    group.calls += 1
    return group.calls - 1


def key_of_message(backend: ProcessGroupCGX, step: int | None) -> tuple[int, int]:
    """Step and tensor number of the next message that this rank sends over the group. step: None
    for the number of the message.
    """
    group = _groups.setdefault(backend.serial, _Group())
    group.messages += 1
    if step is None:
        return group.messages - 1, _MESSAGES
    if step != group.sent_step:
        group.sent_step, group.sent = step, 0
    group.sent += 1
    return step, _MESSAGES + group.sent


def key_of_simulated_message(sequence: int, step: int | None) -> tuple[int, int]:
    """As `key_of_message` of message number `sequence`, or of the first one of a step."""
    return (sequence, _MESSAGES) if step is None else (step, _MESSAGES + 1)


def key_of_simulated_call(sequence: int, step: int | None) -> tuple[int, int]:
    """What gives the operators of codecs the random numbers of the engine: in call number
    `sequence` of a group, or in the first one of a step (number_of_step, csrc/codec/ops/random.h).
    """
    if step is None:
        return sequence, 0
    return _splitmix64(_splitmix64(_MASK) ^ step), 0


_MASK = 2**64 - 1


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class StepCounter:
    """A count of steps that keys random numbers, for checkpoints. owner: what it belongs to, in
    warnings. Not thread-safe.
    """

    def __init__(self, owner: str):
        self.step = 0
        self.number: int | None = None  # None: not used yet
        self._owner = owner
        self._begun: set[int] = set()  # what this step has reduced: ids, of parameters for example
        self._group = -1  # serial number of the last one
        self._warned = False

    def begin(self, reduced: set[int]) -> None:
        """Called with the ids of what is reduced next. An id that this step has had already begins
        a new step, as after a backward pass that has failed.
        """
        if not self._begun.isdisjoint(reduced):
            self.end()
        self._begun |= reduced

    def step_of(self, reduced: set[int]) -> int:
        """The number of the step that `begin` would count these ids to."""
        return self.step + (not self._begun.isdisjoint(reduced))

    def end(self) -> None:
        """Everything of the step is reduced."""
        self.step += 1
        self._begun = set()

    def abandon(self) -> None:
        """A step that has begun does not go on: its model is gone."""
        if self._begun:
            self.end()

    def tensor_number(self, backend: ProcessGroupCGX, buffer: int = 0) -> int:
        """The tensor number of a call or buffer of the step, on the group of this backend."""
        counters = _groups.setdefault(backend.serial, _Group()).counters
        holder = None if self.number is None else counters.get(self.number)
        if holder is None or holder() is not self:
            self._join(backend.serial, counters)
        assert self.number is not None
        return self.number << _HALF | buffer

    def state_dict(self) -> dict[str, int]:
        """step: the next. number: 0 where none is known yet."""
        return {"step": self.step + bool(self._begun), "number": self.number or 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """state: checked (`check`)."""
        self.step, self.number = state["step"], state["number"] or None
        self._begun, self._group = set(), -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_owner": self._owner, **self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_owner"])  # type: ignore[misc]
        self.load_state_dict(state)

    def _join(self, serial: int, counters: dict[int, weakref.ref[Any]]) -> None:
        if self.number is None:
            self.number = 1 + max(counters, default=0)
        if self._group == serial and not self._warned:
            self._warned = True
            warn(
                f"{self._owner} and another object that reduces over the same process group have "
                f"the number {self.number}, so they draw equal random numbers; load the states of "
                "all of them from one checkpoint, before their first step"
            )
        counters[self.number] = weakref.ref(self)
        self._group = serial


def check(section: Any, where: str) -> None:
    """TypeError, ValueError unless StepCounter.state_dict() can have written the section."""
    if not isinstance(section, dict) or set(section) != {"step", "number"}:
        found = sorted(section) if isinstance(section, dict) else repr(section)
        raise ValueError(f"{where} holds {found}; allowed: a dict with step, number")
    for key, most in (("step", MOST), ("number", 2**31)):
        value = section[key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{where}: {key}={value!r}; allowed: integers of 0 to {most}")
        if not 0 <= value <= most:
            raise ValueError(f"{where}: {key}={value}; allowed: integers of 0 to {most}")
