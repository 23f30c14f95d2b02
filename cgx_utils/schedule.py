"""Bits by step: the warm-up of a `CGXState`."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any

from torch_cgx import _config
from torch_cgx._warnings import warn

Given = Mapping[int, int] | Callable[[int], int]


class Schedule:
    """The bits of each step, in place of the setting `bits`; overrides with bits stay.

    given: {step: bits}, each entry from its step on, the first one 0, as in {0: 32, 500: 4}; or a
    function of the step. Steps count from 0. ValueError and TypeError name what is not allowed, of
    a function when its step comes.
    """

    def __init__(self, given: Given):
        self._function: Callable[[int], int] | None = None
        self.entries: dict[int, int] = {}
        if isinstance(given, Mapping):
            self.entries = _checked(given)
        elif callable(given):
            self._function = given
        else:
            raise TypeError(f"schedule={given!r}; allowed: {{step: bits}}, a function of the step")
        self._known: tuple[int, int] | None = None  # of a function, the last step and its bits

    def bits(self, step: int) -> int:
        if self._function is None:
            first = bisect.bisect_right([*self.entries], step) - 1
            return [*self.entries.values()][first]
        if self._known is None or self._known[0] != step:
            self._known = step, _bits(self._function(step), f"schedule({step})")
        return self._known[1]

    def __str__(self) -> str:
        if self._function is None:
            return str(self.entries)
        return str(getattr(self._function, "__qualname__", self._function))

    def state_dict(self, step: int) -> dict[str, Any]:
        """{"bits": of the next step, "entries": {step: bits}, None for a function}, the steps as
        texts. The number of the step is in another section.
        """
        entries = {str(first): bits for first, bits in self.entries.items()}
        return {"bits": self.bits(step), "entries": None if self._function else entries}

    def compare(self, saved: Mapping[str, Any]) -> None:
        """Warns if a checkpoint was written with other entries. This object keeps its own."""
        mine = {str(first): bits for first, bits in self.entries.items()}
        if saved["entries"] is not None and mine and dict(saved["entries"]) != mine:
            warn(
                f"CGXState: the restored state has the schedule {dict(saved['entries'])}, this one "
                f"{mine}, which is used"
            )


def check(section: Any) -> None:
    """ValueError unless Schedule.state_dict() can have written it."""
    known = isinstance(section, Mapping) and set(section) == {"bits", "entries"}
    if not known or not isinstance(section["entries"], (Mapping, type(None))):
        raise ValueError(
            f"load_state_dict of a CGXState: schedule is {section!r}; allowed: a dict with bits "
            "and entries"
        )


def _checked(given: Mapping[Any, Any]) -> dict[int, int]:
    for step in given:
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(f"schedule has the step {step!r}; allowed: integers >= 0")
    if min(given, default=-1) != 0:
        raise ValueError(f"schedule={dict(given)}; allowed: steps from 0 on, with an entry for 0")
    return {step: _bits(given[step], f"schedule[{step}]") for step in sorted(given)}


def _bits(bits: Any, where: str) -> int:
    return int(_config.check("bits", bits, where))
