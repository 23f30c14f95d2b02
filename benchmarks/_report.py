"""From measured seconds to rows of rates, and the tables that show them."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks._methods import GLOO

Row = dict[str, Any]


def spread(samples: list[float]) -> tuple[float, float, float]:
    """10th percentile, median, 90th percentile (linear interpolation between samples)."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return tenths[0], statistics.median(samples), tenths[-1]


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


def size_text(nbytes: float) -> str:
    """12345678 -> "11.8M"; whole numbers where they are exact."""
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if nbytes >= factor:
            value = nbytes / factor
            return f"{value:.0f}{unit}" if value == int(value) else f"{value:.1f}{unit}"
    return f"{nbytes:.0f}"


def time_text(seconds: float) -> str:
    """At least three significant digits, in us or ms."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


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
