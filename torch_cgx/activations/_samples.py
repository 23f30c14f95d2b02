"""Marks samples of activations while autograd saves them: by their size and history
`compress_saved` would take them for statistics, which it keeps as they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_now = threading.local()


@contextlib.contextmanager
def saving_samples() -> Iterator[None]:
    """Inside, what this thread saves are samples and what belongs to them."""
    before = are_saved()
    _now.inside = True
    try:
        yield
    finally:
        _now.inside = before


def are_saved() -> bool:
    return bool(getattr(_now, "inside", False))
