"""Bits by step: the warm-up of a `CGXState`."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import Any

from torch_cgx import _config
from torch_cgx._warnings import warn

Given = Mapping[int, int] | Callable[[int], int]
FUNCTION = "a function"


class Schedule:
    """The bits of each step, in place of the setting `bits`; overrides with bits stay.

    given: {step: bits}, each entry from its step on, the first one 0, as in {0: 32, 500: 4}; or a
    function of the step. Steps count from 0. ValueError and TypeError name what is not allowed, of
    a function when its step comes.
    """

    def __init__(self, given: Given):
        self.given = given
        self._function: Callable[[int], int] | None = None
        self.entries: dict[int, int] = {}
        if isinstance(given, Mapping):
            self.entries = _checked(given)
        elif callable(given):
            self._function = given
        else:
            raise TypeError(f"schedule={given!r}; allowed: {{step: bits}}, a function of the step")
        self._known: tuple[int, int] | None = None  # of a function, the last step and its bits
        self._told: set[int] = set()  # bits of a function that were looked at

    def bits(self, step: int, rank: int | None = None) -> int:
        """Calls a function once a step. rank: for its errors."""
        if self._function is None:
            first = bisect.bisect_right([*self.entries], step) - 1
            return [*self.entries.values()][first]
        if self._known is None or self._known[0] != step:
            where = f"schedule({step})" + ("" if rank is None else f" on rank {rank}")
            bits = int(_config.check_quietly("bits", self._function(step), where))
            if bits not in self._told:
                self._told.add(bits)
                _config.warn_of_exact(bits, where, warn)
            self._known = step, bits
        return self._known[1]

    def known_bits(self, step: int) -> int | None:
        """As `bits`, but None where a function would have to be called."""
        if self._function is None:
            return self.bits(step)
        return self._known[1] if self._known is not None and self._known[0] == step else None

    def __str__(self) -> str:
        if self._function is None:
            return str(self.entries)
        return str(getattr(self._function, "__qualname__", self._function))

    def saved(self) -> str:
        """For a state_dict(): the entries as text, or FUNCTION. One text and no dict, since
        torch.distributed.checkpoint loads a dict only from one with the same keys. The number of
        the step is in another section.
        """
        return FUNCTION if self._function is not None else str(self.entries)

    def compare(self, saved: str) -> None:
        """Warns if a checkpoint was written with other entries. This object keeps its own."""
        if FUNCTION not in (saved, self.saved()) and saved != self.saved():
            warn(
                f"CGXState: the restored state has the schedule {saved}, this one {self.entries}, "
                "which is used"
            )


def check(section: Any) -> None:
    """ValueError unless Schedule.saved() can have written it."""
    if not isinstance(section, str):
        raise ValueError(
            f"load_state_dict of a CGXState: schedule is {section!r}; allowed: a text, as "
            "state_dict() writes it"
        )


def _checked(given: Mapping[Any, Any]) -> dict[int, int]:
    for step in given:
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(f"schedule has the step {step!r}; allowed: integers >= 0")
    if min(given, default=-1) != 0:
        raise ValueError(f"schedule={dict(given)}; allowed: steps from 0 on, with an entry for 0")
    return {
        step: int(_config.check("bits", given[step], f"schedule[{step}]")) for step in sorted(given)
    }
