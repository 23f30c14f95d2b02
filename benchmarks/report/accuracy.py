"""What `make accuracy` found: benchmarks/results/accuracy_*.json, which examples/compare.py writes,
as tables and as the figures of targets.
"""

from __future__ import annotations

import statistics
from typing import Any

Row = dict[str, Any]
EXACT = 32


def row_of(document: Row, codec: str, bits: int, feedback: bool) -> Row | None:
    """The row of a variant, or None."""
    for row in document["rows"]:
        found = row["codec"], row["bits"], row["feedback"], row["average"]
        if found == (codec, bits, feedback, False):
            return dict(row)
    return None


def noise(document: Row) -> float:
    """How much the exact runs of the seeds differ among themselves: the standard deviation, in
    points of accuracy where there is one, else in % of the mean loss."""
    exact = [run for run in document["runs"] if run["bits"] == EXACT]
    if exact[0]["accuracy"] is not None:
        return statistics.stdev(100 * run["accuracy"] for run in exact)
    losses = [run["final_val_loss"] for run in exact]
    return 100 * statistics.stdev(losses) / statistics.fmean(losses)


def harm(row: Row) -> float:
    """How much worse than exact: points of accuracy where there is one, else % of the loss."""
    if "accuracy_change" in row:
        return -float(row["accuracy_change"])
    return 100 * float(row["loss_change"])


def table(document: Row) -> list[list[str]]:
    """Title and cells of each line: codecs by bits, and the bytes."""
    coded = [row for row in document["rows"] if row["codec"] and not row["average"]]
    widths = sorted({row["bits"] for row in coded})
    lines = [["", *(f"{bits:g} bit{'s' * (bits > 1)}" for bits in widths)]]
    by_codec: dict[tuple[str, bool], dict[float, Row]] = {}
    for row in coded:
        by_codec.setdefault((row["codec"], row["feedback"]), {})[row["bits"]] = row
    for (codec, feedback), found in by_codec.items():
        cells = [_cell(found[bits]) if bits in found else "" for bits in widths]
        lines.append([f"`{codec}`" + ", error feedback" * feedback, *cells])
    fewer = [max(row["bytes_ratio"] for row in coded if row["bits"] == bits) for bits in widths]
    lines.append(["fewer bytes, at most", *(f"{ratio:.1f}x" for ratio in fewer)])
    return lines


def _cell(row: Row) -> str:
    """The difference to exact and its interval; marked where more seeds were run."""
    if "accuracy_change" in row:
        change, half = row["accuracy_change"], row["accuracy_interval"]
    else:
        change, half = 100 * row["loss_change"], 100 * row["loss_change_interval"]
    digits = 1 if abs(change) >= 10 else 2
    seeds = len(row["seeds"])
    return f"{change:+.{digits}f} ± {half:.{digits}f}" + f" ({seeds} seeds)" * (seeds > 3)
