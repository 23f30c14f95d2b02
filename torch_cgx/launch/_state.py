"""The results of the detection in this process, and the store that it keeps for the group."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any


@dataclasses.dataclass(frozen=True)
class Setup:
    """Rank and meeting point of this process. `None`: unknown. `variables`: those set in
    os.environ.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    master_addr: str
    master_port: int
    launcher: str
    how: str
    variables: dict[str, str]


class State:
    """State of this process. A fork inherits it, with a store that has no threads: see `pid`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.setup: Setup | None = None
        self.store: Any = None  # on rank 0: keeps the store's server, and so the port
        self.held = False  # whether rank 0 has such a store; the same on all ranks
        self.groups = 0  # rendezvous over that store
        self.forked_from: State | None = None


_state = State()


def mine() -> State:
    """The state of this process: a new one after a fork."""
    global _state
    if _state.pid != os.getpid():
        inherited, _state = _state, State()
        _state.forked_from = inherited  # destroying its store would wait for threads of the parent
    return _state
