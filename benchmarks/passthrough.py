"""What it costs to go through cgx where cgx has nothing to do: other collectives, against gloo.

    python -m benchmarks.passthrough [--ranks 2] [--sizes 4 64K 16M] [--operations broadcast ...]
        [--seconds 1.2] [--quick] [--json FILE] [--plot FILE]

cgx hands every collective that is no SUM or AVG of floats to a gloo group of its own. Each is
measured on a cgx group and on a plain gloo group, in the same processes, in turns (gloo, cgx, cgx,
gloo, ...), for about so many seconds per operation and size, in three rounds of new processes:
which core a thread of gloo lands on decides a round's times. A time is the slowest rank's. The
ratio is gloo's median over cgx's: 1 is as fast, below 1 slower. Single times of gloo scatter by a
factor of ten, as its threads are woken soon or late, so the ratio's uncertainty is told beside it:
the 10th and 90th percentile over resamples of the times. Sizes are of the vector of one rank; sends
go to the neighbour and back.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import torch_cgx
from benchmarks import _machine
from benchmarks._arguments import add_output_arguments, at_least, parse_size
from benchmarks._report import size_text, spread, time_text

SIZES = [4, 64 << 10, 16 << 20]
_TIMEOUT = timedelta(seconds=60)
# Calls between two looks at the clock: about so long, so that the way out of the barrier is short
# beside it.
_SAMPLE_SECONDS, _MOST_CALLS = 2e-3, 16
_LEAST_PAIRS, _MOST_PAIRS = 8, 1000
_RESAMPLES = 200

Run = Callable[[], object]
Make = Callable[[Any, int, int, int], Run]


def _broadcast(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x = torch.ones(numel)
    return lambda: dist.broadcast(x, 0, group=group)


def _all_gather(group: Any, rank: int, ranks: int, numel: int) -> Run:
    x, out = torch.ones(numel), torch.ones(ranks * numel)
    return lambda: dist.all_gather_into_tensor(out, x, group=group)


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
    return lambda: dist.reduce_scatter_tensor(out, x, op=dist.ReduceOp.MAX, group=group)


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


@dataclass(frozen=True)
class Job:
    """What all ranks measure. sizes: bytes; seconds: of each operation and size, over all rounds;
    cgx_first: of the two groups, which is made first.
    """

    ranks: int
    sizes: list[int]
    operations: list[str]
    seconds: float
    rounds: int = 3
    cgx_first: bool = False


def measure_rank(rank: int, job: Job, port: int, result: str, number: int) -> None:
    """Runs one rank; rank 0 writes the samples as JSON. port: of a TCPStore on this host;
    number: of the round.
    """
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"round {number}", store),
        rank=rank,
        world_size=job.ranks,
        timeout=_TIMEOUT,
    )
    try:
        groups = {}
        for name in ("cgx", "gloo") if job.cgx_first else ("gloo", "cgx"):
            options = torch_cgx.Options(bits=32) if name == "cgx" else None
            groups[name] = dist.new_group(backend=name, pg_options=options)
        measured = []
        for name in job.operations:
            for nbytes in [0] if name == "barrier" else job.sizes:
                make = OPERATIONS[name]
                runs = [
                    make(group, rank, job.ranks, nbytes // 4)
                    for group in (groups["gloo"], groups["cgx"])
                ]
                samples = _measure(runs, job.seconds / job.rounds)
                gathered: list[Any] = [None] * job.ranks
                dist.all_gather_object(gathered, samples)
                slowest = [
                    [max(times) for times in zip(*(one[i] for one in gathered), strict=True)]
                    for i in range(2)
                ]
                measured.append({"operation": name, "bytes": nbytes, "samples": slowest})
        if rank == 0:
            Path(result).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


def _measure(runs: list[Run], seconds: float) -> list[list[float]]:
    """Seconds per call of each of the two in turns: a, b, b, a. All ranks take equal numbers."""
    for run in runs:
        _sample(run, 2)
    estimate = max(_sample(runs[0], 4), 1e-7)
    plan: list[Any] = [None]
    calls = math.ceil(min(max(_SAMPLE_SECONDS / estimate, 1), _MOST_CALLS))
    pairs = math.ceil(min(max(seconds / (2 * calls * estimate), _LEAST_PAIRS), _MOST_PAIRS))
    plan = [(calls, pairs)]
    dist.broadcast_object_list(plan)
    calls, pairs = plan[0]
    samples: list[list[float]] = [[], []]
    for pair in range(pairs):
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            samples[i].append(_sample(runs[i], calls))
    return samples


def _sample(run: Run, calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def ratio_of(gloo: list[float], cgx: list[float]) -> tuple[float, float, float]:
    """gloo's median over cgx's: 10th percentile over resamples, of the times as they are, 90th."""
    draw = random.Random(0)
    resampled = [
        statistics.median(draw.choices(gloo, k=len(gloo)))
        / statistics.median(draw.choices(cgx, k=len(cgx)))
        for _ in range(_RESAMPLES)
    ]
    low, _, high = spread(resampled)
    return low, statistics.median(gloo) / statistics.median(cgx), high


def to_rows(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per operation and size."""
    rows = []
    for one in measured:
        gloo, cgx = one["samples"]
        low, ratio, high = ratio_of(gloo, cgx)
        rows.append(
            {
                "operation": one["operation"],
                "bytes": one["bytes"],
                "gloo_seconds": statistics.median(gloo),
                "cgx_seconds": statistics.median(cgx),
                "ratio": ratio,
                "ratio_p10": low,
                "ratio_p90": high,
                "samples": len(gloo),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(row["operation"]) for row in rows)
    lines = [
        f"{'operation':<{width}} {'size':>6} {'gloo':>11} {'cgx':>11} {'gloo/cgx':>9} p10 - p90"
    ]
    for row in rows:
        between = f"{row['ratio_p10']:.2f} - {row['ratio_p90']:.2f}"
        lines.append(
            f"{row['operation']:<{width}} {size_text(row['bytes']):>6} "
            f"{time_text(row['gloo_seconds']):>11} {time_text(row['cgx_seconds']):>11} "
            f"{row['ratio']:>9.3f} {between}"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], title: str, file: str) -> None:
    """Writes the picture: a bar per operation and size, against 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["operation"] for row in rows))
    sizes = sorted({row["bytes"] for row in rows if row["bytes"]})
    figure, axis = pyplot.subplots(figsize=(11, 4.8))
    for i, nbytes in enumerate(sizes):
        mine = [row for row in rows if row["bytes"] in ((nbytes, 0) if i == 0 else (nbytes,))]
        places = [names.index(row["operation"]) + 0.8 * (i / len(sizes) - 0.4) for row in mine]
        axis.bar(places, [row["ratio"] for row in mine], 0.8 / len(sizes), label=size_text(nbytes))
    axis.axhline(1, color="black", linewidth=1)
    axis.axhline(0.97, color="grey", linestyle=":", label="0.97")
    axis.set_xticks(range(len(names)), [name.replace(" ", "\n") for name in names], fontsize=7)
    axis.set(ylabel="gloo's time over cgx's (medians)", title=title, ylim=(0, None))
    axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.passthrough",
        description="Collectives that are not cgx's own, over cgx and over gloo alone.",
    )
    parser.add_argument("--ranks", type=at_least(2), default=2, metavar="N")
    parser.add_argument("--sizes", nargs="+", type=parse_size, metavar="SIZE", help="4 64K 16M")
    parser.add_argument("--operations", nargs="+", choices=list(OPERATIONS), metavar="NAME")
    parser.add_argument(
        "--seconds", type=float, help="of each operation and size: 1.2; --quick: 0.2"
    )
    parser.add_argument("--quick", action="store_true", help="shorter")
    add_output_arguments(parser)
    return parser.parse_args(argv)


def measure(job: Job) -> list[dict[str, Any]]:
    """Runs the job in processes of its own. A rank's exception is raised here, with its text."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    rounds = []
    with tempfile.TemporaryDirectory(prefix="cgx-passthrough-") as folder:
        for number in range(job.rounds):
            result = Path(folder) / f"measured-{number}.json"
            this = dataclasses.replace(job, cgx_first=number % 2 == 1)
            spawn(measure_rank, args=(this, store.port, str(result), number), nprocs=job.ranks)
            rounds.append(json.loads(result.read_text()))
    return to_rows(pooled(rounds))


def pooled(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The samples of all rounds as those of one."""
    together = []
    for same in zip(*rounds, strict=True):
        samples = [list(itertools.chain(*(one["samples"][i] for one in same))) for i in range(2)]
        together.append({**same[0], "samples": samples})
    return together


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    job = Job(
        ranks=args.ranks,
        sizes=sorted(set(args.sizes or SIZES)),
        operations=args.operations or list(OPERATIONS),
        seconds=args.seconds or (0.2 if args.quick else 1.2),
        rounds=1 if args.quick else 3,
    )
    start = time.monotonic()
    facts = _machine.facts() | {"ranks": job.ranks, "threads": 1}
    facts |= {"seconds_each": job.seconds, "rounds": job.rounds}
    print(_machine.line(facts), flush=True)
    rows = measure(job)
    facts["seconds"] = round(time.monotonic() - start, 1)
    print(f"\n{table(rows)}\n")
    ratios = [row["ratio"] for row in rows]
    print(f"median of all {statistics.median(ratios):.3f}, lowest {min(ratios):.3f}")
    print(f"{facts['seconds']} s in all")
    if args.json:
        document = {"benchmark": "passthrough", "machine": facts, "rows": rows}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(rows, f"through cgx, {job.ranks} ranks on one host ({facts['cpu']})", args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
