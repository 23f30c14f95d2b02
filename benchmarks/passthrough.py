"""What it costs to go through cgx where cgx has nothing to do: other collectives, against gloo.

    python -m benchmarks.passthrough [--ranks 2] [--sizes 4 64K 16M] [--operations broadcast ...]
        [--seconds 1.2] [--quick] [--json FILE] [--plot FILE]

cgx hands every collective that is no SUM or AVG of floats to a gloo group of its own. Each is
measured on a cgx group and on two plain gloo groups, in the same processes, in turns, for about so
many seconds per operation and size, in rounds of new processes that make the groups in all orders:
which core a thread of gloo lands on decides a round's times, by up to 40 %. A time is the slowest
rank's. The ratio of a round is the mean of gloo's two medians over cgx's median: 1 is as fast,
below 1 slower. The table shows the geometric mean over the rounds, between its 10th and 90th
percentile over resamples of the rounds. The control is the same ratio of one gloo group over the
other: its distance from 1 is noise. Sizes are of the vector of one rank; sends go to the neighbour
and back.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import at_least, size_text, spread, time_text
from benchmarks._measure import seconds_per_call
from benchmarks._ranks import everyone

SIZES = [4, 64 << 10, 16 << 20]
# Calls between two looks at the clock: about so long, so that the way out of the barrier is short
# beside it.
_SAMPLE_SECONDS, _MOST_CALLS = 2e-3, 16
_LEAST, _MOST = 6, 1000
_RESAMPLES = 200

Run = Callable[[], object]
Make = Callable[[Any, int, int, int], Run]


def _broadcast(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    return lambda: dist.broadcast(x, 0, group=group)


def _all_gather(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x, out = torch.ones(numel), torch.ones(ranks * numel)
    return lambda: dist.all_gather_single(out, x, group=group)


def _all_gather_list(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x, out = torch.ones(numel), [torch.ones(numel) for _ in range(ranks)]
    return lambda: dist.all_gather(out, x, group=group)


def _all_to_all(group: Any, rank: int, ranks: int, numel: int) -> Run:
    numel = max(numel // ranks, 1) * ranks
    x, out = torch.ones(numel), torch.ones(numel)
    return lambda: dist.all_to_all_single(out, x, group=group)


def _reduce(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel, dtype=torch.int32)
    return lambda: dist.reduce(x, 0, op=dist.ReduceOp.MAX, group=group)


def _gather(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    out = [torch.ones(numel) for _ in range(ranks)] if rank == 0 else None
    return lambda: dist.gather(x, out, 0, group=group)


def _scatter(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    parts = [torch.ones(numel) for _ in range(ranks)] if rank == 0 else None
    return lambda: dist.scatter(x, parts, 0, group=group)


def _reduce_scatter_max(group: Any, rank: int, ranks: int, numel: int) -> Run:
    numel = max(numel // ranks, 1)
    x, out = torch.ones(ranks * numel), torch.ones(numel)
    return lambda: dist.reduce_scatter_single(out, x, op=dist.ReduceOp.MAX, group=group)


def _barrier(group: Any, rank: int, ranks: int, numel: int) -> Run:
    return lambda: dist.barrier(group=group)


def _send_recv(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    peer = rank ^ 1

    def run() -> None:
        if peer >= ranks:
            return
        if rank < peer:
            dist.send(x, peer, group=group)
            dist.recv(x, peer, group=group)
        else:
            dist.recv(x, peer, group=group)
            dist.send(x, peer, group=group)

    return run


def _all_reduce_max(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    return lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)


def _all_reduce_int64(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.zeros(max(numel // 2, 1), dtype=torch.int64)
    return lambda: dist.all_reduce(x, group=group)


OPERATIONS: dict[str, Make] = {
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather,
    "all_gather": _all_gather_list,
    "all_to_all_single": _all_to_all,
    "reduce MAX": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter MAX": _reduce_scatter_max,
    "send and recv": _send_recv,
    "all_reduce MAX": _all_reduce_max,
    "all_reduce int64": _all_reduce_int64,
    "barrier": _barrier,
}


GROUPS = ("gloo", "cgx", "gloo again")


@dataclass(frozen=True)
class Job:
    """What all ranks measure. sizes: bytes; seconds: of each operation and size, over all rounds;
    order: in which the groups are made.
    """

    ranks: int
    sizes: list[int]
    operations: list[str]
    seconds: float
    rounds: int = 6
    order: tuple[str, ...] = GROUPS


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank, in one round."""
    job = Job(**fields)
    groups = {}
    for name in job.order:
        options = torch_cgx.Options(bits=32) if name == "cgx" else None
        groups[name] = dist.new_group(backend=name.split()[0], pg_options=options)
    rank, measured = dist.get_rank(), []
    for name in job.operations:
        for nbytes in [0] if name == "barrier" else job.sizes:
            make = OPERATIONS[name]
            runs = [make(groups[which], rank, job.ranks, nbytes // 4) for which in GROUPS]
            gathered = everyone(_samples(runs, job.seconds / job.rounds))
            slowest = {
                which: statistics.median(
                    max(times) for times in zip(*(one[i] for one in gathered), strict=True)
                )
                for i, which in enumerate(GROUPS)
            }
            measured.append({"operation": name, "bytes": nbytes, "seconds": slowest})
    return {"rows": measured}


def _samples(runs: list[Run], seconds: float) -> list[list[float]]:
    """Seconds per call of each, in turns that rotate. All ranks take equal numbers."""
    for run in runs:
        seconds_per_call(run, 2)
    estimate = max(seconds_per_call(runs[0], 4), 1e-7)
    calls = math.ceil(min(max(_SAMPLE_SECONDS / estimate, 1), _MOST_CALLS))
    turns = math.ceil(min(max(seconds / (len(runs) * calls * estimate), _LEAST), _MOST))
    plan = [(calls, turns)]
    dist.broadcast_object_list(plan)
    calls, turns = plan[0]
    samples: list[list[float]] = [[] for _ in runs]
    for turn in range(turns):
        for k in range(len(runs)):
            i = (turn + k) % len(runs)
            samples[i].append(seconds_per_call(runs[i], calls))
    return samples


def ratio_of(rounds: list[float]) -> tuple[float, float, float]:
    """Of one ratio a round: 10th percentile of the geometric mean over resamples of the rounds, the
    mean, 90th percentile.
    """
    draw = random.Random(0)
    means = [_mean(draw.choices(rounds, k=len(rounds))) for _ in range(_RESAMPLES)]
    low, _, high = spread(means)
    return low, _mean(rounds), high


def _mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def to_rows(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per operation and size. rounds: what was measured in each."""
    rows = []
    for same in zip(*rounds, strict=True):
        times = [one["seconds"] for one in same]
        gloo = [math.sqrt(t["gloo"] * t["gloo again"]) for t in times]
        low, ratio, high = ratio_of([g / t["cgx"] for g, t in zip(gloo, times, strict=True)])
        rows.append(
            {
                "operation": same[0]["operation"],
                "bytes": same[0]["bytes"],
                "gloo_seconds": statistics.median(gloo),
                "cgx_seconds": statistics.median(t["cgx"] for t in times),
                "ratio": ratio,
                "ratio_p10": low,
                "ratio_p90": high,
                "control": _mean([t["gloo"] / t["gloo again"] for t in times]),
                "rounds": len(times),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["operation"]) for row in rows)
    lines = [
        f"{'operation':<{width}} {'size':>6} {'gloo':>11} {'cgx':>11} {'gloo/cgx':>9} p10 - p90   "
        "control"
    ]
    for row in rows:
        between = f"{row['ratio_p10']:.2f} - {row['ratio_p90']:.2f}"
        lines.append(
            f"{row['operation']:<{width}} {size_text(row['bytes']):>6} "
            f"{time_text(row['gloo_seconds']):>11} {time_text(row['cgx_seconds']):>11} "
            f"{row['ratio']:>9.3f} {between} {row['control']:>9.3f}"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], title: str, file: str) -> None:
    """The picture: a bar per operation and size, against 1."""
    names = list(dict.fromkeys(row["operation"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows if row["bytes"]})
    with _command.picture(file, 1, 1, figsize=(11, 4.8)) as (_, ((axis,),)):
        for i, nbytes in enumerate(sizes):
            mine = [row for row in rows if row["bytes"] in ((nbytes, 0) if i == 0 else (nbytes,))]
            places = [names.index(row["operation"]) + 0.8 * (i / len(sizes) - 0.4) for row in mine]
            ratios = [row["ratio"] for row in mine]
            axis.bar(places, ratios, 0.8 / len(sizes), label=size_text(nbytes))
        axis.axhline(1, color="black", linewidth=1)
        axis.axhline(0.97, color="grey", linestyle=":", label="0.97")
        axis.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=7)
        axis.set(ylabel="gloo's time over cgx's (medians)", title=title, ylim=(0, None))
        axis.legend(loc="lower right", fontsize=8)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.passthrough",
        description="Collectives that are not cgx's own, over cgx and over gloo alone.",
    )
    parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N")
    _command.add_sizes_argument(parser, "4 64K 16M")
    parser.add_argument("--operations", nargs="+", choices=list(OPERATIONS), metavar="NAME")
    parser.add_argument(
        "--seconds", type=float, help="of each operation and size: 1.2; --quick: 0.2"
    )
    parser.add_argument("--quick", action="store_true", help="shorter")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


def run(job: Job) -> list[dict[str, Any]]:
    """Runs the job's rounds, each in new processes."""
    orders = list(itertools.permutations(GROUPS))
    rounds = []
    for number in range(job.rounds):
        this = dataclasses.replace(job, order=orders[number % len(orders)])
        fields = dataclasses.asdict(this)
        rounds.append(_ranks.on_this_host(measure, fields, job.ranks)["rows"])
    return to_rows(rounds)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    job = Job(
        ranks=args.ranks,
        sizes=sorted(set(args.sizes or SIZES)),
        operations=args.operations or list(OPERATIONS),
        seconds=args.seconds or (0.2 if args.quick else 1.2),
        rounds=1 if args.quick else 6,
    )
    start = time.monotonic()
    facts = _command.print_facts(
        ranks=job.ranks, threads=1, seconds_each=job.seconds, rounds=job.rounds
    )
    rows = run(job)
    facts["seconds"] = round(time.monotonic() - start, 1)
    print(f"\n{table(rows)}\n")
    ratios = [row["ratio"] for row in rows]
    controls = [row["control"] for row in rows]
    print(f"median of all {statistics.median(ratios):.3f}, lowest {min(ratios):.3f}")
    print(f"control: {min(controls):.3f} to {max(controls):.3f}")
    print(f"{facts['seconds']} s in all")
    document = {"benchmark": "passthrough", "machine": facts, "rows": rows}
    title = f"through cgx, {job.ranks} ranks on one host ({facts['cpu']})"
    return _command.finish(args, document, lambda file: draw(rows, title, file))


if __name__ == "__main__":
    sys.exit(main())
