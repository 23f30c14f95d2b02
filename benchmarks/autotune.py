"""Whether an autotuned group is as fast as the best of what it may choose from.

    python -m benchmarks.autotune [--links shm gloo | 1gbit ...] [--sizes 1K 64M] [--bits 4]
        [--seconds 18] [--processes 9] [--settle 50] [--quick] [--json FILE] [--plot FILE]

Two ranks: with `shm` and `gloo` on one host, over that communicator; with a rate on two hosts
(network namespaces, torch_cgx.testbed: needs Linux, root, iproute2) whose links have it, up to 4
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
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _measure, _ranks
from benchmarks._command import at_least, size_text, spread, time_text
from benchmarks._methods import GLOO, Gloo, Method, Reference, WidthGroup, contribution
from benchmarks._ranks import everyone
from torch_cgx.testbed.bed import hosts, hosts_available

ONE_HOST = ("shm", "gloo")
SIZES = [4**k for k in range(5, 14)]  # 1 KiB to 64 MiB
MOST_BETWEEN_HOSTS = 4 << 20  # where a call of 64 MiB takes half a second
QUICK_SIZES = [4**5, 4**8, 4**11]
_LIMIT = 600.0  # seconds of a run between hosts
# Calls between two looks at the clock: more where a call is short beside the way out of a barrier.
_CALLS = ((16 << 10, 16), (256 << 10, 4))
_MOST_CALLS_OF_GLOO = 2  # which is what nobody chooses from, and slow
_FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 3, 10, 2000
# Short calls vary by more, since threads wake each other up: they get so many times as long.
_SHORT, _LONGER = 256 << 10, 3
CHOICES = WidthGroup.CHOICES
# "again": a second group that is exact. What the two differ by is the noise.
METHODS = (*CHOICES, "tuned", "again", GLOO)


def link(text: str) -> str:
    """ "shm", "gloo", or the rate of a link between hosts."""
    if text not in ONE_HOST:
        _ranks.rate(text)
    return text


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autotune",
        description="Autotuned groups against the best of what they choose from.",
    )
    parser.add_argument("--links", nargs="+", type=link, metavar="LINK", help="shm gloo; 1gbit")
    _command.add_sizes_argument(parser, "1K, 64M")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=4)
    _command.add_bucket_size_argument(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="for each size; 18; over Gloo three times as many up to 256 KiB",
    )
    parser.add_argument("--processes", type=at_least(1), metavar="N", help="9; 1 with --quick")
    parser.add_argument("--settle", type=at_least(20), default=50, metavar="CALLS", help="50")
    parser.add_argument("--quick", action="store_true", help="one host, three sizes")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


@dataclass(frozen=True)
class AutotuneJob:
    """What all ranks measure. communicator: inside the host; "" between hosts. sizes: bytes of
    fp32; seconds: to be spent on each, three times as many on short messages over Gloo; settle:
    calls of a size that the autotuned group has made when the measurement begins, at most; number:
    of the processes, which make their groups in another order each time.
    """

    communicator: str
    sizes: list[int]
    seconds: float
    settle: int
    bits: int
    bucket_size: int
    number: int = 0


class Sampler:
    """Runs methods in turns: every round all of them once, in an order drawn anew, so that none
    always follows the same one.
    """

    def __init__(self, methods: list[Method], x: torch.Tensor, calls: int):
        self._methods = methods
        self._x, self._y = x, torch.empty_like(x)
        self._calls = [
            min(calls, _MOST_CALLS_OF_GLOO) if isinstance(method, Gloo) else calls
            for method in methods
        ]
        self._draw = random.Random(x.numel())  # the same on all ranks

    def rounds(self, number: int) -> list[list[tuple[float, float]]]:
        """By method: when this rank began a sample, and when it had ended it, in seconds a call."""
        times: list[list[tuple[float, float]]] = [[] for _ in self._methods]
        for _ in range(number):
            order = self._draw.sample(range(len(self._methods)), len(self._methods))
            for i in order:
                times[i].append(self._sample(self._methods[i], self._calls[i]))
        return times

    def _sample(self, method: Method, calls: int) -> tuple[float, float]:
        self._y.copy_(self._x)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            method.run(self._y)
        return start / calls, time.perf_counter() / calls


def seconds_of(per_rank: list[list[tuple[float, float]]]) -> list[float]:
    """Of each sample: from when the last rank began to when the last one had ended. The ranks'
    clock is this machine's, also where they are on several hosts of it.
    """
    return [
        max(end for _, end in ranks) - max(start for start, _ in ranks)
        for ranks in zip(*per_rank, strict=True)
    ]


def calls_per_sample(nbytes: int) -> int:
    return next((calls for limit, calls in _CALLS if nbytes <= limit), 1)


def measure_size(job: AutotuneJob, methods: list[Method], nbytes: int) -> dict[str, Any]:
    """Times the methods for one size. Collective; the same on all ranks."""
    x = contribution(dist.get_rank(), nbytes // 4)
    reference = Reference(dist.get_world_size(), x.numel(), job.bucket_size)
    tuned = _tuned(methods)
    before = sum(_counts(tuned).values())
    y = torch.empty_like(x)
    checks = [_measure.verify(method, reference, x, y) for method in methods]
    calls = calls_per_sample(nbytes)
    # It settles beside its choices alone; gloo and the second exact group are only measured.
    Sampler([one for one in methods if one.name in (*CHOICES, "tuned")], x, calls).rounds(
        (job.settle - 1) // calls
    )
    settled = sum(_counts(tuned).values()) - before
    sampler = Sampler(methods, x, calls)
    start_counts = _counts(tuned)
    spent = _seconds_tuning(tuned)
    start = time.monotonic()
    times = sampler.rounds(_FIRST_ROUNDS)
    each = max(everyone((time.monotonic() - start) / _FIRST_ROUNDS))
    seconds_here = job.seconds * (_LONGER if nbytes <= _SHORT and job.communicator != "SHM" else 1)
    rounds = min(max(math.ceil(seconds_here / each), _LEAST_ROUNDS), _MOST_ROUNDS)
    for mine, more in zip(times, sampler.rounds(rounds - _FIRST_ROUNDS), strict=True):
        mine += more
    per_rank = everyone(times)
    counts = _counts(tuned)
    known = tuned.tuning_of(nbytes)
    return {
        "bytes": nbytes,
        "calls_per_sample": calls,
        "settled_after": settled,
        "right": all(check["equal"] and check["within_bound"] for check in checks),
        "seconds": {
            method.name: seconds_of([one[i] for one in per_rank])
            for i, method in enumerate(methods)
        },
        "taken": {name: counts[name] - start_counts[name] for name in CHOICES},
        "tuning_seconds": _seconds_tuning(tuned) - spent,
        **{name: known[name] for name in ("measured", "choice")},
    }


def _tuned(methods: list[Method]) -> WidthGroup:
    (tuned,) = (one for one in methods if isinstance(one, WidthGroup) and one.name == "tuned")
    return tuned


def _counts(tuned: WidthGroup) -> dict[str, int]:
    stats = torch_cgx.stats(tuned.group)
    return {name: int(stats[f"tuned_{name}"]) for name in CHOICES}


def _seconds_tuning(tuned: WidthGroup) -> float:
    return float(torch_cgx.stats(tuned.group)["seconds_tuning"])


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank."""
    job = AutotuneJob(**fields)
    # That small ones are compressed is what is measured.
    warnings.filterwarnings("ignore", message="cgx: all_reduce of")
    options = {"inner_communicator": job.communicator} if job.communicator else {}
    first = job.number % len(METHODS)
    methods: list[Method] = [
        Gloo() if name == GLOO else WidthGroup(name, job.bits, job.bucket_size, **options)
        for name in METHODS[first:] + METHODS[:first]
    ]
    sizes = [measure_size(job, methods, nbytes) for nbytes in job.sizes]
    communicator = torch_cgx.stats(_tuned(methods).group)["communicator"]
    return {"communicator": communicator, "sizes": sizes}


def run(job: AutotuneJob, link: str, processes: int) -> dict[str, Any]:
    """Runs the job over one link, in so many pairs of processes."""
    communicator = link.upper() if link in ONE_HOST else ""
    runs = []
    for number in range(processes):
        seconds = job.seconds / processes
        part = dataclasses.replace(job, communicator=communicator, seconds=seconds, number=number)
        fields = dataclasses.asdict(part)
        if link in ONE_HOST:
            runs.append(_ranks.on_this_host(measure, fields, 2))
        else:
            with hosts(2, _ranks.rate(link)) as bed:
                runs.append(_ranks.on_hosts(bed, measure, fields, 1, _LIMIT))
    rows = [to_row(same) for same in zip(*(run["sizes"] for run in runs), strict=True)]
    return {
        "link": link,
        "communicator": runs[0]["communicator"],
        "rows": rows,
    }


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
        f"{run['link']} ({run['communicator']})",
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
    size = (3.2 * len(runs) + 1, 3.4)
    with _command.picture(file, 1, len(runs), figsize=size, sharey=True) as (figure, axes):
        for axis, run in zip(axes[0], runs, strict=True):
            sizes = [row["bytes"] for row in run["rows"]]
            axis.axhspan(0.95, 1 / 0.95, color="0.92")
            axis.plot(sizes, [row["control"] for row in run["rows"]], "o:", color="0.6", ms=3)
            axis.plot(sizes, [row["of_best"] for row in run["rows"]], "o-")
            _command.size_axis(axis, sizes[::2], "linear")
            axis.set_title(run["link"])
        axes[0][0].set_ylabel(
            "autotuned, times as fast as the best\n(dotted: exact, of another exact)"
        )
        figure.suptitle(title)


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
    processes = args.processes or (1 if args.quick else 9)
    facts = _command.print_facts(
        ranks=2,
        threads=1,
        bits=job.bits,
        bucket_size=job.bucket_size,
        settle=job.settle,
        seconds_each=job.seconds,
        processes=processes,
    )
    runs = []
    for one in links:
        if one in not_measured:
            continue
        between = [nbytes for nbytes in sizes if args.sizes or nbytes <= MOST_BETWEEN_HOSTS]
        part = job if one in ONE_HOST else dataclasses.replace(job, sizes=between)
        runs.append(run(part, one, processes))
        print(f"\n{table(runs[-1])}", flush=True)
    rows = [row for one in runs for row in one["rows"]]
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
    wrong = [
        f"a result of {row['bytes']} bytes over {one['link']}"
        for one in runs
        for row in one["rows"]
        if not row["right"]
    ]
    title = f"2 ranks, {job.bits} bits asked for ({facts['cpu']})"
    return _command.finish(args, document, lambda file: draw(runs, title, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
