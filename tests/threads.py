"""Threads that the system does not start."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """Within, no thread of this process starts, as at a limit: there is no room for its stack. What
    sets the size of a stack itself is not concerned.
    """
    libc = ctypes.CDLL(None)
    before, now = (ctypes.create_string_buffer(256) for _ in range(2))  # pthread_attr_t
    for attributes in (before, now):
        assert libc.pthread_getattr_default_np(attributes) == 0
    assert libc.pthread_attr_setstacksize(now, ctypes.c_size_t(1 << 48)) == 0
    assert libc.pthread_setattr_default_np(now) == 0
    try:
        yield
    finally:
        assert libc.pthread_setattr_default_np(before) == 0
