"""What the integrations share: the state that a user gives, and its files in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cgx_utils.resharding import RANKS, inherited, merged
from cgx_utils.state import CGXState
from torch_cgx._warnings import warn


def state_of(state: CGXState | None, config: Mapping[str, Any]) -> CGXState:
    """The given state, or a new one with this configuration; TypeError if both are given."""
    if state is None:
        return CGXState(config=config)
    if not isinstance(state, CGXState):
        raise TypeError(f"state={state!r}; allowed: a CGXState, None")
    if config:
        raise TypeError(
            f"both a state and {', '.join(sorted(config))}; allowed: a CGXState, or its settings "
            "as keywords"
        )
    return state


def for_rank(states: list[dict[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """The state_dict that rank `rank` of `ranks` goes on from. states: of all ranks that saved. Its
    own; with another number of ranks one that has the residuals of all.
    """
    return states[rank] if ranks == len(states) else merged(states)


def save(state: CGXState, folder: str | os.PathLike[str], rank: int, suffix: str = "") -> None:
    """Writes FOLDER/cgx_state_RANK.pt, which torch.load(weights_only=True) reads."""
    path = Path(folder, f"cgx_state_{rank}{suffix}.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state.state_dict(), path)


def load(
    state: CGXState, folder: str | os.PathLike[str], rank: int, ranks: int, suffix: str = ""
) -> None:
    """Goes on, as rank `rank` of `ranks`, from what `save` wrote. A warning where FOLDER has no
    file of it: residuals then begin with zeros.
    """

    def path(number: int) -> Path:
        return Path(folder, f"cgx_state_{number}{suffix}.pt")

    def read(number: int) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(path(number), map_location="cpu", weights_only=True)
        return found

    first = rank if path(rank).exists() else 0
    if not path(first).exists():
        warn(f"cgx: {folder} has no {path(rank).name}; the CGXState begins anew")
        return
    saved = read(first)
    by = saved.get("error_feedback", {}).get("world_size", ranks)
    if by != ranks:
        others = [n for n in inherited(rank, ranks, by) if n != first and path(n).exists()]
        saved = merged([saved, *(read(number) for number in others)])
        # The files that other ranks take over.
        saved[RANKS] = {**{str(n): () for n in range(by) if path(n).exists()}, **saved[RANKS]}
    state.load_state_dict(saved)
