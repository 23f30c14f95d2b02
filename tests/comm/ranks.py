"""Ranks as real processes for the tests of the SHM communicator, over a rendezvous of files.

The processes come from a fork server that has loaded the extension once: each is a process of its
own, made in milliseconds.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests import _machinery

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.comm.ranks"])


class FileRendezvous:
    """A key-value store in a directory; values appear whole or not at all."""

    def __init__(self, directory: str) -> None:
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: bytes) -> None:
        part = self.directory / f".{os.getpid()}-{time.monotonic_ns()}"
        part.write_bytes(value)
        part.rename(self.directory / key.replace("/", "_"))

    def get(self, key: str, timeout: float) -> bytes:
        end = time.monotonic() + timeout
        while True:
            try:
                return (self.directory / key.replace("/", "_")).read_bytes()
            except FileNotFoundError:
                if time.monotonic() >= end:
                    raise TimeoutError(f"nobody has set {key}") from None
                time.sleep(0.002)


def shm(directory: str, rank: int, size: int, slot_bytes: int = 65536, timeout: float = 20) -> Any:
    """The communicator of `rank` in a group that meets in `directory`."""
    store = FileRendezvous(directory)
    return _machinery.make_shm_communicator(store.set, store.get, rank, size, slot_bytes, timeout)


@dataclasses.dataclass
class Outcome:
    """What a rank returned, or the class and the text of what it raised."""

    value: Any = None
    error: str = ""
    text: str = ""
    details: str = ""


class Rank:
    """A running rank. `receive()` returns what its job sends."""

    def __init__(self, job: Callable[..., Any], *args: Any) -> None:
        self.pipe, other = _context.Pipe()
        self.process = _context.Process(target=_main, args=(other, job, args), daemon=True)
        self.process.start()
        other.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def receive(self, timeout: float = 30) -> Any:
        """The next thing that the job sent, or its `Outcome`."""
        if not self.pipe.poll(timeout):
            raise AssertionError(f"rank process {self.pid} sent nothing for {timeout} s")
        return self.pipe.recv()

    def outcome(self, timeout: float = 30) -> Outcome:
        received = self.receive(timeout)
        while not isinstance(received, Outcome):
            received = self.receive(timeout)
        self.end()
        return received

    def value(self, timeout: float = 30) -> Any:
        outcome = self.outcome(timeout)
        assert not outcome.error, outcome.details
        return outcome.value

    def end(self) -> None:
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _main(pipe: Any, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        outcome = Outcome(value=job(pipe.send, *args))
    except Exception as error:
        # str, not the exception: it must not matter whether it can be pickled.
        outcome = Outcome(None, type(error).__name__, str(error), traceback.format_exc())
    pipe.send(outcome)


def run(job: Callable[..., Any], size: int, *args: Any) -> list[Outcome]:
    """`job(say, *args, rank)` on every rank at once."""
    ranks = [Rank(job, *args, rank) for rank in range(size)]
    return [rank.outcome() for rank in ranks]


def stays_empty(before: set[str]) -> bool:
    """No shared block stays that was not there `before`; groups of other programs come and go."""
    end = time.monotonic() + 3
    while not shared_blocks() <= before:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def shared_blocks() -> set[str]:
    """Names of our blocks in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("cgx-")}
