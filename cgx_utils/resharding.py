"""Residuals of error feedback in checkpoints: by rank, and for another number of ranks.

What N ranks owe to a mean is the sum of their residuals by N. M ranks owe the same if the sum of
theirs is M / N times as large. So rank r of M takes over the residuals of the ranks r, r + M,
r + 2 M, ... of N, times M / N.

A state_dict() has the sections of its rank twice, sharing tensors: as they are, for programs that
look into it, and under "ranks", by rank, for torch.distributed.checkpoint. That takes dicts apart,
stores one of the ranks' values of equal keys, and loads the keys that are there already. So each
rank has a key of its own, with a tuple, which is stored as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_cgx._warnings import warn

RANKS = "ranks"
ByRank = Mapping[str, Mapping[str, torch.Tensor]]  # rank, as text, and name


def with_rank(state: dict[str, Any], rank: int, sections: Sequence[str]) -> dict[str, Any]:
    """The state with these of its sections, as far as it has them, under "ranks", too."""
    own = tuple((name, state[name]) for name in sections if name in state)
    return {**state, RANKS: {str(rank): own}} if own else state


def sections_of(state: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The sections of each rank that the state has; None if it does not say whose they are.
    TypeError where no state_dict() can have written them.
    """
    if RANKS not in state:
        return None
    found = state[RANKS]
    if not isinstance(found, Mapping):
        raise TypeError(f"the restored state has ranks={found!r}; allowed: a dict")
    for rank, own in found.items():
        pairs = isinstance(own, tuple) and all(isinstance(p, tuple) and len(p) == 2 for p in own)
        if not (str(rank).isdigit() and pairs):
            raise TypeError(f"the restored state has {own!r} for rank {rank!r}; allowed: pairs")
    return {str(rank): dict(own) for rank, own in found.items()}


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state_dict() of a CGXState, with the residuals of all ranks, of those of several ranks;
    what is equal on all ranks comes from the first.
    """
    ranks: dict[str, Any] = {}
    for state in states:
        section = state.get("error_feedback")
        own = () if section is None else (("error_feedback", section),)
        ranks |= state.get(RANKS) or ({str(section["rank"]): own} if section else {})
    return {**states[0], RANKS: ranks} if ranks else dict(states[0])


def inherited(rank: int, ranks: int, saved_ranks: int) -> list[int]:
    """The ranks of a checkpoint by `saved_ranks` ranks whose residuals this rank takes over."""
    return list(range(rank, saved_ranks, ranks))


def share_of(
    residuals: ByRank,
    saved_ranks: int,
    rank: int,
    ranks: int,
    owner: str,
    *,
    partly: bool = True,
    alone: bool = False,
) -> dict[str, torch.Tensor]:
    """The residuals of rank `rank` of `ranks`, by name. A warning, which begins with `owner`, says
    what is dropped: the residuals of other ranks, and of ranks that the state does not have.
    partly: also take over residuals if some are missing. alone: the state is of one rank, so the
    residuals of the other ranks are unknown.
    """
    wanted = [str(number) for number in inherited(rank, ranks, saved_ranks)]
    there = [number for number in wanted if number in residuals]
    missing = len(there) < len(wanted)
    has = sorted(map(int, residuals))
    here = f"rank {rank} of {ranks}"
    if missing and (ranks == saved_ranks or not partly):
        warn(
            f"{owner}: {_listed(has)} of {saved_ranks} saved this state, this is {here}: the saved "
            "residuals are dropped, and this rank's begin with zeros. Each rank saves and loads "
            "its own state_dict()"
        )
        return {}
    lost = [number for number in map(int, wanted) if str(number) not in residuals]
    if alone and ranks != saved_ranks:
        warn(
            f"{owner}: residuals were saved by rank {has[0]} of {saved_ranks} and are restored on "
            f"{here}; {_lost(saved_ranks, ranks)}"
        )
    elif lost:
        warn(
            f"{owner}: residuals were saved by {saved_ranks} ranks and are restored on {here}; "
            f"what {_listed(lost)} owed is not in the state, and dropped"
        )
    if ranks == saved_ranks:
        return {n: one.detach().clone() for own in there for n, one in residuals[own].items()}
    found: dict[str, torch.Tensor] = {}
    for number in there:
        for name, one in residuals[number].items():
            scaled = one.detach().float() * (ranks / saved_ranks)
            found[name] = found[name] + scaled if name in found else scaled
    return found


def _lost(saved: int, now: int) -> str:
    if saved > now:
        return f"what ranks {now} to {saved - 1} owed is dropped"
    return f"ranks {saved} to {now - 1} begin with zeros"


def _listed(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
