"""The guard: when has something become slower?

Compares ratios, not times: those of one run, against a peer or a roof measured in it, hardly depend
on how busy the machine is. Higher is better in all of them. Short runs of some parts (`Probe`) are
compared with benchmarks/results/baseline.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._command import RESULTS, machine_facts, size_text, write_json

TOLERANCE = 0.2
REPEATS = 3
FILE = RESULTS / "baseline.json"
RUNS = 3  # of which the baseline is the median

Ratios = dict[str, float]
Document = dict[str, Any]
# Runs a part, named like that, with these arguments; what it writes. ProbeFailed if it ends badly.
RunPart = Callable[[str, tuple[str, ...]], Document]


class ProbeFailed(Exception):
    """A short run ended badly; the text says which, and why."""


@dataclass(frozen=True)
class Loss:
    """A row that stayed below the baseline. best: the highest ratio seen; None: not measured."""

    name: str
    baseline: float
    best: float | None

    def __str__(self) -> str:
        if self.best is None:
            return f"{self.name}: {self.baseline:.3f} in the baseline, not measured now"
        lost = 1 - self.best / self.baseline
        return f"{self.name}: {self.best:.3f}, was {self.baseline:.3f} ({100 * lost:.0f} % less)"


def compare(
    baseline: Ratios,
    measure: Callable[[set[str]], Ratios],
    tolerance: float = TOLERANCE,
    repeats: int = REPEATS,
) -> list[Loss]:
    """Rows of `baseline` that are lost: more than `tolerance` below it each time. A row that is, is
    measured up to `repeats` times more, since noise comes and goes and a loss stays.

    measure: takes the names of rows that are wanted, gives at least those of them that can be
    measured.
    """
    best: Ratios = {}
    wanted = set(baseline)
    for _ in range(1 + repeats):
        for name, ratio in measure(wanted).items():
            if name in wanted:
                best[name] = max(ratio, best.get(name, 0.0))
        wanted = {
            name
            for name in wanted
            # Not "<": a ratio that is no number is lost, too.
            if not best.get(name, 0.0) >= (1 - tolerance) * baseline[name]
        }
        if not wanted:
            break
    return [Loss(name, baseline[name], best.get(name)) for name in baseline if name in wanted]


# ---- probes


def _codec(document: Document) -> Ratios:
    best = document["machine"]["levels"][-1]
    return {
        f"codec: {row['name']} / {row['roof']}": row["of_roof"]
        for row in document["rows"]
        if row["level"] == best and row["roof"] and row["name"].startswith(("encode", "decode"))
    }


def _allreduce(document: Document) -> Ratios:
    return {
        f"allreduce: {row['method']}, {size_text(row['bytes'])} / gloo": row["speedup"]
        for row in document["rows"]
        if row["method"].startswith("cgx")
    }


def _collectives(document: Document) -> Ratios:
    # One row for all: a single one is as noisy as gloo's threads.
    ratios = [row["ratio"] for row in document["parts"]["host"]["rows"]]
    return {"collectives: median of all / gloo": statistics.median(ratios)}


@dataclass(frozen=True)
class Probe:
    """A short run of a part, and the ratios in what it writes; their names begin with its own."""

    part: str
    arguments: tuple[str, ...]
    ratios: Callable[[Document], Ratios]


Probes = tuple[Probe, ...]
PROBES: Probes = (
    Probe("codec", ("--quick",), _codec),
    Probe(
        "allreduce",
        ("--communicator", "shm", "--sizes", "16K", "1M", "64M", "--bits", "32", "8", "4", "2")
        + ("--repeats", "9", "--no-bf16", "--peers"),
        _allreduce,
    ),
    Probe("collectives", ("--quick", "--part", "host", "--seconds", "0.2"), _collectives),
)


def measure(run: RunPart, wanted: set[str] | None = None, probes: Probes = PROBES) -> Ratios:
    """Ratios of those probes that have a wanted one; None: of all. ProbeFailed if one fails."""
    found: Ratios = {}
    for probe in probes:
        if wanted is not None and not any(n.startswith(f"{probe.part}: ") for n in wanted):
            continue
        print(f"measuring {probe.part} ...", flush=True)
        found |= probe.ratios(run(probe.part, probe.arguments))
    return found


def write(run: RunPart, file: Path = FILE, probes: Probes = PROBES) -> int:
    """Measures the baseline anew. The exit status."""
    try:
        measured = [measure(run, None, probes) for _ in range(RUNS)]
    except ProbeFailed as error:
        print(f"baseline: {error}", file=sys.stderr)
        return 1
    ratios = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
    document = {
        "benchmark": "baseline",
        "machine": machine_facts() | {"runs": RUNS},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, document)
    print(f"wrote {len(ratios)} ratios, medians of {RUNS} runs, to {file}")
    return 0


def check(run: RunPart, file: Path = FILE, probes: Probes = PROBES) -> int:
    """Compares with the baseline. The exit status: 1 if a ratio was lost or cannot be measured."""
    if not file.exists():
        print(f"{file} is not there: python -m benchmarks baseline", file=sys.stderr)
        return 1
    document = json.loads(file.read_text())
    facts = machine_facts()
    for key in ("cpu", "cores", "simd", "torch"):
        before, now = document["machine"].get(key), facts[key]
        if before != now:
            print(f"note: the baseline was measured with {key} {before}, this is {now}")
    try:
        losses = compare(document["ratios"], lambda wanted: measure(run, wanted, probes))
    except ProbeFailed as error:
        print(f"bench-check: {error}", file=sys.stderr)
        return 1
    for loss in losses:
        print(f"LOST {loss}")
    print(f"{len(document['ratios']) - len(losses)} of {len(document['ratios'])} ratios are kept")
    return int(bool(losses))
