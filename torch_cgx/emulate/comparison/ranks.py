"""The ranks of a comparison: processes of this host that train together, run after run.

This process sends each of them what to train, reads the steps and the result of rank 0, and ends
all of them as soon as one fails. Messages are pickles on their stdin and stdout.

    this process  --Work-->  rank 0 .. N-1  ==cgx==  each other
                  <--Said--  rank 0 .. N-1
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import IO, Any

from torch._C._distributed_c10d import TCPStore

from torch_cgx.emulate.comparison.recipes import Method
from torch_cgx.emulate.comparison.run import RunError, Size

HOST = "127.0.0.1"
_PYTHON = [sys.executable]
_GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL


@dataclasses.dataclass(frozen=True)
class Start:
    """What a rank needs first. port: of the store at which the ranks meet. model, data: of the
    task, as `load` takes them.
    """

    rank: int
    port: int
    model: str
    data: str | None
    size: Size


@dataclasses.dataclass(frozen=True)
class Work:
    """One training."""

    recipe: Method
    seed: int


@dataclasses.dataclass(frozen=True)
class Said:
    """What a rank has to say: "step"; "done", with the result; "failed", with a line."""

    kind: str
    value: Any = None


@dataclasses.dataclass
class _Process:
    number: int
    process: subprocess.Popen[bytes]
    to: Connection
    of: Connection
    wrote: IO[bytes]  # its stderr


class Ranks:
    """The processes, for the time of a `with`. Not thread-safe."""

    def __init__(self, model: str, data: str | None, size: Size):
        self._model, self._data, self._size = model, data, size
        self._ranks: list[_Process] = []
        self._store: TCPStore | None = None

    def __enter__(self) -> Ranks:
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        port = self._store.port
        try:
            for rank in range(self._size.ranks):
                self._ranks.append(_started(rank, self._size.threads))
            for one in self._ranks:
                self._send(one, Start(one.number, port, self._model, self._data, self._size))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def train(self, recipe: Method, seed: int, on_step: Callable[[], Any]) -> dict[str, Any]:
        """As `run.train`. RunError names the rank that failed, and its last line."""
        for one in self._ranks:
            self._send(one, Work(recipe, seed))
        result: dict[str, Any] = {}
        left = {one.number for one in self._ranks}
        while left:
            for one in self._ready():
                said = self._received(one)
                if said.kind == "failed":
                    raise RunError(f"rank {one.number}: {said.value}")
                if said.kind == "done":
                    left.discard(one.number)
                    result = said.value if one.number == 0 else result
                elif one.number == 0:
                    on_step()
        return result

    def _ready(self) -> list[_Process]:
        by_connection = {one.of: one for one in self._ranks}
        return [by_connection[one] for one in wait(list(by_connection))]  # type: ignore[index]

    def _send(self, one: _Process, message: Any) -> None:
        try:
            one.to.send(message)
        except OSError:
            raise self._gone(one) from None

    def _received(self, one: _Process) -> Said:
        try:
            said = one.of.recv()
        except (EOFError, OSError):
            raise self._gone(one) from None
        assert isinstance(said, Said)
        return said

    def _gone(self, one: _Process) -> RunError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(_GRACE_SECONDS)
        status = one.process.returncode
        one.wrote.seek(0)
        lines = one.wrote.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        said = f": {lines[-1]}" if lines else ""
        return RunError(f"rank {one.number} ended with {how}{said}")

    def close(self) -> None:
        """Ends all processes: they see the end of their stdin, then get SIGTERM, then SIGKILL."""
        for one in self._ranks:
            one.to.close()
            one.of.close()
        for kind in (None, signal.SIGTERM, signal.SIGKILL):
            limit = time.monotonic() + _GRACE_SECONDS
            for one in self._ranks:
                if kind is not None and one.process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(one.process.pid, kind)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, limit - time.monotonic()))
        for one in self._ranks:
            one.wrote.close()
        self._ranks = []
        self._store = None


def _started(number: int, threads: int) -> _Process:
    wrote = tempfile.TemporaryFile()
    its_stdin, to = os.pipe()
    of, its_stdout = os.pipe()
    try:
        process = subprocess.Popen(
            [*_PYTHON, "-m", "torch_cgx.emulate.comparison.rank"],
            stdin=its_stdin,
            stdout=its_stdout,
            stderr=wrote,
            env={**os.environ, "OMP_NUM_THREADS": f"{threads}"},
            start_new_session=True,  # Ctrl-C is for this process
        )
    finally:
        os.close(its_stdin)
        os.close(its_stdout)
    writing, reading = Connection(to, readable=False), Connection(of, writable=False)
    return _Process(number, process, writing, reading, wrote)
