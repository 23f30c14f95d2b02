"""The ranks of a command under a launcher: where they meet, and what they tell each other.

They meet at the store of `env://`, which torchrun, mpirun and srun all lead to. Every wait has a
deadline and ends in a `CliError` of one line.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from typing import Any

from torch_cgx.cli.errors import CliError


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
    from torch.distributed.rendezvous import rendezvous

    from torch_cgx.launch import LaunchError

    try:
        limit = datetime.timedelta(seconds=timeout)
        store, rank, size = next(iter(rendezvous("env://", timeout=limit)))
    except (LaunchError, RuntimeError, ValueError) as error:
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CliError(
            f"rank {os.environ.get('RANK', '?')} on {socket.gethostname()} has not met the others "
            f"at {where} within {timeout:g} s: {reason}"
        ) from None
    return store, rank, size


def collect(
    store: Any, prefix: str, size: int, timeout: float, mine: int | None = None
) -> list[str]:
    """The values of `prefix`/RANK of all ranks (but `mine`); CliError names the missing ones."""
    keys = [f"{prefix}/{rank}" for rank in range(size) if rank != mine]
    try:
        store.wait(keys, datetime.timedelta(seconds=timeout))
    except RuntimeError:
        missing = [key.rpartition("/")[2] for key in keys if not store.check([key])]
        raise CliError(
            f"of {size} ranks, {', '.join(missing) or 'some'} did not answer within {timeout:g} s: "
            "start the command on every host, with the same version of torch_cgx"
        ) from None
    return [store.get(key).decode() for key in keys]
