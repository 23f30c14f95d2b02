"""Messages between the ranks over MPI (mpi4py), before torch.distributed has a store.

One thread of a process uses this at a time. This module initialises MPI (thread level MULTIPLE)
unless the script did; mpi4py finalises it after the interpreter has ended.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from torch_cgx.launch._variables import Launcher, LaunchError

_TO_FIRST, _FROM_FIRST = 0x6300, 0x6301  # tags on COMM_WORLD
_BY_HAND = "or set MASTER_ADDR and MASTER_PORT to an address of rank 0's host and a free port there"


def available() -> bool:
    """True if mpi4py is installed."""
    return importlib.util.find_spec("mpi4py") is not None


def missing(launcher: Launcher) -> LaunchError:
    """The error for a launcher that needs MPI, if mpi4py is not installed."""
    need = "agree on a meeting point" if launcher.size else "find the world size"
    also = "" if launcher.size else ", and WORLD_SIZE"
    return LaunchError(
        f"rank {launcher.rank} was started by {launcher.name}: the ranks need mpi4py to {need}. "
        f"Run `pip install mpi4py`, {_BY_HAND}{also}"
    )


class Failure:
    """Passed to `MpiWorld.agree` instead of a value: all ranks raise its text."""

    def __init__(self, text: str):
        self.text = text


class MpiWorld:
    """Agreement between all ranks of MPI's world.

    LaunchError if MPI cannot be initialised, or was finalised already.
    """

    def __init__(self, launcher: Launcher, timeout: float):
        self._mpi = _start(launcher)
        self._comm = self._mpi.COMM_WORLD
        self._timeout = timeout
        self.rank: int = self._comm.Get_rank()
        self.size: int = self._comm.Get_size()

    def library(self) -> str:
        """The MPI that mpi4py has loaded."""
        first = str(self._mpi.Get_library_version()).splitlines()[0]
        return " ".join(first.split(",")[0].split())

    def agree(self, value: Any, decide: Callable[[list[Any]], Any]) -> Any:
        """Calls `decide` on rank 0 with the values of all ranks; all ranks get its result.

        All ranks raise LaunchError if a rank's value is a Failure, if `decide` raises LaunchError,
        or if a rank has not called this within the timeout. Collective.
        """
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            answer = self._decide(value, decide, deadline)
            sends = [
                self._comm.isend(answer, dest=rank, tag=_FROM_FIRST) for rank in range(1, self.size)
            ]
        else:
            sends = [self._comm.isend(value, dest=0, tag=_TO_FIRST)]
            answer = self._receive(0, _FROM_FIRST, deadline, "rank 0 has not answered")
        if isinstance(answer, Failure):
            raise LaunchError(answer.text)
        for request in sends:
            while not request.test()[0]:
                self._pause(deadline, "another rank has not received a message")
        return answer

    def _decide(self, value: Any, decide: Callable[[list[Any]], Any], deadline: float) -> Any:
        values = [value]
        try:
            for rank in range(1, self.size):
                late = f"rank {rank} has not called init_process_group"
                values.append(self._receive(rank, _TO_FIRST, deadline, late))
            for entry in values:
                if isinstance(entry, Failure):
                    return entry
            return decide(values)
        except LaunchError as error:
            return Failure(str(error))

    def _receive(self, source: int, tag: int, deadline: float, late: str) -> Any:
        while not self._comm.iprobe(source=source, tag=tag):
            self._pause(deadline, late)
        return self._comm.recv(source=source, tag=tag)

    def _pause(self, deadline: float, late: str) -> None:
        # Sleeping, not spinning in MPI: there may be more ranks than cores.
        if time.monotonic() > deadline:
            raise LaunchError(f"rank {self.rank}: {late} within {self._timeout:g} s")
        time.sleep(0.0005)


def _start(launcher: Launcher) -> Any:
    try:
        from mpi4py import MPI  # initialises MPI, and finalises it after the interpreter
    except Exception as error:  # RuntimeError where mpi4py finds no libmpi
        raise LaunchError(
            f"rank {launcher.rank}, started by {launcher.name}: mpi4py is installed but cannot be "
            f"imported: {error}. Install the MPI that mpirun belongs to, {_BY_HAND}"
        ) from error
    if MPI.Is_finalized():
        raise LaunchError(
            f"rank {launcher.rank}: the script has finalised MPI before init_process_group; let "
            f"mpi4py finalise it, {_BY_HAND}"
        )
    ours = not MPI.Is_initialized()
    if ours:  # mpi4py.rc.initialize = False: mpi4py would not finalise it either
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    _end_together(MPI, ours)
    return MPI


@functools.cache  # the second call must not hook its own hooks
def _end_together(mpi: Any, finalize: bool) -> None:
    """Makes a failing rank end the whole job. finalize: this also finalises MPI at the exit.

    MPI_Finalize waits for all ranks: a failed rank would wait there for ranks that wait for it in a
    collective. So a process that ends by an uncaught exception or by sys.exit with a code other
    than 0 calls MPI_Abort instead, as with `python -m mpi4py`. (`raise SystemExit(1)` and os._exit
    are not detected; mpirun itself notices the latter.)
    """
    from mpi4py import rc

    mpi4py_finalizes = rc.initialize and rc.finalize is not False
    process, code = os.getpid(), 0
    hook, leave = sys.excepthook, sys.exit

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        nonlocal code
        code = 1
        hook(kind, error, trace)

    def exit(status: Any = None, /) -> NoReturn:
        nonlocal code
        code = status if isinstance(status, int) else int(status is not None)
        leave(status)

    def at_exit() -> None:
        # A forked child inherits this handler but is not a rank. An interactive session continues
        # after an exception.
        if os.getpid() != process or mpi.Is_finalized():
            return
        if code != 0 and not hasattr(sys, "ps1"):
            if mpi4py_finalizes:
                mpi._set_abort_status(code)  # later: other exit handlers come first
            else:
                mpi.COMM_WORLD.Abort(code)
        elif finalize:
            mpi.Finalize()

    sys.excepthook, sys.exit = excepthook, exit
    atexit.register(at_exit)
