"""For all tests: one hub of warm processes, and turns where several pytest workers run them.

`pytest -n 4` (pytest-xdist) runs tests side by side: most of them wait. Those that measure time, or
look at what all processes of the machine have left, are marked `alone`: while one runs, no other
does.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, as a worker that got one at the end would run alone. Tests that
    are alone last, so that nobody waits for them.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    alone = {item for item in items if item.get_closest_marker("alone")}
    items.sort(key=lambda item: (item in alone, item.path not in slow))
    if folder := os.environ.get(_TURNS):  # the scheduler, in another process, knows names only
        part = Path(folder, f"{os.getpid()}.part")
        part.write_text("\n".join(item.nodeid for item in alone))
        part.replace(Path(folder, "alone"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile`: all tests that are alone go to one worker."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        @functools.cached_property
        def alone(self) -> set[str]:
            return set(Path(os.environ[_TURNS], "alone").read_text().split("\n"))

        def _split_scope(self, nodeid: str) -> str:
            return "alone" if nodeid in self.alone else super()._split_scope(nodeid)

    return ByFile(config, log)


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        yield


@contextlib.contextmanager
def _turn(folder: Path, alone: bool) -> Iterator[None]:
    with contextlib.ExitStack() as room:
        # Who waits for the room holds the door, so that nobody overtakes.
        with _locked(folder / "door", fcntl.LOCK_EX):
            room.enter_context(_locked(folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = os.environ.get(_TURNS)
    if folder is None or not hasattr(item.config, "workerinput"):
        return (yield)
    with _turn(Path(folder), item.get_closest_marker("alone") is not None):
        return (yield)
