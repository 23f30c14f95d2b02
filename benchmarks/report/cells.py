"""What the tables have in common: lines of Markdown, and numbers and layouts as text."""

from __future__ import annotations

import textwrap
from typing import Any

from benchmarks._command import rate_text

BASE = "gloo fp32"

Row = dict[str, Any]


def size_text(nbytes: int) -> str:
    """4096 -> "4 KiB"; sizes that are no whole number of a unit have one decimal."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


def head(caption: str, titles: list[str]) -> list[str]:
    """The lines before the rows of a table."""
    rule = "|---" * len(titles) + "|"
    return [textwrap.fill(caption, 118), "", line(titles[0], titles[1:]), rule]


def line(name: str, cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join([name, *cells]) + " |"


def by_method(
    rows: list[Row],
) -> tuple[dict[int, Row], list[str], dict[tuple[str, int], Row]]:
    """Rows of gloo by bytes; the other methods; all rows by method and bytes. ValueError where
    gloo or all others are missing.
    """
    base = {row["bytes"]: row for row in rows if row["method"] == BASE}
    methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name != BASE]
    if not base or not methods:
        raise ValueError(f"no rows of {BASE!r} and another method; found {methods}")
    return base, methods, {(row["method"], row["bytes"]): row for row in rows}


def machine(facts: dict[str, Any]) -> str:
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['simd']} codecs, torch {facts['torch']}"


def ranks_text(run: dict[str, Any]) -> str:
    ranks = run["ranks_per_host"]
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def ranks_of(run: dict[str, Any]) -> int:
    return int(run["hosts"] * run["ranks_per_host"])


def layout(run: dict[str, Any]) -> str:
    return f"{run['hosts']} hosts x {ranks_text(run)}"


def difference(run: dict[str, Any], first: dict[str, Any]) -> str:
    """What a run has otherwise than the first, as a title."""
    parts = [f"{run['hosts']} hosts"] if run["hosts"] != first["hosts"] else []
    if run["ranks_per_host"] != first["ranks_per_host"]:
        parts.append(f"{ranks_text(run)} each")
    if run["rate"] != first["rate"]:
        parts.append(rate_text(run["rate"]))
    return ", ".join(parts) or "again"


def time_text(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def speedup(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['speedup']:.2f}"


def percent(row: dict[str, Any] | None) -> str:
    """Two digits; an error below 1e-6 comes from fp32 sums."""
    if row is None:
        return ""
    error = row["relative_error"]
    return "0" if error < 1e-6 else f"{100 * error:.2g} %"
