"""Whether an autotuned group is as fast as the best of what it may choose from.

    python -m benchmarks.autotune [--links shm gloo | 1gbit ...] [--sizes 1K 64M] [--bits 4]
        [--seconds 18] [--processes 9] [--settle 50] [--quick] [--json FILE] [--plot FILE]

Two ranks: with `shm` and `gloo` on one host, over that communicator; with a rate on two hosts
(network namespaces, tests/hosts/bed.py: needs Linux, root, iproute2) whose links have it, up to 4
MiB unless --sizes says more. shm and gloo with all sizes take some 13 minutes. Groups that are
exact, of 16 bits, of 4 bits and an autotuned one that was asked for 4, a gloo group, and one more
exact group all take turns in the same processes; the order is drawn anew in every round, so none
always follows the same one. Calls of up to 16 KiB are timed sixteen at a time, of up to 256
KiB four at a time, others one by one (gloo's two by two at most). A time is from when the last rank
begins to when the last one has ended. All of that is done in --processes pairs of new processes,
one after the other, which make their groups in another order each: which core a thread lands on
and where its memory lies makes equal groups differ. In each of them the autotuned group begins
anew, and has made at most --settle calls of a size before its times count.

`of best` is the median of the fastest of exact, 16 bits and the asked bits over the median of the
autotuned group, of all processes: 1 is as fast, below 1 slower. `control` is the same of the one
exact group over the other: what that is off by is noise. `taken` says which choices the autotuned
group took in the calls that were timed. Every result is verified; status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks import _machine, _stores
from benchmarks._arguments import add_output_arguments, at_least, parse_size
from benchmarks._autotune_rank import CHOICES, METHODS, TIMEOUT, AutotuneJob, measure_job
from benchmarks._hosts_bed import rate as rate_of_link
from benchmarks._report import size_text, spread, time_text
from tests.hosts.bed import hosts, hosts_available

ONE_HOST = ("shm", "gloo")
SIZES = [4**k for k in range(5, 14)]  # 1 KiB to 64 MiB
MOST_BETWEEN_HOSTS = 4 << 20  # where a call of 64 MiB takes half a second
QUICK_SIZES = [4**5, 4**8, 4**11]
_LIMIT = 600.0  # seconds of a run between hosts


def link(text: str) -> str:
    """ "shm", "gloo", or the rate of a link between hosts."""
    if text not in ONE_HOST:
        rate_of_link(text)
    return text


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autotune",
        description="Autotuned groups against the best of what they choose from.",
    )
    parser.add_argument("--links", nargs="+", type=link, metavar="LINK", help="shm gloo; 1gbit")
    parser.add_argument(
        "--sizes", nargs="+", type=parse_size, metavar="SIZE", help="bytes of fp32: 1K, 64M"
    )
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=4)
    parser.add_argument("--bucket-size", type=at_least(1), default=512, metavar="N")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="for each size; 18; over Gloo three times as many up to 256 KiB",
    )
    parser.add_argument("--processes", type=at_least(1), metavar="N", help="9; 1 with --quick")
    parser.add_argument("--settle", type=at_least(20), default=50, metavar="CALLS", help="50")
    parser.add_argument("--quick", action="store_true", help="one host, three sizes")
    add_output_arguments(parser)
    return parser.parse_args(argv)


def _rank(rank: int, job: AutotuneJob, port: int, result: str) -> None:
    torch.set_num_threads(1)
    store = _stores.join(port, TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=TIMEOUT)
    try:
        measured = measure_job(job)
        if rank == 0:
            Path(result).write_text(json.dumps(measured))
    finally:
        dist.destroy_process_group()


def measure(job: AutotuneJob, link: str, processes: int) -> dict[str, Any]:
    """Runs the job over one link, in so many pairs of processes."""
    communicator = link.upper() if link in ONE_HOST else ""
    runs = []
    for number in range(processes):
        part = dataclasses.replace(
            job, communicator=communicator, seconds=job.seconds / processes, number=number
        )
        runs.append(_on_one_host(part) if link in ONE_HOST else _between_hosts(part, link))
    rows = [to_row(same) for same in zip(*(run["sizes"] for run in runs), strict=True)]
    return {
        "link": link,
        "carrier": runs[0]["carrier"],
        "tuning": [run["tuning"] for run in runs],
        "rows": rows,
    }


def _on_one_host(job: AutotuneJob) -> dict[str, Any]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    store = _stores.serve()
    with tempfile.TemporaryDirectory(prefix="cgx-autotune-") as folder:
        result = Path(folder) / "measured.json"
        spawn(_rank, args=(job, store.port, str(result)), nprocs=2)
        return dict(json.loads(result.read_text()))


def _between_hosts(job: AutotuneJob, link: str) -> dict[str, Any]:
    with hosts(2, None if link == "none" else link) as bed:
        job_file, result = bed.folder / "job.json", bed.folder / "result.json"
        job_file.write_text(job.to_json())
        rank = [sys.executable, "-m", "benchmarks._autotune_rank", str(job_file), str(result)]
        bed.run(rank, 1, timeout=_LIMIT)
        return dict(json.loads(result.read_text()))


def to_row(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and ratios of one size. same: what each pair of processes measured of it."""
    samples = {name: [t for one in same for t in one["seconds"][name]] for name in METHODS}
    spreads = {name: spread(samples[name]) for name in METHODS}
    seconds = {name: spreads[name][1] for name in METHODS}
    best = min(CHOICES, key=lambda name: seconds[name])
    calls = sum(len(one["seconds"]["tuned"]) * one["calls_per_sample"] for one in same)
    return {
        "bytes": same[0]["bytes"],
        "calls_per_sample": same[0]["calls_per_sample"],
        "samples": len(samples["tuned"]),
        "settled_after": max(one["settled_after"] for one in same),
        "right": all(one["right"] for one in same),
        "seconds": seconds,
        "seconds_p10": {name: spreads[name][0] for name in METHODS},
        "seconds_p90": {name: spreads[name][2] for name in METHODS},
        "best": best,
        "of_best": seconds[best] / seconds["tuned"],
        "of_best_by_process": [_of_best(one["seconds"]) for one in same],
        "control": seconds["exact"] / seconds["again"],
        "taken": {name: sum(one["taken"][name] for one in same) for name in CHOICES},
        "choices": [one["choice"] for one in same],
        "predicted": [one["predicted"] for one in same],
        "measured": [one["measured"] for one in same],
        # Of the time of those calls.
        "tuning_share": sum(one["tuning_seconds"] for one in same)
        / (calls * statistics.fmean(samples["tuned"])),
    }


def _of_best(samples: dict[str, list[float]]) -> float:
    best = min(statistics.median(samples[name]) for name in CHOICES)
    return best / statistics.median(samples["tuned"])


def table(run: dict[str, Any]) -> str:
    """All sizes of one link."""
    lines = [
        f"{run['link']} ({run['carrier']})",
        f"{'size':>6}" + "".join(f"{name:>11}" for name in METHODS) + f"  {'best':<6}"
        f"{'of best':>8} {'control':>8}  taken",
    ]
    for row in run["rows"]:
        times = "".join(f"{time_text(row['seconds'][name]):>11}" for name in METHODS)
        taken = ", ".join(f"{name} {n}" for name, n in row["taken"].items() if n)
        lines.append(
            f"{size_text(row['bytes']):>6}{times}  {row['best']:<6}{row['of_best']:>7.2f}x "
            f"{row['control']:>7.2f}x  {taken}{'' if row['right'] else '  WRONG'}"
        )
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], title: str, file: str) -> None:
    """By size, of every link: of best, and the control."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(runs), figsize=(3.2 * len(runs) + 1, 3.4), sharey=True, squeeze=False
    )
    for axis, run in zip(axes[0], runs, strict=True):
        sizes = [row["bytes"] for row in run["rows"]]
        axis.axhspan(0.95, 1 / 0.95, color="0.92")
        axis.plot(sizes, [row["control"] for row in run["rows"]], "o:", color="0.6", ms=3)
        axis.plot(sizes, [row["of_best"] for row in run["rows"]], "o-")
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes[::2], [size_text(nbytes) for nbytes in sizes[::2]])
        axis.set_title(run["link"])
    axes[0][0].set_ylabel("autotuned, times as fast as the best\n(dotted: exact, of another exact)")
    figure.suptitle(title)
    figure.savefig(file, dpi=120, bbox_inches="tight")


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    links = args.links or list(ONE_HOST)
    missing = hosts_available()
    not_measured = {one: missing for one in links if missing and one not in ONE_HOST}
    for one, why in not_measured.items():
        print(f"not measured: {one}: {why}", file=sys.stderr)
    sizes = sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES)))
    job = AutotuneJob(
        communicator="",
        sizes=sizes,
        seconds=args.seconds or (0.3 if args.quick else 18.0),
        settle=args.settle,
        bits=args.bits,
        bucket_size=args.bucket_size,
    )
    start = time.monotonic()
    facts = _machine.facts() | {"ranks": 2, "threads": 1, "bits": job.bits}
    processes = args.processes or (1 if args.quick else 9)
    facts |= {"bucket_size": job.bucket_size, "settle": job.settle, "seconds_each": job.seconds}
    facts |= {"processes": processes}
    print(_machine.line(facts), flush=True)
    runs = []
    for one in links:
        if one in not_measured:
            continue
        between = [nbytes for nbytes in sizes if args.sizes or nbytes <= MOST_BETWEEN_HOSTS]
        part = job if one in ONE_HOST else dataclasses.replace(job, sizes=between)
        runs.append(measure(part, one, processes))
        print(f"\n{table(runs[-1])}", flush=True)
    rows = [row for run in runs for row in run["rows"]]
    facts["seconds"] = round(time.monotonic() - start, 1)
    if not rows:
        return 0
    least = min(row["of_best"] for row in rows)
    print(
        f"\nautotuned: at least {least:.2f} times as fast as the best, median "
        f"{statistics.median(row['of_best'] for row in rows):.2f}; control "
        f"{min(row['control'] for row in rows):.2f} to {max(row['control'] for row in rows):.2f}"
    )
    document = {
        "benchmark": "autotune",
        "machine": facts,
        "not_measured": not_measured,
        "least_of_best": least,
        "runs": runs,
    }
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if args.plot:
        draw(runs, f"2 ranks, {job.bits} bits asked for ({facts['cpu']})", args.plot)
    wrong = [(run["link"], row) for run in runs for row in run["rows"] if not row["right"]]
    for where, row in wrong:
        print(f"WRONG: a result of {row['bytes']} bytes over {where}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
