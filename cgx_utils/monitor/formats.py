"""What casts did to tensors of a training whose formats are emulated, in records."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

Formats = Mapping[str, Mapping[str, float]]  # by LAYER/TENSOR: shares, decibels, ... (records.py)


class Handle(Protocol):
    """What torch_cgx.emulate.apply returns, as far as it is used here.

    measure: whether forward and backward passes and optimizer steps measure. It may be set between
        steps. records: of the last step that was measured.
    """

    measure: bool

    @property
    def records(self) -> Formats: ...


class Watch:
    """A handle that one Monitor switches on and off: `measure` is on in the last step before each
    record only.

    TypeError: no handle. ValueError: another Monitor has it.
    """

    def __init__(self, handle: Handle):
        if not hasattr(handle, "measure") or not hasattr(handle, "records"):
            raise TypeError(
                f"formats are watched of what torch_cgx.emulate.apply returns; this is of type "
                f"{type(handle).__name__}"
            )
        if id(handle) in _watches:
            raise ValueError("these formats have a Monitor already; close() that one first")
        self._handle = handle
        _watches[id(handle)] = self

    @property
    def measure(self) -> bool:
        return self._handle.measure

    @measure.setter
    def measure(self, value: bool) -> None:
        self._handle.measure = value

    def taken(self) -> dict[str, dict[str, float]]:
        """The handle's records, as dicts of the reader's own."""
        return {name: dict(values) for name, values in self._handle.records.items()}

    def close(self) -> None:
        """Switches it off, and gives it back. Idempotent."""
        if _watches.get(id(self._handle)) is self:
            self._handle.measure = False
            del _watches[id(self._handle)]


# By id, as handles need not be hashable; a watch keeps its handle.
_watches: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()


def summary(formats: Formats) -> str:
    """The worst tensors, in a line: the least SQNR, the greatest shares that became zero or were
    beyond the largest number. Empty where nothing was measured.
    """
    if not formats:
        return ""
    known = _known(formats, "sqnr")
    parts = []
    if known:
        ratio, name = min(known)
        parts.append(f"worst SQNR {ratio:.1f} dB ({name})" if ratio < math.inf else "no errors")
    for key, what in (("underflowed", "underflow"), ("saturated", "saturation")):
        share, name = max(_known(formats, key), default=(0.0, ""))
        if share > 0:
            parts.append(f"{what} {100 * share:.3g} % ({name})")
    return ", ".join(parts)


def _known(formats: Formats, key: str) -> list[tuple[Any, str]]:
    found = [(values.get(key, math.nan), name) for name, values in formats.items()]
    return [(value, name) for value, name in found if value == value]
