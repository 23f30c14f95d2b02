"""torch's `env://` under launchers that do not set its variables."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torch_cgx.launch import _state
from torch_cgx.launch._setup import absent_variables, no_launcher, setup
from torch_cgx.launch._variables import find


def rendezvous(
    original: Callable[..., Iterator[tuple[Any, int, int]]], url: str, *args: Any, **kwargs: Any
) -> Iterator[tuple[Any, int, int]]:
    """torch's handler of `env://`, after `setup` if a variable is absent and a launcher sets it.

    Without a launcher this is torch's own handler; LaunchError, which is a ValueError as torch's
    error is, if a variable is absent then.
    """
    rank, size = numbers_of(url)
    state = _state.mine()
    absent = absent_variables(os.environ, rank, size)
    if absent and not (state.setup or find(os.environ)):
        try:
            yield from original(url, *args, **kwargs)
        except ValueError as error:
            raise no_launcher(absent) from error
        return
    if absent:
        timeout = kwargs.get("timeout")
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 300.0
        setup(seconds, rank=rank, world_size=size)
        state = _state.mine()
    found = state.setup
    here = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    for store, my_rank, my_size in original(url, *args, **kwargs):
        if found is not None and state.held and here == (found.master_addr, str(found.master_port)):
            # Rank 0's server outlives a group to keep the port. A later group must not read the
            # keys of an earlier one.
            if state.groups > 0:
                from torch.distributed import PrefixStore  # type: ignore[attr-defined]

                store = PrefixStore(f"torch_cgx.launch/{state.groups}", store)
            state.groups += 1
        yield store, my_rank, my_size


def numbers_of(url: str) -> tuple[int | None, int | None]:
    """Rank and world size that init_process_group was called with; None: not given, or -1."""
    query = dict(parse_qsl(urlparse(url).query))
    values: list[int | None] = [None, None]
    for place, name in enumerate(("rank", "world_size")):
        with contextlib.suppress(ValueError):
            value = int(query.get(name, "-1"))
            values[place] = value if value >= 0 else None
    return values[0], values[1]
