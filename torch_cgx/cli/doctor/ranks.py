"""`cgx doctor` under a launcher: do the ranks fit together, and does every communicator work?

The ranks meet at the store of `env://`. Each puts what it found there; each reads the others', so
that all come to the same verdict, and all-reduces are tried only if nothing speaks against it.
Every wait has a deadline.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import socket
from typing import Any

from torch_cgx.cli.doctor.finding import OK, PROBLEM, Finding
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.meeting import collect, meet

SECTION = "ranks"
_EQUAL = ("torch_cgx", "torch", "settings")  # facts that all ranks must share
_LEAVE_SECONDS = 10.0

_place: tuple[Any, int, int] | None = None  # store, rank, world size


def examine(
    findings: list[Finding], engine_loads: bool, timeout: float
) -> tuple[list[Finding], bool]:
    """The findings of all ranks, and whether this rank prints them. Collective."""
    global _place
    store, rank, size = meet(timeout)
    _place = store, rank, size
    mine = {"facts": _facts(engine_loads), "findings": [one.to_json() for one in findings]}
    store.set(f"doctor/{rank}", json.dumps(mine))
    reports = [json.loads(text) for text in collect(store, "doctor", size, timeout)]
    every = findings if rank == 0 else [Finding(**one) for one in reports[0]["findings"]]
    every = [*every, *_of_others(reports), *compare([one["facts"] for one in reports])]
    if not any(one.status == PROBLEM for one in every):
        from torch_cgx.cli.doctor import reductions

        every += reductions.try_all(store, rank, size, [r["facts"] for r in reports], timeout)
    return every, rank == 0


def leave(timeout: float) -> None:
    """Rank 0 has printed: only then do the others end, as torchrun ends rank 0 if one fails."""
    if _place is None:
        return
    store, rank, size = _place
    wait = min(timeout, _LEAVE_SECONDS)
    try:
        if rank == 0:
            store.set("doctor/printed", "1")
            # The store of a launcher without one of its own ends with this process.
            collect(store, "doctor/gone", size, wait, mine=rank)
        else:
            store.wait(["doctor/printed"], datetime.timedelta(seconds=wait))
            store.set(f"doctor/gone/{rank}", "1")
    except (RuntimeError, CliError):  # the findings are printed, or the deadline is over
        pass


def _facts(engine_loads: bool) -> dict[str, Any]:
    import torch

    from torch_cgx import __version__

    settings = {}
    place = {"host_id": socket.gethostname(), "network": ""}
    if engine_loads:
        from torch_cgx import _C, _hosts

        place = _hosts.facts()

        for row in _C.settings():
            if row["compared"] and os.environ.get(row["variable"]):
                settings[row["variable"]] = os.environ[row["variable"]]
    return {
        "host": socket.gethostname(),
        **place,
        "python": platform.python_version(),
        "torch_cgx": __version__,
        "torch": torch.__version__.partition("+")[0],
        "cuda": torch.cuda.is_available(),
        "settings": settings,
    }


def compare(facts: list[dict[str, Any]]) -> list[Finding]:
    """Findings about ranks that do not fit together; one that counts them if they do."""
    from torch_cgx import _hosts

    findings = []
    for name in _EQUAL:
        by_value: dict[str, list[int]] = {}
        for rank, one in enumerate(facts):
            by_value.setdefault(json.dumps(one[name], sort_keys=True), []).append(rank)
        if len(by_value) > 1:
            sides = "; ".join(
                f"{_shown(value)} on {_places(facts, ranks)}" for value, ranks in by_value.items()
            )
            what = "the environment variables CGX_*" if name == "settings" else name
            findings.append(
                Finding(
                    SECTION,
                    what,
                    PROBLEM,
                    f"ranks differ: {sides}",
                    "set them alike on all hosts"
                    if name == "settings"
                    else "install the same version on all hosts",
                )
            )
    if not findings:
        hosts = _hosts.count(facts)
        found = f"{len(facts)} ranks on {hosts} host{'' if hosts == 1 else 's'}, alike"
        findings.append(Finding(SECTION, "ranks", OK, found))
    return findings


def _shown(value: str) -> str:
    found = json.loads(value)
    if isinstance(found, dict):
        return " ".join(f"{name}={text}" for name, text in found.items()) or "none set"
    return str(found)


def _places(facts: list[dict[str, Any]], ranks: list[int]) -> str:
    """As in "rank 0 (host a)"; the first few of many."""
    shown = ", ".join(f"rank {rank} ({facts[rank]['host']})" for rank in ranks[:3])
    return shown + (f" and {len(ranks) - 3} more" if len(ranks) > 3 else "")


def _of_others(reports: list[dict[str, Any]]) -> list[Finding]:
    """The problems of ranks other than 0, one for each text."""
    seen = {
        (one["name"], one["found"]) for one in reports[0]["findings"] if one["status"] == PROBLEM
    }
    findings = []
    for rank, report in enumerate(reports[1:], 1):
        for one in report["findings"]:
            if one["status"] == PROBLEM and (one["name"], one["found"]) not in seen:
                seen.add((one["name"], one["found"]))
                section = f"rank {rank} ({report['facts']['host']})"
                findings.append(Finding(**{**one, "section": section}))
    return findings
