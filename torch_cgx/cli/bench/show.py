"""The table, the files and the picture of `cgx bench`."""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_cgx.cli.bench.measure import Row, ratios
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import size_text, table, tenths, time_text

_HEAD = (
    *("size", "method", "over", "time", "p10 - p90", "algbw", "busbw", "sent", "error"),
    "vs gloo",
)


LEAST_REPEATS = 3  # fewer show no spread


def show(rows: list[Row], facts: dict[str, Any], args: argparse.Namespace) -> None:
    """Prints, and writes the files that the arguments name."""
    shown = ", ".join(f"{k} {v}" for k, v in facts.items() if k != "arguments")
    remarks = "\n".join(filter(None, (links(facts, rows), advice(rows))))
    print(f"{shown}\n\n{text_of(rows)}\n\n{remarks}", flush=True)
    for line in wrong(rows):
        print(f"WRONG: {line}", flush=True)
    plain = [{key: value for key, value in row.items() if key != "samples"} for row in rows]
    if args.json:
        args.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(plain[0]))
            writer.writeheader()
            writer.writerows(plain)
    if args.plot:
        draw(rows, args.plot)


def text_of(rows: Sequence[Row]) -> str:
    lines = []
    last = None
    for row in rows:
        mark = "" if row["bytes_counted"] else "~"
        between = f"{time_text(row['seconds_p10'])} - {time_text(row['seconds_p90'])}"
        lines.append(
            [
                size_text(row["bytes"]) if row["bytes"] != last else "",
                row["method"],
                row["communicator"],
                time_text(row["seconds"]),
                between,
                f"{row['algbw']:.3g}",
                f"{row['busbw']:.3g}",
                mark + size_text(row["bytes_sent"]),
                f"{row['relative_error']:.2g}",
                "-" if row["vs_gloo"] is None else f"{row['vs_gloo']:.2f}x",
            ]
        )
        last = row["bytes"]
    return table(_HEAD, lines, left=(1, 2))


def wrong(rows: Sequence[Row]) -> list[str]:
    """What must not be: ranks with different results."""
    return [
        f"{row['method']} at {size_text(row['bytes'])}: ranks got different results"
        for row in rows
        if not row["equal"]
    ]


def advice(rows: Sequence[Row]) -> str:
    """From which size on 8 bits or fewer are faster than 16 and 32, if they are: the gain counts
    where nine of ten repetitions show one. Methods over another link than cgx's are left out.
    """
    same_link = [row for row in rows if row["vs_gloo"] is not None]
    if len(same_link) < len(rows):
        rows = [row for row in rows if row["bytes_counted"]]
    pays: list[tuple[int, str]] = []
    for nbytes in sorted({row["bytes"] for row in rows}, reverse=True):
        here = [row for row in rows if row["bytes"] == nbytes]
        small = [row for row in here if row["bits"] <= 8]
        large = [row for row in here if row["bits"] > 8]
        if not small:
            return "Nothing was compressed: name --bits of 8 or fewer."
        if not large:
            return "Nothing to compare with: name --bits 32 or 16, too."
        best = min(small, key=lambda row: row["seconds"])
        other = min(large, key=lambda row: row["seconds"])
        gains = ratios(other["samples"], best["samples"])
        gain, (low, high) = statistics.median(gains), tenths(gains)
        between = f"{gain:.2f} times as fast (10th to 90th percentile {low:.2f} to {high:.2f})"
        if low > 1 and len(gains) >= LEAST_REPEATS:
            pays.append((nbytes, f"at {size_text(nbytes)} {best['method']} is {between} as"))
            continue
        if pays:
            break
        if high < 1:
            return (
                f"Compression does not pay here: at {size_text(nbytes)} {best['method']} takes "
                f"{time_text(best['seconds'])}, {other['method']} {time_text(other['seconds'])}."
            )
        why = "a difference within the spread of this run"
        if len(gains) < LEAST_REPEATS:
            why = f"and {len(gains)} repetitions show no spread"
        return (
            f"No clear difference here: at {size_text(nbytes)} {best['method']} is {between} as "
            f"{other['method']}, {why}. More --repeats may tell."
        )
    return (
        f"Compression pays from {size_text(pays[-1][0])} on: {pays[0][1]} the fastest with 16 or "
        "32 bits."
    )


def links(facts: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Why rows have no factor; empty if all have one."""
    if all(row["vs_gloo"] is not None for row in rows):
        return ""
    return (
        f"gloo sends over the network between {facts['networks']} network namespaces, and cgx "
        "through the shared memory that they have in common: no factors between the two. For the "
        "network in both, give each namespace a CGX_HOST_ID of its own."
    )


def draw(rows: Sequence[Row], file: Path) -> None:
    """Time against size, a line for each method; needs matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise CliError(f"--plot {file} needs matplotlib: pip install matplotlib") from None

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        style: dict[str, Any] = (
            {"color": "black", "linewidth": 2} if name.startswith("gloo fp32") else {}
        )
        axes.plot(
            [row["bytes"] for row in mine],
            [1e3 * row["seconds"] for row in mine],
            marker=".",
            label=f"{name}, {mine[-1]['communicator']}",
            **style,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of fp32")
    axes.set_ylabel("ms per all-reduce")
    axes.xaxis.set_major_formatter(lambda value, _: size_text(value))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
