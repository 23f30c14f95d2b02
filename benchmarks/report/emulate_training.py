"""What benchmarks/training/emulated.py found: its tables, and figures of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]
_REFERENCE = "fp32"


def table(document: dict[str, Any]) -> str:
    """As Markdown: a table for each sweep."""
    parts = [_sweep(name, one, document["machine"]) for name, one in document["sweeps"].items()]
    return "\n".join(parts)


def _sweep(name: str, sweep: dict[str, Any], facts: dict[str, Any]) -> str:
    given, rows = sweep["settings"], sweep["rows"]
    nodes = f", {given['emulate_node']} nodes" if given["emulate_node"] != 1 else ""
    caption = (
        f"**{name}**: `{given['model']}`, {rows[0]['seeds']} seeds, {given['steps']} steps of "
        f"{given['batch']} samples{nodes} ({text.machine(facts)})."
    )
    accurate = any(row["accuracy"] is not None for row in rows)
    head = ["recipe", "validation loss", "against fp32", *(["accuracy"] if accurate else [])]
    lines = text.head(caption, [*head, "bits", "time of a step"])
    for row in rows:
        accuracy = [_percent(row)] if accurate else []
        lines.append(
            text.line(
                row["recipe"],
                [
                    _loss(row),
                    _difference(row),
                    *accuracy,
                    f"{row['bits']:.3g}",
                    f"{row['time']:.2f}x",
                ],
            )
        )
    return "\n".join(lines) + "\n"


def _loss(row: Row) -> str:
    return "" if row["loss"] is None else f"{row['loss']:.4f}"


def _difference(row: Row) -> str:
    if row["diverged"]:
        return f"{row['diverged']} of {row['seeds']} diverged"
    if row["difference"] is None:
        return ""
    spread = "" if row["interval"] is None else f" ± {row['interval']:.4f}"
    return f"{row['difference']:+.4f}{spread}"


def _percent(row: Row) -> str:
    return "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"


def difference(sweep: str, recipe: str) -> Callable[[Results], float]:
    """Of a recipe's validation loss to float32's, as a mean over seeds."""

    def figure(results: Results) -> float:
        sweeps = results.of("emulate_training")["sweeps"]
        for row in sweeps.get(sweep, {"rows": []})["rows"]:
            if row["recipe"] == recipe and row["difference"] is not None:
                return float(row["difference"])
        raise Missing(f"no finished {recipe} in {sweep} of emulate_training.json")

    return figure
