"""Threads that the system does not start, and those that a fork has lost."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch_cgx import _C

_P = ParamSpec("_P")
_R = TypeVar("_R")


def start_daemon(target: Callable[[], object], name: str) -> threading.Thread:
    """Runs `target` on a thread that the end of the program does not wait for. ResourceError: the
    system starts no more threads; the text names the limits.
    """
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        text = f"the system does not start the thread {name} ({error}); {_C.thread_limits()}"
        raise _C.ResourceError(text) from None
    return thread


def safe_after_fork(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function; on the thread that came into this process by os.fork(), from a parent with
    several threads, torch's operators in it run on that thread alone. OpenMP, which splits them
    otherwise, would wait for threads that stayed in the parent. What torch_cgx runs on threads of
    its own stays on several.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _C.SafeAfterFork():
            return function(*args, **kwargs)

    return call
