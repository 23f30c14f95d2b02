"""The table, the files and the picture of `cgx bench`."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_cgx.cli.bench.measure import Row
from torch_cgx.cli.errors import CliError
from torch_cgx.cli.output import size_text, table, time_text

_HEAD = (
    *("size", "method", "over", "time", "p10 - p90", "algbw", "busbw", "sent", "error"),
    "vs gloo",
)


def show(rows: list[Row], facts: dict[str, Any], args: argparse.Namespace) -> None:
    """Prints, and writes the files that the arguments name."""
    shown = ", ".join(f"{k} {v}" for k, v in facts.items() if k != "arguments")
    print(f"{shown}\n\n{text_of(rows)}\n\n{advice(rows)}", flush=True)
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
                f"{row['vs_gloo']:.2f}x",
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
    """From which size on 8 bits or fewer are faster than 16 and 32."""
    pays: list[tuple[int, Row, float]] = []
    for nbytes in sorted({row["bytes"] for row in rows}, reverse=True):
        here = [row for row in rows if row["bytes"] == nbytes]
        small = [row for row in here if row["bits"] <= 8]
        if not small:
            return "Nothing was compressed: name --bits of 8 or fewer."
        best = min(small, key=lambda row: row["seconds"])
        other = min((row for row in here if row["bits"] > 8), key=lambda row: row["seconds"])
        if best["seconds"] >= other["seconds"]:
            if not pays:
                return (
                    f"Compression does not pay here: at {size_text(nbytes)} {best['method']} takes "
                    f"{time_text(best['seconds'])}, {other['method']} "
                    f"{time_text(other['seconds'])}."
                )
            break
        pays.append((nbytes, best, other["seconds"] / best["seconds"]))
    smallest, (largest, best, gain) = pays[-1][0], pays[0]
    return (
        f"Compression pays from {size_text(smallest)} on: at {size_text(largest)} {best['method']} "
        f"is {gain:.2f} times as fast as the fastest with 16 or 32 bits."
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
