"""What `fit` is given, checked."""

from __future__ import annotations

import math
from typing import Any


def check_time(time: Any) -> None:
    """TypeError, ValueError."""
    if time is None:
        return
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise TypeError(f"time={time!r}; allowed: numbers from 1, None")
    if not 1 <= time < math.inf:
        raise ValueError(f"time={time!r}; allowed: numbers from 1, None")


def bytes_or_part(given: Any) -> float | int:
    """A budget: bytes, an int; or a part of them, a float. TypeError, ValueError."""
    if isinstance(given, int) and not isinstance(given, bool):
        if given <= 0:
            raise ValueError(f"budget={given!r}; allowed: bytes above 0, a string as '40%'")
        return given
    if not isinstance(given, str):
        raise TypeError(f"budget={given!r}; allowed: bytes, an int; a string as '40%'")
    try:
        part = float(given.strip().removesuffix("%")) / 100
    except ValueError:
        part = math.nan
    if not given.strip().endswith("%") or not 0 < part < math.inf:
        raise ValueError(f"budget={given!r}; allowed: bytes above 0, a string as '40%'")
    return part


def check_compile(compile: Any) -> None:
    """TypeError."""
    if not isinstance(compile, bool):
        raise TypeError(f"compile={compile!r}; allowed: True, False")
