"""What benchmarks/emulate.py found: its table, and figures of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]


def label(row: Row) -> str:
    """What was cast, as text."""
    more = ", statistics" if row.get("statistics") else ""
    dtype = f", {row['dtype']}" if row["dtype"] != "float32" else ""
    return f"{row['name']}{dtype}{more}"


def table(document: dict[str, Any]) -> str:
    """As Markdown: casts by SIMD level, then other implementations."""
    facts, rows = document["machine"], document["rows"]
    levels = facts["levels"]
    size = text.size_text(4 * facts["numel"])
    caption = (
        "`python -m benchmarks emulate`: the speed of `emulate.cast(x, format, out=y)`, as a part "
        f"of that of `y.copy_(x)`, one core, {size} of fp32 from memory; medians of "
        f"{facts['rounds']} rounds ({text.machine(facts)}; load average {facts['load']} at the "
        "start). Other implementations, in the same run, cast from fp32 to the format and back."
    )
    lines = text.head(caption, ["cast", *levels])
    found = {(label(row), row["level"]): row for row in rows}
    for name in dict.fromkeys(label(row) for row in rows if row["kind"] != "peer"):
        cells = [found.get((name, level)) for level in levels]
        lines.append(text.line(name, [_fraction(cell) for cell in cells]))
    for row in rows:
        if row["kind"] == "peer":
            name = f"{row['name']} ({row['version']})"
            lines.append(text.line(name, [*[""] * (len(levels) - 1), _fraction(row)]))
    return "\n".join(lines) + "\n"


def _fraction(row: Row | None) -> str:
    return "" if row is None else f"{row['fraction']:.2g}"


def slowest(*kinds: str) -> Callable[[Results], float]:
    """The least fraction of the casts of these kinds, of fp32 at the best SIMD level."""

    def figure(results: Results) -> float:
        found = [row["fraction"] for row in _best(results) if row["kind"] in kinds]
        if not found:
            raise Missing(f"no cast of the kind {', '.join(kinds)} in emulate.json")
        return float(min(found))

    return figure


def times(peer: str) -> Callable[[Results], float]:
    """How many times as fast a cast is as the peer's of the same format, the least of its rows."""

    def figure(results: Results) -> float:
        rows = _best(results)
        ours = {row["name"]: row["fraction"] for row in rows if row["kind"] != "peer"}
        found = [
            ours[row["of"]] / row["fraction"]
            for row in rows
            if row["kind"] == "peer" and row["name"].split()[0] == peer and row["of"] in ours
        ]
        if not found:
            raise Missing(f"no cast of {peer} in emulate.json")
        return float(min(found))

    return figure


def _best(results: Results) -> list[Row]:
    document = results.of("emulate")
    level = document["machine"]["levels"][-1]
    return [
        row
        for row in document["rows"]
        if row["level"] == level and row["dtype"] == "float32" and not row.get("statistics")
    ]
