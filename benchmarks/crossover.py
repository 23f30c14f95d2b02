"""Where compression begins to pay, and whether the autotuner knows: exact, 16 bits and 4 bits, by
size and by rate of the link.

    python -m benchmarks.crossover [--rates 200mbit 1gbit ... none shm 10gbit@scalar]
        [--sizes 4K 16M] [--bits 4] [--repeats 9] [--quick] [--json FILE] [--plot FILE]

Two ranks, each on a host of its own (network namespaces, torch_cgx.testbed: needs Linux, root,
iproute2) whose links have the given rate, or with `shm` on one. `@scalar`, `@avx2` pin the codecs'
instruction set (CGX_CPU_LEVEL): a slower CPU, for which links are fast sooner. All groups are
measured in the same processes, one after another in every repetition; a time is the slowest
rank's, and a speed-up the median of pairs. The autotuned group has met the size before and has made
its choice. A second exact group is measured like it: what that gains or loses against the first is
noise. Every result is verified; status 1 if one is wrong.

Crossovers are where the time of the asked bits equals the exact one's, between the sizes (or the
rates) that were measured, on logarithmic scales.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch.distributed as dist

import torch_cgx
from benchmarks import _command, _measure, _ranks
from benchmarks._command import at_least, size_text, time_text
from benchmarks._methods import WidthGroup, contribution
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate

SHM = "shm"
RATES = ["200mbit", "1gbit", "2gbit", "5gbit", "10gbit", "none", SHM]
RATES += [f"{rate}@scalar" for rate in ("1gbit", "5gbit", "10gbit")]
SIZES = [4**k for k in range(6, 13)]  # 4 KiB to 16 MiB
QUICK_RATES, QUICK_SIZES = ["1gbit", SHM], [4**7, 4**9, 4**11]
_TIMEOUT = 300.0
# Calls after which the choice for a class of messages has been made.
_SETTLED = 50
# "again": a second group that is exact. What the two differ by is the noise.
METHODS = ("exact", "half", "asked", "tuned", "again")
# Short calls vary more, and cost less.
_SHORT_BYTES, _MORE_REPEATS = 256 << 10, 4


def rate(text: str) -> str:
    """A rate of links, "none" or "shm", with or without "@" and a level of instructions."""
    link, at, level = text.partition("@")
    if bool(at) != bool(level):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a rate, or RATE@LEVEL")
    if link != SHM:
        _ranks.rate(link)
    return text


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crossover",
        description="Where exact, 16-bit and few-bit all-reduces cross, and the autotuner's view.",
    )
    parser.add_argument("--rates", nargs="+", type=rate, metavar="RATE", help="200mbit, none, shm")
    _command.add_sizes_argument(parser, "4K, 16M")
    parser.add_argument("--bits", type=int, choices=range(1, 9), default=4)
    _command.add_bucket_size_argument(parser)
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="9; 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="two links, three sizes")
    _command.add_output_arguments(parser)
    return parser.parse_args(argv)


@dataclass(frozen=True)
class CrossoverJob:
    """What both ranks measure. sizes: bytes of fp32."""

    sizes: list[int]
    repeats: int
    bits: int
    bucket_size: int


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank."""
    job = CrossoverJob(**fields)
    groups = [WidthGroup(name, job.bits, job.bucket_size) for name in METHODS]
    tuned = groups[METHODS.index("tuned")]
    sizes = []
    for nbytes in job.sizes:
        x = contribution(dist.get_rank(), nbytes // 4)
        y = x.clone()
        for _ in range(_SETTLED):
            y.copy_(x)
            tuned.run(y)
        known = tuned.tuning_of(nbytes)
        repeats = job.repeats * (_MORE_REPEATS if nbytes <= _SHORT_BYTES else 1)
        timing = _measure.Timing(repeats, job.bucket_size)
        rows = _measure.measure_size(timing, groups, nbytes)["rows"]
        sizes.append(
            {
                "bytes": nbytes,
                "seconds": {row["method"]: row["seconds"] for row in rows},
                "right": all(row["equal"] and row["within_bound"] for row in rows),
                "tried": known["measured"],
                "choice": known["choice"],
            }
        )
    communicator = torch_cgx.stats(tuned.group)["communicator"]
    return {"communicator": communicator, "sizes": sizes}


def run(job: CrossoverJob, link: str) -> dict[str, Any]:
    """Runs the job over one link. HostsFailed, with what the ranks wrote, if it fails."""
    rate, _, level = link.partition("@")
    number, ranks = (1, 2) if rate == SHM else (2, 1)
    env = {"CGX_CPU_LEVEL": level} if level else None
    with hosts(number, None if rate in (SHM, "none") else rate) as bed:
        fields = dataclasses.asdict(job)
        measured = _ranks.on_hosts(bed, measure, fields, ranks, _TIMEOUT, env)
    rows = [to_row(size) for size in measured.pop("sizes")]
    return {"rate": link, **measured, **crossovers(rows), "rows": rows}


def to_row(size: dict[str, Any]) -> dict[str, Any]:
    """Medians and ratios of one size. fastest: of the three that do not choose; of_best, of_exact:
    how many times as fast as that, and as exact, the autotuned group is; noise: the same of a
    second exact group.
    """
    samples = size.pop("seconds")
    seconds = {name: statistics.median(samples[name]) for name in METHODS}
    best = min(WidthGroup.CHOICES, key=lambda name: seconds[name])
    spread = {name: [min(samples[name]), max(samples[name])] for name in METHODS}

    def times_as_fast(other: str, group: str = "tuned") -> float:
        pairs = zip(samples[other], samples[group], strict=True)
        return statistics.median(theirs / own for theirs, own in pairs)

    return {
        **size,
        "seconds": seconds,
        "spread": spread,
        "fastest": best,
        "of_best": times_as_fast(best),
        "of_exact": times_as_fast("exact"),
        "noise": times_as_fast("exact", "again"),
    }


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Where the second coordinate passes 1 for the last time, upwards or downwards, on logarithmic
    scales; None where it never does. points: by ascending first coordinate.
    """
    found = None
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if (y0 < 1) != (y1 < 1):
            share = -math.log(y0) / (math.log(y1) - math.log(y0))
            found = math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
    return found


def gains(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """(bytes, exact time / asked time) of every size."""
    return [(row["bytes"], row["seconds"]["exact"] / row["seconds"]["asked"]) for row in rows]


def crossovers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The size, in bytes, from which the asked bits are faster than exact."""
    return {"crossover_bytes": crossing(gains(rows))}


def crossover_rates(runs: list[dict[str, Any]], level: str) -> list[dict[str, Any]]:
    """By size: the rate of the link, in bit/s, up to which the asked bits are faster than exact.
    Only of links that have a rate, and of runs at that level ("": the CPU's best).
    """
    shaped = []
    for run in runs:
        rate, _, its_level = run["rate"].partition("@")
        if rate not in (SHM, "none") and its_level == level:
            shaped.append((parse_rate(rate), run))
    shaped.sort(key=lambda pair: pair[0])
    return [
        {
            "bytes": row["bytes"],
            "measured": crossing([(rate, gains(run["rows"])[i][1]) for rate, run in shaped]),
        }
        for i, row in enumerate(shaped[0][1]["rows"] if shaped else [])
    ]


def table(run: dict[str, Any]) -> str:
    """All sizes of one link."""
    lines = [
        f"{run['rate']} ({run['communicator']})",
        f"{'size':>6} {'exact':>9} {'16 bit':>9} {'asked':>9} {'tuned':>9}  {'fastest':<8}"
        f"{'chosen':<8}{'of best':>8} {'of exact':>8} "
        f"{'noise':>6}",
    ]
    for row in run["rows"]:
        times = " ".join(f"{time_text(row['seconds'][name]):>9}" for name in METHODS[:4])
        lines.append(
            f"{size_text(row['bytes']):>6} {times}  {row['fastest']:<8}"
            f"{row['choice']:<8}{row['of_best']:>7.2f}x "
            f"{row['of_exact']:>7.2f}x {row['noise']:>5.2f}x{'' if row['right'] else '  WRONG'}"
        )
    return "\n".join(lines)


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: the gain of the asked bits over exact against the size, for every link; and the
    time of the autotuned group against exact and against the best.
    """
    runs, bits = document["runs"], document["machine"]["bits"]
    ticks = sorted({row["bytes"] for run in runs for row in run["rows"]})
    with _command.picture(file, 1, 2, figsize=(14, 5.5), sharex=True) as (figure, axes):
        gain, tuned = axes[0]
        for number, run in enumerate(runs):
            rows = run["rows"]
            sizes = [row["bytes"] for row in rows]
            name = {"none": "unshaped", SHM: "one host (SHM)"}.get(run["rate"], run["rate"])
            color = _color(run["rate"], number / max(len(runs) - 1, 1))
            style: dict[str, Any] = {"color": color, "linewidth": 1.4, "markersize": 4}
            gain.plot(sizes, [g for _, g in gains(rows)], "-o", label=name, **style)
            if run["crossover_bytes"]:
                gain.plot(run["crossover_bytes"], 1, "D", color=color, markersize=8)
            tuned.plot(sizes, [row["of_exact"] for row in rows], "-o", label=name, **style)
            tuned.plot(sizes, [row["of_best"] for row in rows], ":", **style)
        gain.set(
            ylabel=f"exact time / {bits}-bit time",
            title="where compression pays (diamond: crossover)",
        )
        tuned.set(
            ylabel="times as fast as exact (line), as the best (dots)", title="the autotuned group"
        )
        tuned.axhline(0.95, color="red", linewidth=0.8, linestyle="--")
        for axis in (gain, tuned):
            _command.size_axis(axis, ticks)
            axis.axhline(1, color="grey", linewidth=1)
        gain.legend(fontsize=8)
        figure.suptitle(f"all-reduce of 2 ranks ({document['machine']['cpu']})")


def _color(rate: str, share: float) -> Any:
    """Of a link: by its place among all, 0 to 1; links with slower codecs have colours apart."""
    import matplotlib

    if rate == SHM:
        return "black"
    return matplotlib.colormaps["autumn" if "@" in rate else "viridis"](share)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    job = CrossoverJob(
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (3 if args.quick else 9),
        bits=args.bits,
        bucket_size=args.bucket_size,
    )
    start = time.monotonic()
    facts = _ranks.print_link_facts(repeats=job.repeats, bucket_size=job.bucket_size, bits=job.bits)
    runs = []
    for link in args.rates or (QUICK_RATES if args.quick else RATES):
        runs.append(run(job, link))
        print(f"\n{table(runs[-1])}", flush=True)
    rows = [row for one in runs for row in one["rows"]]
    slowest = min(row["of_exact"] for row in rows)
    behind = min(row["of_best"] for row in rows)
    noise = min(row["noise"] for row in rows)
    print(
        f"\nautotuned: at least {slowest:.2f} times as fast as exact (another exact group: "
        f"{noise:.2f}), {behind:.2f} as the best"
    )
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "crossover",
        "machine": facts,
        "least_of_exact": slowest,
        "least_of_best": behind,
        "least_noise": noise,
        "crossover_rates": {
            level: crossover_rates(runs, level)
            for level in dict.fromkeys(one["rate"].partition("@")[2] for one in runs)
        },
        "runs": runs,
    }
    wrong = [f"a result of {row['bytes']} bytes" for row in rows if not row["right"]]
    return _command.finish(args, document, lambda file: draw(document, file), wrong)


if __name__ == "__main__":
    sys.exit(main())
