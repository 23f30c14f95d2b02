"""Residuals of error feedback in checkpoints: by rank, and for another number of ranks.

What N ranks owe to a mean is the sum of their residuals by N. M ranks owe the same if the sum of
theirs is M / N times as large. So rank r of M takes over the residuals of the ranks r, r + M,
r + 2 M, ... of N, times M / N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_cgx._warnings import warn

ByRank = Mapping[str, Mapping[str, torch.Tensor]]  # rank, as text, and name


def inherited(rank: int, ranks: int, saved_ranks: int) -> list[int]:
    """The ranks of a checkpoint by `saved_ranks` ranks whose residuals this rank takes over."""
    return list(range(rank, saved_ranks, ranks))


def share_of(
    residuals: ByRank, saved_ranks: int, rank: int, ranks: int, owner: str
) -> dict[str, torch.Tensor]:
    """The residuals of rank `rank` of `ranks`, by name. A warning, which begins with `owner`, says
    which ones are not there, and dropped: they were not saved, or are those of other ranks.
    """
    wanted = [str(number) for number in inherited(rank, ranks, saved_ranks)]
    there = [number for number in wanted if number in residuals]
    missing = [number for number in wanted if number not in residuals]
    if missing:
        has = _listed(sorted(map(int, residuals)))
        text = f"{owner}: this is rank {rank} of {ranks}, and the state has the residuals of {has} "
        text += f"of {saved_ranks}: the ones of {_listed(map(int, missing))} are dropped"
        if ranks == saved_ranks:
            text += (
                ", and this rank's begin with zeros. Each rank saves and loads its own state_dict()"
            )
        warn(text)
    found: dict[str, torch.Tensor] = {}
    if ranks == saved_ranks:
        return {name: one.detach().clone() for n in there for name, one in residuals[n].items()}
    for number in there:
        for name, one in residuals[number].items():
            part = one.detach().float() * (ranks / saved_ranks)
            found[name] = found[name] + part if name in found else part
    return found


def by_rank(section: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """The residuals of a section, checked or of version 1, which has those of one rank."""
    found = section["residuals"]
    if "rank" in section:
        found = {str(section["rank"]): found}
    return {str(rank): dict(own) for rank, own in (found or {}).items()}


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state_dict() of a CGXState, with the residuals of all ranks, of those of several ranks;
    what is equal on all ranks comes from the first.
    """
    whole = dict(states[0])
    sections = [state["error_feedback"] for state in states if "error_feedback" in state]
    if sections:
        residuals: dict[str, dict[str, torch.Tensor]] = {}
        for section in sections:
            residuals |= by_rank(section)
        kept = {key: sections[0][key] for key in ("memory", "world_size")}
        whole["version"] = 2
        whole["error_feedback"] = {**kept, "residuals": residuals}
    return whole


def _listed(ranks: Any) -> str:
    numbers = list(ranks)
    if not numbers:
        return "no rank"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))
