"""What benchmarks/emulate_gemm.py found: its table, and figures of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]
_KINDS = {"casts": "operands cast, fp32 sums", "sums": "sums in a format", "layers": "layers"}


def table(document: dict[str, Any]) -> str:
    """As Markdown: products and layers by SIMD level."""
    facts, rows = document["machine"], document["rows"]
    levels = facts["levels"]
    caption = (
        f"`python -m benchmarks emulate-gemm`: {facts['size']}^3, float32, one core; "
        "speed as a part of that of torch's own product or layer (forward and backward); GFLOP/s "
        f"of sums in brackets; medians of {facts['rounds']} rounds, of 3 for sums "
        f"({text.machine(facts)}; load average {facts['load']} at the start)."
    )
    lines = text.head(caption, ["what", *levels])
    found = {(row["kind"], row["name"], row["level"]): row for row in rows}
    for kind, name in dict.fromkeys((row["kind"], row["name"]) for row in rows):
        cells = [found.get((kind, name, level)) for level in levels]
        lines.append(text.line(f"{_KINDS[kind]}: {name}", [_cell(cell) for cell in cells]))
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    rate = f" ({row['gflops']:.2g})" if "gflops" in row else ""
    return f"{row['fraction']:.2g}{rate}"


def slowest(kind: str, key: str, rule: str | None = None) -> Callable[[Results], float]:
    """The least of the rows of a kind, and of a rule of summation, at the best SIMD level. key:
    "fraction" or "gflops".
    """

    def figure(results: Results) -> float:
        document = results.of("emulate_gemm")
        level = document["machine"]["levels"][-1]
        found = [
            row[key]
            for row in document["rows"]
            if row["level"] == level and row["kind"] == kind and rule in (None, row.get("rule"))
        ]
        if not found:
            raise Missing(f"no {kind} in emulate_gemm.json")
        return float(min(found))

    return figure
