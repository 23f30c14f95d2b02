"""For all tests: one hub of warm processes, and turns where several pytest workers run them.

`pytest -n 4` (pytest-xdist) runs tests side by side: most of them wait. Those that look at what all
processes of the machine do or have left are marked `alone`: while one runs, no other does. Those
that measure time, but take next to none of the CPU's, are marked `quiet`: while one runs, only
others of them do.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import warm

_TURNS = "CGX_TEST_TURNS"  # the folder of the locks, for the workers


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # Workers share the cores: threads that spin for each other's turn cost more than they do.
        torch.set_num_threads(1)
        return
    if not getattr(config.option, "numprocesses", None):
        return
    # Workers inherit both.
    if warm.enabled():
        warm.hub()
    folder = tempfile.TemporaryDirectory(prefix="cgx-turns-")
    config.add_cleanup(folder.cleanup)
    os.environ[_TURNS] = folder.name


def pytest_collection_finish() -> None:
    # Modules and tests stay: no collection of garbage has to look at them again.
    gc.freeze()


KINDS = ("busy", "quiet", "alone")  # of tests, in the order in which they come


def _kind(item: pytest.Item) -> str:
    marked = [kind for kind in KINDS if item.get_closest_marker(kind)]
    return marked[-1] if marked else KINDS[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts files with slow tests to the front, since a worker that got one at the end would run
    alone. The other files alternate between folders: tests of one folder often all wait, and keep
    the cores busy only beside tests of another folder. Sorts quiet tests and tests that run alone
    to the end, so that no other test waits for them.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    place: dict[Path, int] = {}
    of_folder: Counter[Path] = Counter()
    for path in dict.fromkeys(item.path for item in items):
        place[path] = of_folder[path.parent]
        of_folder[path.parent] += 1
    items.sort(key=lambda item: (KINDS.index(_kind(item)), item.path not in slow, place[item.path]))
    if folder := os.environ.get(_TURNS):  # the scheduler, in another process, knows names only
        for kind in KINDS[1:]:
            part = Path(folder, f"{os.getpid()}.part")
            part.write_text("\n".join(item.nodeid for item in items if _kind(item) == kind))
            part.replace(Path(folder, kind))


@functools.cache
def _named(kind: str) -> set[str]:
    return set(Path(os.environ[_TURNS], kind).read_text().split("\n"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile`: all tests that are alone go to one worker, and those of a file that
    are quiet are apart from its others.
    """
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid in _named("alone"):
                return "alone"
            scope = super()._split_scope(nodeid)
            return f"quiet {scope}" if nodeid in _named("quiet") else scope

    return ByFile(config, log)


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield


@contextlib.contextmanager
def _turn(folder: Path, kind: str) -> Iterator[None]:
    """Until no test runs that must not run beside one of this kind. Busy tests go first."""
    others = [folder / f"{other}.lock" for other in KINDS if other != kind]
    wait = 0 if kind == "busy" else fcntl.LOCK_NB
    own = fcntl.LOCK_EX if kind == "alone" else fcntl.LOCK_SH
    with contextlib.ExitStack() as turn:
        while True:
            with contextlib.suppress(BlockingIOError), contextlib.ExitStack() as door:
                door.enter_context(_locked(folder / "door", fcntl.LOCK_EX))
                for other in others:
                    door.enter_context(_locked(other, fcntl.LOCK_EX | wait))
                turn.enter_context(_locked(folder / f"{kind}.lock", own | wait))
                break
            time.sleep(0.05)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = os.environ.get(_TURNS)
    if folder is None or not hasattr(item.config, "workerinput"):
        return (yield)
    with _turn(Path(folder), _kind(item)):
        return (yield)
