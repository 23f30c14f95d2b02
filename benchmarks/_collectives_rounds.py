"""How benchmarks/collectives.py takes times: two gloo groups and a cgx group in turns, in rounds of
new processes that make the groups in different orders.

Which core a thread of gloo lands on decides a round's times, by up to 40 %. A sample is several
calls in a row, about as long for each group, so that the way out of the barrier before it is short
beside it. A time is the slowest rank's. The ratio of a round is the mean of gloo's two medians over
cgx's median; the ratio of a row is the geometric mean over the rounds, between its 10th and 90th
percentile over resamples of the rounds. The control is one gloo group over the other: its distance
from 1 is noise.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _collectives_calls as calls
from benchmarks._command import spread
from benchmarks._measure import seconds_per_call
from benchmarks._ranks import everyone

GROUPS = ("gloo", "cgx", "gloo again")
_SAMPLE_SECONDS, _MOST_CALLS = 3e-3, 400
_LEAST_TURNS, _MOST_TURNS = 3, 1000
_LONG = 4 << 20  # bytes from which a first call is hardly slower than others
_LONG_TURN = 0.4  # seconds
_RESAMPLES = 200

Row = dict[str, Any]
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Job:
    """What all ranks measure in one round. sizes: bytes; seconds: of each operation and size;
    order: in which the groups are made; compare: the results of all groups, too, and what gloo
    cannot do.
    """

    operations: list[str]
    sizes: list[int]
    seconds: float
    order: tuple[str, ...] = GROUPS
    compare: bool = True


def orders(rounds: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """A number and an order of the groups for each round."""
    every = list(itertools.permutations(GROUPS))
    # 5 and 6 have no common divisor: each group is the first, the second and the third soon.
    return ((number, every[5 * number % len(every)]) for number in range(rounds))


def make_groups(order: tuple[str, ...]) -> dict[str, Any]:
    """The groups by name, in the order of GROUPS. Collective."""
    made = {name: new_group(name) for name in order}
    return {name: made[name] for name in GROUPS}


def new_group(name: str) -> Any:
    options = torch_cgx.Options(bits=32) if name == "cgx" else None
    return dist.new_group(backend=name.split()[0], pg_options=options)


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank, in one round."""
    job = Job(**fields)
    groups = make_groups(tuple(job.order))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    measured: list[Row] = []
    skipped: dict[str, str] = {}
    wrong: list[str] = []
    for name in job.operations:
        for nbytes in calls.sizes_of(name, job.sizes):
            call = calls.OPERATIONS[name](rank, ranks, nbytes)
            if job.compare:
                try:
                    call.run(groups["gloo"])
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    # Where gloo has no such collective, on every rank alike.
                    skipped[name] = f"not measured: gloo says {str(error).splitlines()[0]}"
                    break
                found = everyone(calls.differing(call, groups, rank))
                wrong += [
                    f"{name} of {nbytes} bytes over {group}: rank {number} has another result"
                    for number, names in enumerate(found)
                    for group in names
                ]
            runs = {which: _bound(calls.run_of(call, which), groups[which]) for which in groups}
            taken = samples(runs, job.seconds, nbytes >= _LONG)
            measured.append({"operation": name, "bytes": nbytes, "seconds": slowest(taken)})
    return {"rows": measured, "skipped": skipped, "wrong": wrong}


def measure_copies(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank, in one round: cgx in turns with a copy of the tensor, by all ranks at once."""
    job = Job(**fields)
    group = new_group("cgx")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    measured: list[Row] = []
    for name in job.operations:
        for nbytes in job.sizes:
            call = calls.OPERATIONS[name](rank, ranks, nbytes)
            x, y = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
            runs = {"cgx": _bound(call.run, group), "copy": lambda x=x, y=y: y.copy_(x)}
            taken = slowest(samples(runs, job.seconds, nbytes >= _LONG))
            measured.append(
                {"operation": name, "bytes": nbytes, "moved": call.moved, "seconds": taken}
            )
    return {"rows": measured}


def _bound(run: calls.Run, group: Any) -> Callable[[], object]:
    return lambda: run(group)


def samples(
    runs: dict[str, Callable[[], object]], seconds: float, long_calls: bool = False
) -> Samples:
    """Seconds per call of each, in turns that rotate. Collective: all ranks take equally many."""
    names = list(runs)
    estimates = [seconds_per_call(runs[name], 1) for name in names]
    if not long_calls:
        estimates = [seconds_per_call(runs[name], 4) for name in names]
    # The slowest rank's: a rank that only sends may be done long before the others.
    estimates = [max(*times, 1e-7) for times in zip(*everyone(estimates), strict=True)]
    numbers = [math.ceil(min(max(_SAMPLE_SECONDS / e, 1), _MOST_CALLS)) for e in estimates]
    turn_seconds = sum(n * e for n, e in zip(numbers, estimates, strict=True))
    turns = math.ceil(seconds / turn_seconds)
    turns = min(max(turns, _LEAST_TURNS if turn_seconds < _LONG_TURN else 2), _MOST_TURNS)
    taken: Samples = {name: [] for name in names}
    for turn in range(turns):
        for k in range(len(names)):
            i = (turn + k) % len(names)
            taken[names[i]].append(seconds_per_call(runs[names[i]], numbers[i]))
    return taken


def slowest(taken: Samples) -> dict[str, float]:
    """The median over the samples, each of its slowest rank. Collective."""
    gathered = everyone(taken)
    medians = {}
    for name in taken:
        samples_of_ranks = zip(*(of_rank[name] for of_rank in gathered), strict=True)
        medians[name] = statistics.median(max(times) for times in samples_of_ranks)
    return medians


# ---- rows


def ratio_of(rounds: list[float]) -> tuple[float, float, float]:
    """Of one ratio a round: 10th percentile of the geometric mean over resamples of the rounds, the
    mean, 90th percentile.
    """
    draw = random.Random(0)
    means = [mean(draw.choices(rounds, k=len(rounds))) for _ in range(_RESAMPLES)]
    low, _, high = spread(means)
    return low, mean(rounds), high


def mean(ratios: list[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def compared(times: list[dict[str, float]]) -> Row:
    """What a row says of the medians of each round, by group."""
    gloo = [math.sqrt(t["gloo"] * t["gloo again"]) for t in times]
    low, ratio, high = ratio_of([g / t["cgx"] for g, t in zip(gloo, times, strict=True)])
    return {
        "gloo_seconds": statistics.median(gloo),
        "cgx_seconds": statistics.median(t["cgx"] for t in times),
        "ratio": ratio,
        "ratio_p10": low,
        "ratio_p90": high,
        "control": mean([t["gloo"] / t["gloo again"] for t in times]),
        "rounds": len(times),
    }


def to_rows(rounds: list[list[Row]], place: Row) -> list[Row]:
    """One row per operation and size, `place` in each. rounds: what was measured in each."""
    rows = []
    for same in zip(*rounds, strict=True):
        first = same[0]
        row = place | {"operation": first["operation"], "bytes": first["bytes"]}
        rows.append(row | compared([one["seconds"] for one in same]))
    return rows


def to_copy_rows(rounds: list[list[Row]], place: Row) -> list[Row]:
    """of_copy: the speed at which a rank gets its tensor, divided by the speed of a copy."""
    rows = []
    for same in zip(*rounds, strict=True):
        first = same[0]
        nbytes, moved = first["bytes"], first["moved"]
        times = [one["seconds"] for one in same]
        low, ratio, high = ratio_of([(moved / nbytes) * t["copy"] / t["cgx"] for t in times])
        cgx = statistics.median(t["cgx"] for t in times)
        copy = statistics.median(t["copy"] for t in times)
        rows.append(
            place
            | {
                "operation": first["operation"],
                "bytes": nbytes,
                "cgx_seconds": cgx,
                "copy_seconds": copy,
                "cgx_gb_per_s": moved / cgx / 1e9,
                "copy_gb_per_s": nbytes / copy / 1e9,
                "of_copy": ratio,
                "of_copy_p10": low,
                "of_copy_p90": high,
                "rounds": len(times),
            }
        )
    return rows
