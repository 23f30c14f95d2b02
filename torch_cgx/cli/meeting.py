"""The ranks of a command under a launcher: where they meet, and what they tell each other.

They meet at the store of `env://`, which torchrun, mpirun and srun all lead to. Every wait has a
deadline and ends in a `CliError` of one line.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from torch_cgx._threads import start_daemon
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import without_log_of_torch

_MORE_SECONDS = 2.0  # torch's own limits are rounded up
_RESOLVE_SECONDS = 0.5  # between two questions for a name


def launched(env: Mapping[str, str]) -> bool:
    """Whether a launcher started this process as one of several ranks, or as a single one."""
    from torch_cgx.launch import LaunchError, find

    if env.get("RANK") and env.get("WORLD_SIZE"):
        return True
    try:
        return find(env) is not None
    except LaunchError as error:
        raise CliError(str(error)) from None


def meet(timeout: float) -> tuple[Any, int, int]:
    """The store, the rank and the world size. Collective."""
    from torch_cgx.launch import LaunchError, setup

    try:
        place = setup(timeout)  # in this thread, as it may initialise MPI
    except LaunchError as error:
        raise CliError(str(error)) from None
    except RuntimeError as error:
        raise CliError(_reason(error)) from None
    if place.rank >= place.world_size:
        raise CliError(f"RANK={place.rank}: must be below WORLD_SIZE={place.world_size}")
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    here = f"rank {place.rank} on {socket.gethostname()}"
    began = time.monotonic()
    _resolve(address, here, timeout)
    left = max(timeout - (time.monotonic() - began), _MORE_SECONDS)
    with without_log_of_torch():
        met = _rendezvous(left)
    if isinstance(met, Exception):
        if "EADDRINUSE" in str(met):
            raise CliError(f"{here}: MASTER_PORT={port} is in use there: set another one")
        raise CliError(
            f"{here} has not met the others at {address}:{port} within {timeout:g} s: "
            f"{_reason(met)}; "
            + (
                loopback_advice(os.environ)
                or f"start all {place.world_size} ranks with the same MASTER_ADDR and MASTER_PORT"
            ),
            at_once=isinstance(met, _NoAnswer),
        )
    return met


def loopback_advice(env: Mapping[str, str]) -> str:
    """What to do where MASTER_ADDR leads each host to itself, though ranks are on several; empty
    where it does not.
    """
    address = env.get("MASTER_ADDR", "")
    nodes = env.get("GROUP_WORLD_SIZE", "1")  # torchrun's
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    loopback = all(str(entry[4][0]).startswith("127.") or entry[4][0] == "::1" for entry in found)
    if not (loopback and nodes.isdigit() and int(nodes) > 1):
        return ""
    return (
        f"MASTER_ADDR={address} is the loopback of every host: torchrun hands out the name of its "
        "first host, which resolves to loopback there; start torchrun on each host with "
        "--local-addr ADDRESS, an address of that host that the others reach"
    )


def _resolve(address: str, here: str, timeout: float) -> None:
    """CliError where the name still has no address after `timeout`: a pod may start before it."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.getaddrinfo(address, None)
            return
        except (OSError, UnicodeError) as error:
            wrong = isinstance(error, UnicodeError) or time.monotonic() >= deadline
            why = getattr(error, "strerror", None) or error
        if wrong:
            raise CliError(
                f"{here} cannot resolve MASTER_ADDR={address} ({why}): set it to an address of "
                "rank 0's host"
            )
        time.sleep(min(_RESOLVE_SECONDS, max(deadline - time.monotonic(), 0.0)))


def _rendezvous(timeout: float) -> tuple[Any, int, int] | Exception:
    """In a thread: torch waits forever for a program at the port that is not a store."""
    from torch.distributed.rendezvous import rendezvous

    found: list[tuple[Any, int, int] | Exception] = []

    def wait() -> None:
        try:
            limit = datetime.timedelta(seconds=timeout)
            found.append(next(iter(rendezvous("env://", timeout=limit))))
        except Exception as error:
            found.append(error)

    thread = start_daemon(wait, "cgx-meet")
    thread.join(timeout + _MORE_SECONDS)
    return found[0] if found else _NoAnswer("no store of a rank 0 answers there")


class _NoAnswer(Exception):
    """The thread that waits for it has not come back."""


def _reason(error: Exception) -> str:
    """The first line of an error of torch."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def collect(
    store: Any, prefix: str, size: int, timeout: float, mine: int | None = None
) -> list[str]:
    """The values of `prefix`/RANK of all ranks (but `mine`); CliError names the missing ones."""
    keys = [f"{prefix}/{rank}" for rank in range(size) if rank != mine]
    try:
        store.wait(keys, datetime.timedelta(seconds=timeout))
    except RuntimeError:
        missing = []
        with contextlib.suppress(RuntimeError):  # the store has ended
            missing = [key.rpartition("/")[2] for key in keys if not store.check([key])]
        advice = loopback_advice(os.environ)
        raise CliError(
            f"of {size} ranks, {', '.join(missing) or 'some'} did not answer within {timeout:g} s: "
            + (advice or "start the command on every host, with the same version of torch_cgx")
        ) from None
    return [store.get(key).decode() for key in keys]
