"""The tables of docs/bdi.md and docs/bounded.md, of the JSON that benchmarks/bdi.py writes."""

from __future__ import annotations

from typing import Any

from benchmarks.report import cells as text


def bdi_table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each input and set of options."""
    rows = [row for row in document["rows"] if row["method"] == "BDI"]
    return _table(document, rows, "words", "errors are below the bound, in steps of the dtype")


def compat_table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each bound of cuda_float_compress's format."""
    rows = [row for row in document["rows"] if row["method"] == "cuda_float_compress"]
    return _table(document, rows, "values", "`cuszplus_compress` and `cuszplus_decompress`")


def _table(document: dict[str, Any], rows: list[dict[str, Any]], what: str, more: str) -> str:
    facts = document["machine"]
    busy = ", of other programs" if facts["load"] and facts["load"] > 1 else ""
    caption = (
        f"`python -m benchmarks bdi`: one core, {text.size_text(rows[0]['bytes'])} of {what}, "
        f"medians of {facts['rounds']} rounds ({text.machine(facts)}; load average "
        f"{facts['load']} at the start{busy}); GB/s of the {what}' bytes; {more}."
    )
    lines = text.head(caption, [what, "options", "ratio", "compress", "decompress"])
    for row in rows:
        rates = [f"{row[way]:.2f}" for way in ("compress", "decompress")]
        lines.append(text.line(row["values"], [row["options"], f"{row['ratio']:.2f}", *rates]))
    return "\n".join(lines) + "\n"
