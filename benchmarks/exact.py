r"""Is an exact all-reduce over Gloo ever slower than gloo's own?

    python -m benchmarks.exact [--layouts 1x2 2x1@1gbit ...] [--sizes 4 64K 64M] [--seconds 6]
        [--repeats 6] [--processes 3] [--with cross_reduction=SRA,...] [--quick]
        [--json FILE [--resume]] [--plot FILE]

A layout is HOSTSxRANKS of each host, and the rate of the hosts' links. Hosts are network namespaces
(torch_cgx.testbed: needs Linux, root, iproute2); the ranks of one host talk over Gloo, too. Beside
gloo and cgx a second group of gloo takes part: where it is off 1, so may be every other number. All
take turns in the same processes, for some seconds of each size (three times as long from 256 KiB to
4 MiB, where they are nearest to each other). That is shared out over some sets of new processes,
which make their groups in another order each: equal groups differ by which core a thread lands on.
Every result is verified: equal bits on all ranks, within the rounding of fp32; status 1 if one is
not. A time is the slowest rank's, of some calls in a row up to 16 MiB.

With --resume, layouts that FILE already has of this revision, of the same sizes and times,
are not measured again: so the whole can be measured in pieces, on a machine that others use, too.
Sources that differ from their revision have no name, and nothing of them is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import _command, _measure, _ranks
from benchmarks._command import at_least, settings_label
from benchmarks._methods import GLOO, CgxGroup, Gloo, Method
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate

CONTROL = "gloo again"
EXACT = "cgx exact"
SIZES = [4, *(4**k << 10 for k in range(9))]  # 4 bytes, 1 KiB to 64 MiB
QUICK_SIZES = [4, 4**6, 4**8, 4**10, 4**11]
_TIMEOUT = 1800.0  # seconds of one layout
# Up to 16 MiB a sample is several calls in a row, as of the buckets of a model: the skew with which
# ranks leave a barrier, and the first call after another group's, weigh little.
_CALLS = ((16 << 10, 20), (256 << 10, 10), (1 << 20, 6), (4 << 20, 4), (16 << 20, 2))
# Bytes where the two are nearest to each other: measured so many times as long.
_NEAR, _LONGER = (256 << 10, 4 << 20), 3


@dataclass(frozen=True)
class Layout:
    """rate: of the hosts' links; None: one host, or as fast as this machine can."""

    hosts: int
    ranks: int
    rate: str | None

    @property
    def text(self) -> str:
        return f"{self.hosts}x{self.ranks}" + (f"@{self.rate}" if self.rate else "")


def layout(text: str) -> Layout:
    """ "2x1@1gbit" """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:@(\w+))?", text)
    allowed = "HOSTSxRANKS or HOSTSxRANKS@RATE with two ranks or more, as 1x2, 4x1@10gbit"
    if not match or int(match[1]) * int(match[2]) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: {allowed}")
    try:
        if match[3]:
            parse_rate(match[3])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Layout(int(match[1]), int(match[2]), match[3])


LAYOUTS = ["1x2", "1x4", "2x1@1gbit", "2x1@10gbit", "4x1@1gbit", "4x1@10gbit"]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exact",
        description="Speed of exact all-reduces over Gloo, against gloo in the same run.",
    )
    parser.add_argument(
        "--layouts", nargs="+", type=layout, metavar="LAYOUT", help=f"default: {' '.join(LAYOUTS)}"
    )
    _command.add_sizes_argument(parser, "4, 64K, 64M")
    parser.add_argument("--seconds", type=at_least(0), metavar="N", help="6; 0 with --quick")
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="6; 3 with --quick")
    parser.add_argument("--processes", type=at_least(1), metavar="N", help="3; 1 with --quick")
    _command.add_settings_argument(parser, "a further group")
    parser.add_argument("--quick", action="store_true", help="two layouts, five sizes")
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file has")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    if args.resume and not args.json:
        parser.error("--resume needs --json")
    return args


@dataclass(frozen=True)
class ExactJob:
    """What all ranks measure. sizes: bytes of fp32; repeats, seconds: of each size, at least
    (three times as many seconds from 256 KiB to 4 MiB, where the two are nearest to each other);
    settings: torch_cgx.Options of each cgx group, beside the communicator's; number: of the
    processes, which make their groups in another order each time.
    """

    sizes: list[int]
    repeats: int
    seconds: float
    settings: list[dict[str, Any]]
    number: int = 0


class GlooAgain(Gloo):
    """A second group of gloo, which does what the first one does: how far two medians of the same
    thing lie apart is what this measurement cannot tell.
    """

    name = CONTROL


class CgxExact(CgxGroup):
    """An exact group over Gloo, on one host as between several."""

    def __init__(self, settings: dict[str, Any]):
        name = f"{EXACT} {settings_label(settings)}".rstrip()
        options = {"bits": 32, "inner_communicator": "GLOO", "cross_communicator": "GLOO"}
        super().__init__(name, "gloo", options | settings)


def measure(fields: dict[str, Any]) -> dict[str, Any]:
    """On a rank."""
    job = ExactJob(**fields)
    make: list[Callable[[], Method]] = [Gloo, GlooAgain]
    make += [functools.partial(CgxExact, one) for one in job.settings]
    if job.number % 2:  # and so another one follows each
        make.reverse()
    first = job.number // 2 % len(make)
    methods = [one() for one in make[first:] + make[:first]]
    sizes = []
    for nbytes in job.sizes:
        near = _NEAR[0] <= nbytes <= _NEAR[1]
        seconds = job.seconds * (_LONGER if near else 1)
        timing = _measure.Timing(job.repeats, seconds=seconds, calls=_CALLS)
        sizes.append(_measure.measure_size(timing, methods, nbytes))
    return {"sizes": sizes}


def run(job: ExactJob, where: Layout, processes: int) -> dict[str, Any]:
    """Runs the job in a layout, shared out over so many sets of processes. HostsFailed, with what
    the ranks wrote, if it fails.
    """
    parts = []
    with hosts(where.hosts, where.rate) as bed:
        for number in range(processes):
            part = dataclasses.replace(
                job,
                repeats=math.ceil(job.repeats / processes),
                seconds=job.seconds / processes,
                number=number,
            )
            fields = dataclasses.asdict(part)
            parts.append(_ranks.on_hosts(bed, measure, fields, where.ranks, _TIMEOUT))
    return {
        "layout": where.text,
        "hosts": where.hosts,
        "ranks_per_host": where.ranks,
        "rate": where.rate,
        "sizes": job.sizes,
        "settings": job.settings,
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "rows": _measure.to_rows(
            [merged(same) for same in zip(*(part["sizes"] for part in parts), strict=True)],
            where.hosts * where.ranks,
        ),
    }


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several sets of processes measured of one size, as if it had been one; gloo first."""
    rows = []
    methods = [row["method"] for row in parts[0]["rows"]]
    for method in sorted(methods, key=lambda name: (name != GLOO, name != CONTROL, name)):
        same = [row for part in parts for row in part["rows"] if row["method"] == method]
        rows.append(
            same[0]
            | {
                "equal": all(row["equal"] for row in same),
                "within_bound": all(row["within_bound"] for row in same),
                "relative_error": max(row["relative_error"] for row in same),
                "wire_bytes": max(row["wire_bytes"] for row in same),
                "stages": same[0]["stages"]
                and {
                    stage: statistics.fmean(row["stages"][stage] for row in same)
                    for stage in same[0]["stages"]
                },
                "seconds": [one for row in same for one in row["seconds"]],
            }
        )
    return parts[0] | {
        "copy_seconds": [one for part in parts for one in part["copy_seconds"]],
        "add_seconds": [one for part in parts for one in part["add_seconds"]],
        "rows": rows,
    }


def kept_runs(file: Path, facts: dict[str, Any], job: ExactJob) -> list[dict[str, Any]]:
    """The layouts that `file` has of the same sources and the same job."""
    if not file.exists():
        return []
    document = json.loads(file.read_text())
    before = document.get("machine", {})
    keys = ("revision", "torch", "cpu", "repeats", "seconds_of_each", "processes")
    named = facts["revision"] is not None and not facts["revision"].endswith("+")
    same = named and all(before.get(key) == facts[key] for key in keys)
    runs: list[dict[str, Any]] = document.get("runs", []) if same else []
    return [run for run in runs if (run["sizes"], run["settings"]) == (job.sizes, job.settings)]


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    job = ExactJob(
        sizes=sorted(set(args.sizes or (QUICK_SIZES if args.quick else SIZES))),
        repeats=args.repeats or (3 if args.quick else 6),
        seconds=(0 if args.quick else 6) if args.seconds is None else args.seconds,
        settings=[{}, *args.settings],
    )
    names = ["1x2", "2x1@1gbit"] if args.quick else LAYOUTS
    layouts = args.layouts or [layout(name) for name in names]
    start = time.monotonic()
    processes = args.processes or (1 if args.quick else 3)
    facts = _ranks.print_link_facts(
        repeats=job.repeats, seconds_of_each=job.seconds, processes=processes
    )
    runs = kept_runs(Path(args.json), facts, job) if args.resume else []
    wrong: list[str] = []
    for where in layouts:
        if any(run["layout"] == where.text for run in runs):
            print(f"kept: {where.text}", flush=True)
            continue
        measured = run(job, where, processes)
        runs.append(measured)
        print(f"\n{where.text} ({measured['seconds']} s)\n{_measure.table(measured['rows'])}")
        print(f"\n{_measure.speedups(measured['rows'])}\n", flush=True)
        wrong += [f"{where.text}: {line}" for line in _measure.failures(measured["rows"])]
        if args.json:  # so that --resume has it, whatever becomes of the others
            _command.write_json(Path(args.json), document_of(facts, runs))
    print(f"{time.monotonic() - start:.0f} s in all")
    title = f"exact all-reduces of fp32 over Gloo ({facts['cpu']})"
    return _command.finish(
        args, document_of(facts, runs), lambda file: draw(runs, title, file), wrong
    )


def document_of(facts: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    facts = facts | {"seconds": round(sum(run["seconds"] for run in runs), 1)}
    return {"benchmark": "exact", "machine": facts, "runs": runs}


def draw(runs: list[dict[str, Any]], heading: str, file: str) -> None:
    """The picture: of each layout how many times faster than gloo."""
    with _command.picture(file, 1, len(runs), figsize=(4 * len(runs), 4)) as (figure, axes):
        for axis, run in zip(axes[0], runs, strict=True):
            for name in list(dict.fromkeys(row["method"] for row in run["rows"]))[1:]:
                mine = [row for row in run["rows"] if row["method"] == name]
                sizes = [row["bytes"] for row in mine]
                (line,) = axis.plot(sizes, [row["speedup"] for row in mine], marker="o", label=name)
                low, high = ([row[f"speedup_{p}"] for row in mine] for p in ("p10", "p90"))
                axis.fill_between(sizes, low, high, color=line.get_color(), alpha=0.1)
            axis.axhline(1, color="black", linewidth=0.7)
            _command.size_axis(axis, sizes, rotation=60)
            axis.set_title(run["layout"])
        axes[0][0].set_ylabel("times as fast as gloo (median of pairs)")
        axes[0][0].legend(fontsize=8)
        figure.suptitle(heading)


if __name__ == "__main__":
    sys.exit(main())
