"""Whether a long all-reduce computes while it sends: one rank's stages beside its link's activity.

    python -m benchmarks.overlap [--size 64M] [--bits 4 32] [--rate 1gbit] [--calls 7] [--quick]
        [--json FILE] [--plot FILE]

Two hosts (network namespaces, torch_cgx.testbed: needs Linux, root, iproute2) reduce one vector of
fp32. On rank 0 torch's profiler takes the engine's ranges (cgx:encode, cgx:transfer, which is the
worker's waiting, cgx:decode), and a thread reads what the link has carried every half millisecond,
both on one clock. The picture shows the call whose time is the median. The JSON has
these and the numbers of `numbers`, medians over the calls.

The sampling thread and the profiler cost some processor time, so the call is a little slower than
unwatched; the clocks agree to some 0.05 ms, and half a millisecond is how exactly the link's
activity is known.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository's root instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

import torch_cgx
from benchmarks import _command, _ranks
from benchmarks._command import BITS, at_least, parse_size, rate_text
from benchmarks._methods import STAGES
from torch_cgx.testbed.bed import hosts
from torch_cgx.testbed.network import parse_rate

Interval = tuple[float, float]

_HOSTS = 2
_SAMPLE_SECONDS = 0.0005
_SHOWN_SECONDS = 0.1
_TIMEOUT = 300.0
_COUNTERS = Path("/sys/class/net/eth0/statistics")
_MARK = "overlap: clock"
# Before the call and after it: the link must be seen at rest.
_MARGIN_SECONDS = 0.004
# A link is busy between two samples if it carried at least this part of what it can.
BUSY = 0.5


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap",
        description="Encode, transfer, decode and the link's activity of one all-reduce.",
    )
    parser.add_argument("--size", type=parse_size, metavar="SIZE", help="64M; 8M with --quick")
    parser.add_argument("--bits", nargs="+", type=int, choices=BITS, default=[4, 32])
    parser.add_argument("--rate", type=_ranks.rate, default="1gbit", help="of every link")
    parser.add_argument("--calls", type=at_least(1), metavar="N", help="7; 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="a shorter vector, two calls")
    _command.add_output_arguments(parser)
    args = parser.parse_args(argv)
    if args.rate is None:
        parser.error("--rate none: how busy a link is can be told only where its rate is known")
    return args


class Sampler:
    """A thread that reads the link's counters again and again. The interface counts packets after
    the queue that shapes them, so what it counts has left.
    """

    def __init__(self, every: float):
        self.samples: list[tuple[float, int, int]] = []
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        with (
            open(_COUNTERS / "tx_bytes", "rb", buffering=0) as sent,
            open(_COUNTERS / "rx_bytes", "rb", buffering=0) as received,
        ):
            while not self._end.is_set():
                for file in (sent, received):
                    file.seek(0)
                values = int(sent.read()), int(received.read())
                self.samples.append((time.perf_counter(), *values))
                time.sleep(self._every)


def traced(x: torch.Tensor, group: dist.ProcessGroup, every: float) -> dict[str, Any]:
    """One all-reduce of `x`: `seconds`, `ranges` (by stage, lists of [begin, end] in seconds since
    the call's begin) and `samples` ([seconds, bytes sent, bytes received]: the link's counters).
    """
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler, Sampler(every) as sampler:
        # A range whose begin is known on both clocks, the profiler's and ours.
        mark = time.perf_counter()
        with record_function(_MARK):
            pass
        time.sleep(_MARGIN_SECONDS)
        begin = time.perf_counter()
        dist.all_reduce(x, group=group)
        end = time.perf_counter()
        time.sleep(_MARGIN_SECONDS)
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    shift = mark - next(e.start_ns() for e in events if e.name() == _MARK) * 1e-9
    ranges: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for event in events:
        stage = event.name().removeprefix("cgx:")
        if stage not in ranges or stage == event.name():
            continue
        first = event.start_ns() * 1e-9 + shift - begin
        ranges[stage].append((first, first + event.duration_ns() * 1e-9))
    return {
        "seconds": end - begin,
        "ranges": {stage: sorted(found) for stage, found in ranges.items()},
        "samples": [(now - begin, sent, received) for now, sent, received in sampler.samples],
    }


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """On a rank: for every number of bits, as text, the calls."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    source = torch.randn(job["bytes"] // 4, generator=generator)
    found: dict[str, Any] = {}
    for bits in job["bits"]:
        group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=bits))
        dist.all_reduce(source.clone(), group=group)  # memory, plan and windows grow
        calls = [traced(source.clone(), group, job["sample_seconds"]) for _ in range(job["calls"])]
        found[str(bits)] = calls
    return found


def union(intervals: list[Interval]) -> list[Interval]:
    """The same points as disjoint intervals in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > begin:
            merged.append((begin, end))
    return merged


def common(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """Where both unions are."""
    both = [(max(p[0], q[0]), min(p[1], q[1])) for p in a for q in b]
    return [(begin, end) for begin, end in both if end > begin]


def length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def loads(samples: list[list[float]], column: int, rate: float) -> list[tuple[Interval, float]]:
    """Between two samples each: bytes carried / bytes that the link can carry. rate: bytes/s."""
    return [
        ((p[0], q[0]), (q[column] - p[column]) / (rate * (q[0] - p[0])))
        for p, q in pairwise(samples)
        if q[0] > p[0]
    ]


def busy(call: dict[str, Any], rate: float) -> dict[str, list[Interval]]:
    """When the link was busy: out, in, and either of them."""
    found = {
        name: union([when for when, load in loads(call["samples"], column, rate) if load >= BUSY])
        for name, column in (("out", 1), ("in", 2))
    }
    return found | {"either": union(found["out"] + found["in"])}


def numbers(call: dict[str, Any], rate: float) -> dict[str, float]:
    """Of one call: seconds, of its stages too, and fractions.

    codec_covered: of the time in encode and decode, the part in which the link was busy, out or in.
    link_busy: the part of the call in which it was; link_out_busy, link_in_busy: each way.
    link_use: the bytes sent over what the link can carry in the call's time. rounds: how often was
    encoded.
    """
    whole = [(0.0, call["seconds"])]
    stages = {name: union([tuple(r) for r in found]) for name, found in call["ranges"].items()}
    codec = common(union(stages["encode"] + stages["decode"]), whole)
    when = {name: common(found, whole) for name, found in busy(call, rate).items()}
    samples = call["samples"]
    return {
        "seconds": call["seconds"],
        **{f"{name}_seconds": length(found) for name, found in stages.items()},
        "rounds": len(call["ranges"]["encode"]),
        "codec_covered": length(common(codec, when["either"])) / length(codec),
        "link_busy": length(when["either"]) / call["seconds"],
        "link_out_busy": length(when["out"]) / call["seconds"],
        "link_in_busy": length(when["in"]) / call["seconds"],
        "link_use": (samples[-1][1] - samples[0][1]) / rate / call["seconds"],
    }


def summary(bits: int, calls: list[dict[str, Any]], bytes_per_second: float) -> dict[str, Any]:
    """Of all calls with one number of bits: medians, and the call to show."""
    each = [numbers(call, bytes_per_second) for call in calls]
    order = sorted(range(len(calls)), key=lambda i: calls[i]["seconds"])
    return {
        "method": "cgx exact" if bits == 32 else f"cgx {bits} bit",
        "bits": bits,
        "numbers": {key: statistics.median(one[key] for one in each) for key in each[0]},
        "by_call": each,
        "shown": calls[order[(len(order) - 1) // 2]],
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        f"{'method':<10} {'ms':>7} {'rounds':>6} {'encode':>8} {'waiting':>8} {'decode':>8} "
        f"{'out busy':>9} {'in busy':>8} {'link use':>9} {'codec while link busy':>22}"
    ]
    for run in runs:
        told = run["numbers"]
        stages = (f"{1e3 * told[f'{s}_seconds']:>8.1f}" for s in ("encode", "transfer", "decode"))
        lines.append(
            f"{run['method']:<10} {1e3 * told['seconds']:>7.1f} {told['rounds']:>6.0f} "
            f"{' '.join(stages)} {told['link_out_busy']:>9.3f} {told['link_in_busy']:>8.3f} "
            f"{told['link_use']:>9.3f} {told['codec_covered']:>22.3f}"
        )
    return "\n".join(lines)


_LANES = [
    ("encode", "encode", "#ff7f0e"),
    ("transfer", "wait for\ntransfer", "#bbbbbb"),
    ("decode", "decode\nand add", "#2ca02c"),
]
_LINKS = [(1, "link out", "#1f77b4"), (2, "link in", "#9467bd")]


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: of every number of bits one call, or its first milliseconds."""
    runs = document["runs"]
    with _command.picture(file, len(runs), 1, figsize=(13, 3.4 * len(runs))) as (figure, axes):
        for axis, run in zip(axes[:, 0], runs, strict=True):
            _draw_call(axis, run, document["bytes_per_second"], 1e3 * document["shown_seconds"])
        axes[-1, 0].set_xlabel("ms since the call")
        figure.suptitle(
            f"One all-reduce of {document['bytes'] / 2**20:g} MiB of fp32, {document['hosts']} "
            f"hosts, links of {rate_text(document['rate'])} ({document['machine']['cpu']}, one "
            "rank's view)"
        )


def _draw_call(axis: Any, run: dict[str, Any], rate: float, most: float) -> None:
    call, told = run["shown"], run["numbers"]
    total = len(_LANES) + len(_LINKS)
    for lane, (stage, _, color) in enumerate(_LANES):
        bars = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in call["ranges"][stage]]
        axis.broken_barh(bars, (total - lane - 0.9, 0.8), facecolors=color)
    for lane, (column, _, color) in enumerate(_LINKS, start=len(_LANES)):
        base = total - lane - 0.9
        steps = loads(call["samples"], column, rate)
        edges = [1e3 * steps[0][0][0], *(1e3 * when[1] for when, _ in steps)]
        heights = [base + 0.8 * min(load, 1.0) for _, load in steps]
        axis.stairs(heights, edges, baseline=base, fill=True, color=color)
    names = [name for _, name, _ in _LANES] + [name for _, name, _ in _LINKS]
    axis.set_yticks([total - lane - 0.5 for lane in range(total)], names)
    axis.set_ylim(0, total)
    end = 1e3 * call["seconds"]
    axis.set_xlim(-2, min(end + 3, most))
    axis.axvline(0, color="black", linewidth=0.8)
    axis.axvline(end, color="black", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    part = f", the first {most:.0f} ms" if end + 3 > most else ""
    axis.set_title(
        f"{run['method']}: {1e3 * told['seconds']:.0f} ms, {told['rounds']:.0f} rounds{part}. Link "
        f"busy: out {100 * told['link_out_busy']:.0f} %, in {100 * told['link_in_busy']:.0f} % of "
        f"the call; either {100 * told['codec_covered']:.0f} % of the time in encode and decode",
        fontsize=10,
    )


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    if _ranks.missing_hosts():
        return 0
    start = time.monotonic()
    job: dict[str, Any] = {
        "bytes": args.size or (8 << 20 if args.quick else 64 << 20),
        "bits": list(dict.fromkeys(args.bits)),
        "calls": args.calls or (2 if args.quick else 7),
        "sample_seconds": _SAMPLE_SECONDS,
    }
    facts = _ranks.print_link_facts(calls=job["calls"])
    with hosts(_HOSTS, args.rate) as bed:
        calls = _ranks.on_hosts(bed, measure, job, 1, _TIMEOUT)
    bytes_per_second = parse_rate(args.rate) / 8
    runs = [summary(bits, calls[str(bits)], bytes_per_second) for bits in job["bits"]]
    print(table(runs))
    facts["seconds"] = round(time.monotonic() - start, 1)
    document = {
        "benchmark": "overlap",
        "machine": facts,
        "hosts": _HOSTS,
        "rate": args.rate,
        "bytes_per_second": bytes_per_second,
        "bytes": job["bytes"],
        "sample_seconds": _SAMPLE_SECONDS,
        "shown_seconds": _SHOWN_SECONDS,
        "runs": runs,
    }
    return _command.finish(args, document, lambda file: draw(document, file), indent=None)


if __name__ == "__main__":
    sys.exit(main())
