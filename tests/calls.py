"""Calls whose errors are results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def failure(call: Callable[[], Any]) -> str:
    """ "ValueError: ...", or what the call returned."""
    try:
        return f"returned {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def on_threads(size: int, call: Callable[[int], Any]) -> list[Any]:
    """What call(0) ... call(size - 1) return or raise, all at once."""
    outcomes: list[Any] = [None] * size

    def run(index: int) -> None:
        try:
            outcomes[index] = call(index)
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
