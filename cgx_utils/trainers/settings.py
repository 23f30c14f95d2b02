"""What the integrations share: the state that a user gives, and its files in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cgx_utils.state import CGXState
from torch_cgx._warnings import warn


def state_of(state: CGXState | None, params: Mapping[str, Any]) -> CGXState:
    """The given state, or a new one with these compression_params; TypeError if both are given."""
    if state is None:
        return CGXState(compression_params=params)
    if not isinstance(state, CGXState):
        raise TypeError(f"state={state!r}; allowed: a CGXState, None")
    if params:
        raise TypeError(
            f"both a state and {', '.join(sorted(params))}; allowed: a CGXState, or "
            "compression_params as keywords"
        )
    return state


def for_rank(states: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """The state_dict that a rank goes on from: its own; a rank that is new has the decision of
    `adaptive`, equal on all ranks, and no residuals.
    """
    if rank < len(states):
        return states[rank]
    return {key: value for key, value in states[0].items() if key != "error_feedback"}


def save(state: CGXState, folder: str | os.PathLike[str], rank: int, suffix: str = "") -> None:
    """Writes FOLDER/cgx_state_RANK.pt, which torch.load(weights_only=True) reads."""
    path = Path(folder, f"cgx_state_{rank}{suffix}.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state.state_dict(), path)


def load(state: CGXState, folder: str | os.PathLike[str], rank: int, suffix: str = "") -> None:
    """Goes on from what `save` wrote. A warning where FOLDER has no such file: residuals then begin
    with zeros.
    """
    own, first = (Path(folder, f"cgx_state_{number}{suffix}.pt") for number in (rank, 0))
    path = own if own.exists() else first
    if not path.exists():
        warn(f"cgx: {folder} has no {own.name}; the CGXState begins anew")
        return
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state.load_state_dict(saved if path == own else for_rank([saved], rank))
