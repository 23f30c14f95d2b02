"""The regression guard: ratios of short runs, against those in benchmarks/results/baseline.json."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _guard, _machine, _parts
from benchmarks._report import size_text

FILE = _parts.RESULTS / "baseline.json"
RUNS = 3  # of which the baseline is the median


def _codec(document: dict[str, Any]) -> _guard.Ratios:
    best = document["machine"]["levels"][-1]
    return {
        f"codec: {row['name']} / {row['roof']}": row["of_roof"]
        for row in document["rows"]
        if row["level"] == best and row["roof"] and row["name"].startswith(("encode", "decode"))
    }


def _allreduce(document: dict[str, Any]) -> _guard.Ratios:
    return {
        f"allreduce: {row['method']}, {size_text(row['bytes'])} / gloo": row["speedup"]
        for row in document["rows"]
        if row["method"].startswith("cgx")
    }


def _passthrough(document: dict[str, Any]) -> _guard.Ratios:
    # One row for all: a single one is as noisy as gloo's threads.
    ratios = [row["ratio"] for row in document["rows"]]
    return {"passthrough: median of all / gloo": statistics.median(ratios)}


@dataclass(frozen=True)
class Probe:
    """A short run of a part, and the ratios in what it writes; their names begin with its own."""

    part: _parts.Part
    arguments: tuple[str, ...]
    ratios: Callable[[dict[str, Any]], _guard.Ratios]


PROBES = (
    Probe(_parts.PARTS["codec"], ("--quick",), _codec),
    Probe(
        _parts.PARTS["allreduce"],
        ("--carrier", "shm", "--sizes", "16K", "1M", "64M", "--bits", "32", "8", "4", "2")
        + ("--repeats", "9", "--no-bf16", "--peers"),
        _allreduce,
    ),
    Probe(_parts.PARTS["passthrough"], ("--quick",), _passthrough),
)


class ProbeFailed(Exception):
    """A short run ended badly; the text says which, and why."""


def measure(wanted: set[str] | None, probes: tuple[Probe, ...] = PROBES) -> _guard.Ratios:
    """Ratios of those probes that have a wanted one; None: of all. ProbeFailed if one fails."""
    found: _guard.Ratios = {}
    for probe in probes:
        if wanted is not None and not any(n.startswith(f"{probe.part.name}: ") for n in wanted):
            continue
        print(f"measuring {probe.part.name} ...", flush=True)
        part = dataclasses.replace(probe.part, quick=probe.arguments)
        with tempfile.TemporaryDirectory(prefix="cgx-baseline-") as folder:
            outcome = _parts.run_part(part, quick=True, out=Path(folder), drop=True)
            if outcome.status != "done":
                raise ProbeFailed(f"{part.name}: {outcome.status}: {outcome.reason}")
            found |= probe.ratios(json.loads((Path(folder) / f"{part.result}.json").read_text()))
    return found


def write(file: Path = FILE, runs: int = RUNS) -> int:
    """Measures the baseline anew. The exit status."""
    try:
        measured = [measure(None) for _ in range(runs)]
    except ProbeFailed as error:
        print(f"baseline: {error}", file=sys.stderr)
        return 1
    ratios = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
    document = {
        "benchmark": "baseline",
        "machine": _machine.facts() | {"runs": runs},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {len(ratios)} ratios, medians of {runs} runs, to {file}")
    return 0


def check(file: Path = FILE) -> int:
    """Compares with the baseline. The exit status: 1 if a ratio was lost or cannot be measured."""
    if not file.exists():
        print(f"{file} is not there: python -m benchmarks baseline", file=sys.stderr)
        return 1
    document = json.loads(file.read_text())
    facts = _machine.facts()
    for key in ("cpu", "cores", "simd", "torch"):
        before, now = document["machine"].get(key), facts[key]
        if before != now:
            print(f"note: the baseline was measured with {key} {before}, this is {now}")
    try:
        losses = _guard.compare(document["ratios"], measure)
    except ProbeFailed as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return 1
    for loss in losses:
        print(f"LOST {loss}")
    print(f"{len(document['ratios']) - len(losses)} of {len(document['ratios'])} ratios are kept")
    return int(bool(losses))
