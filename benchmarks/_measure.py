"""The measuring loop of all-reduces on one rank, and the rows and tables that come of it.

For every size, every method is verified once (which also warms it up: connections, buffers, plans),
and then every repetition runs all methods one after another, so that a slow phase of the machine
meets all of them. The order turns by one from repetition to repetition.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks._command import size_text, spread, time_text
from benchmarks._methods import GLOO, STAGES, Method, Reference, contribution, fingerprint
from benchmarks._ranks import everyone

Row = dict[str, Any]
# Calls per sample: more where one is about as short as the skew with which ranks leave a barrier.
Calls = Sequence[tuple[int, int]]  # bytes up to which, and calls
_CALLS: Calls = ((16 << 10, 20), (256 << 10, 5))
# Short calls vary most, and cost least to repeat.
_SHORT, _MORE_REPEATS = 64 << 10, 3


@dataclass(frozen=True)
class Timing:
    """How a size is measured. repeats: at least; seconds: go on with repetitions at least so long;
    calls: per sample, in a row; bucket_size: of the bounds on errors.
    """

    repeats: int
    bucket_size: int = 512
    seconds: float = 0.0
    calls: Calls = _CALLS


def calls_per_sample(nbytes: int, ranks: int, table: Calls = _CALLS) -> int:
    """How often a method runs between two looks at the clock. A sum run again and again grows by
    the number of ranks each time; it has to stay within fp32.
    """
    growth = math.floor(100 / math.log2(ranks))
    return next((min(calls, growth) for limit, calls in table if nbytes <= limit), 1)


def measure_size(timing: Timing, methods: Sequence[Method], nbytes: int) -> dict[str, Any]:
    """Verifies and times the methods for one size. Collective; what all ranks measured."""
    ranks = dist.get_world_size()
    x = contribution(dist.get_rank(), nbytes // 4)
    y = torch.empty_like(x)
    reference = Reference(ranks, x.numel(), timing.bucket_size)
    checks = [verify(method, reference, x, y) for method in methods]

    calls = calls_per_sample(nbytes, ranks, timing.calls)
    times: list[list[float]] = [[] for _ in methods]
    counted: list[list[dict[str, float]]] = [[] for _ in methods]
    copies = []
    sums = []
    for repetition in _repetitions(timing, nbytes):
        copies.append(seconds_per_call(lambda: y.copy_(x), calls))
        sums.append(seconds_per_call(lambda: y.add_(x), calls))
        for turn in range(len(methods)):
            i = (turn + repetition) % len(methods)
            before = methods[i].counted()
            y.copy_(x)
            times[i].append(seconds_per_call(partial(methods[i].run, y), calls))
            after = methods[i].counted()
            counted[i].append({name: after[name] - before[name] for name in after})

    mine = {"times": times, "copies": copies, "sums": sums, "counted": counted}
    gathered = everyone(mine)
    rows = []
    for i, method in enumerate(methods):
        rows.append(
            {
                "method": method.name,
                "communicator": method.communicator,
                "bits": method.bits,
                **checks[i],
                "seconds": _slowest([per_rank["times"][i] for per_rank in gathered]),
                **_per_call(method, [r["counted"][i] for r in gathered], ranks, nbytes),
            }
        )
    return {
        "bytes": nbytes,
        "calls_per_sample": calls,
        "copy_seconds": _slowest([per_rank["copies"] for per_rank in gathered]),
        "add_seconds": _slowest([per_rank["sums"] for per_rank in gathered]),
        "rows": rows,
    }


def _repetitions(timing: Timing, nbytes: int) -> Iterator[int]:
    """Numbers of repetitions, equally many on all ranks."""
    start = time.monotonic()
    least = timing.repeats * (_MORE_REPEATS if nbytes <= _SHORT else 1)
    for repetition in itertools.count():
        if repetition >= least:
            go_on = torch.tensor([time.monotonic() - start < timing.seconds])
            dist.broadcast(go_on, 0)
            if not go_on.item():
                return
        yield repetition


def verify(
    method: Method, reference: Reference, x: torch.Tensor, y: torch.Tensor
) -> dict[str, Any]:
    """Whether all ranks get the same result of `x`, in `y`, and it is near enough. Collective."""
    y.copy_(x)
    method.run(y)
    inside, error = reference.compare(y, method.bound(reference), method.mean)
    answers = everyone((fingerprint(y), inside, error))
    return {
        "equal": len({answer[0] for answer in answers}) == 1,
        "within_bound": all(answer[1] for answer in answers),
        "relative_error": max(answer[2] for answer in answers),
    }


def seconds_per_call(run: Callable[[], object], calls: int) -> float:
    """On this rank, from a barrier to the end of the last call, while all others run it, too."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def _slowest(per_rank: list[list[float]]) -> list[float]:
    return [max(samples) for samples in zip(*per_rank, strict=True)]


def _per_call(
    method: Method, counted: list[list[dict[str, float]]], ranks: int, nbytes: int
) -> dict[str, Any]:
    """Wire bytes (of the rank that sends most) and seconds by stage (mean over the ranks, median
    over the repetitions), per call. counted: of every rank and repetition.
    """
    if not counted[0][0]:
        sent = method.wire_bytes(ranks, nbytes)
        return {"wire_bytes": sent, "wire_source": method.wire_source, "stages": None}
    sent = max(c["bytes_sent"] / c["calls"] for of_rank in counted for c in of_rank)
    stages = {
        stage: statistics.median(
            statistics.fmean(c[f"seconds_{stage}"] / c["calls"] for c in repetition)
            for repetition in zip(*counted, strict=True)
        )
        for stage in STAGES
    }
    return {"wire_bytes": sent, "wire_source": method.wire_source, "stages": stages}


# ---- rows and tables


def to_rows(measured: list[dict[str, Any]], ranks: int) -> list[Row]:
    """One row per size and method.

    algbw is the vector's bytes over the time, busbw is algbw * 2 (N - 1) / N (what crosses a rank's
    link where an all-reduce is optimal: nccl-tests, doc/PERFORMANCE.md), both in GB/s of fp32
    whatever is sent. speedup: median over repetitions of gloo's time over this one's in the
    same repetition. roof: rate of a memcpy of the vector, add_roof: of y += x; all ranks do it at
    once.
    """
    rows = []
    for size in measured:
        nbytes = size["bytes"]
        roof = nbytes / statistics.median(size["copy_seconds"]) / 1e9
        added = nbytes / statistics.median(size["add_seconds"]) / 1e9
        gloo = next(row["seconds"] for row in size["rows"] if row["method"] == GLOO)
        for one in size["rows"]:
            low, median, high = spread(one["seconds"])
            ratios = [g / t for g, t in zip(gloo, one["seconds"], strict=True)]
            algbw = nbytes / median / 1e9
            rest = {key: value for key, value in one.items() if key != "seconds"}
            rows.append(
                {
                    "bytes": nbytes,
                    **rest,
                    "seconds": median,
                    "seconds_p10": low,
                    "seconds_p90": high,
                    "algbw": algbw,
                    "busbw": algbw * 2 * (ranks - 1) / ranks,
                    "roof": roof,
                    "add_roof": added,
                    "of_roof": algbw / roof,
                    "speedup": statistics.median(ratios),
                    "speedup_p10": spread(ratios)[0],
                    "speedup_p90": spread(ratios)[2],
                    "calls_per_sample": size["calls_per_sample"],
                }
            )
    return rows


def failures(rows: list[Row]) -> list[str]:
    """What was wrong with results, one line each."""
    lines = []
    for row in rows:
        where = f"{row['method']} at {size_text(row['bytes'])}"
        if not row["equal"]:
            lines.append(f"{where}: ranks got different results")
        if not row["within_bound"]:
            lines.append(
                f"{where}: a value misses the sum by more than the method may "
                f"(relative error {row['relative_error']:.2e})"
            )
    return lines


def _rate(gb_per_s: float) -> str:
    return f"{gb_per_s:.3f}" if gb_per_s >= 0.01 else f"{gb_per_s:.1e}"


def table(rows: list[Row]) -> str:
    """All rows; wire bytes that were not counted but computed are marked with "~"."""
    width = max(len(row["method"]) for row in rows)
    head = (
        f"{'size':>6}  {'method':<{width}} {'time':>10} {'p10 - p90':>23} {'algbw':>8} "
        f"{'busbw':>8} {'wire B':>8} {'vs gloo':>8} {'of roof':>8} {'rel.err':>8}"
    )
    lines = [head]
    last = None
    for row in rows:
        if row["bytes"] != last:
            last = row["bytes"]
            roofs = f"memcpy {_rate(row['roof'])}, y += x {_rate(row['add_roof'])}"
            lines.append(f"{size_text(last):>6}  roofs, GB/s: {roofs}")
        mark = "" if row["wire_source"] == "measured" else "~"
        between = f"{time_text(row['seconds_p10'])} - {time_text(row['seconds_p90'])}"
        wrong = "" if row["equal"] and row["within_bound"] else "  WRONG"
        lines.append(
            f"{'':>6}  {row['method']:<{width}} {time_text(row['seconds']):>10} {between:>23} "
            f"{_rate(row['algbw']):>8} {_rate(row['busbw']):>8} "
            f"{mark + size_text(row['wire_bytes']):>8} {row['speedup']:>7.2f}x "
            f"{100 * row['of_roof']:>7.1f}% {row['relative_error']:>8.1e}{wrong}"
        )
    return "\n".join(lines)


def speedups(rows: list[Row]) -> str:
    """Methods by sizes: how many times faster than gloo fp32."""
    sizes = sorted({row["bytes"] for row in rows})
    names = list(dict.fromkeys(row["method"] for row in rows))
    known = {(row["method"], row["bytes"]): row["speedup"] for row in rows}
    width = max(map(len, names))
    lines = [f"{'times gloo fp32':<{width}}" + "".join(f"{size_text(s):>7}" for s in sizes)]
    for name in names:
        cells = "".join(f"{known[name, size]:>7.2f}" for size in sizes)
        lines.append(f"{name:<{width}}{cells}")
    return "\n".join(lines)


def stages(rows: list[Row]) -> str:
    """Where the time of the cgx methods goes at the largest size.

    The stages are means over the ranks, the time is the slowest rank's, so they need not add up.
    """
    largest = max(row["bytes"] for row in rows)
    found = [row for row in rows if row["bytes"] == largest and row["stages"]]
    if not found:
        return ""
    width = max(len(row["method"]) for row in found)
    lines = [
        f"Where the time goes at {size_text(largest)} (ms per call; stages: means over the ranks)",
        f"{'method':<{width}} {'encode':>9} {'transfer':>9} {'decode':>9} {'time':>9}",
    ]
    for row in found:
        cells = "".join(
            f"{row['stages'][s] * 1e3:>10.2f}" for s in ("encode", "transfer", "decode")
        )
        lines.append(f"{row['method']:<{width}}{cells}{row['seconds'] * 1e3:>10.2f}")
    return "\n".join(lines)
