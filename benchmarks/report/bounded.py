"""Error-bounded compression: who is better than cgx, the figures of its targets, and its table.

The functions take the JSON that benchmarks/bounded.py writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.compressors.corpora import MEMORY
from benchmarks.compressors.methods import CUDA, ORIGINAL, OURS, TWO_THREADS
from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results, Row, one

WAYS = ("compress", "decompress")
BOTH = "ratio and both speeds"
_OWN = (OURS, TWO_THREADS, CUDA)
GAUSSIAN = tuple((name, bound) for name in ("N(0,1)", "N(0,.02)") for bound in (1e-4, 1e-3))


def better(cell: Row) -> dict[str, list[Row]] | None:
    """Rows of the methods of others that hold the bound and are better than cgx in the ratio and in
    both speeds, or in one speed only; None where cgx was not measured.
    """
    ours = _row(cell, OURS)
    if ours is None:
        return None
    found: dict[str, list[Row]] = {BOTH: [], "ratio and compression": []}
    found["ratio and decompression"] = []
    names = {(True, True): BOTH, (True, False): "ratio and compression"}
    names[False, True] = "ratio and decompression"
    for row in cell["rows"]:
        if row["method"] in _OWN or not row["held"] or row["ratio"] <= ours["ratio"]:
            continue
        faster = tuple(row[way] > ours[way] for way in WAYS)
        if faster in names:
            found[names[faster]].append(row)
    return found


# ---- figures


def of_limit(r: Results) -> float:
    """The lowest share of the Gaussian limit of the four cells."""
    return min(float(_need(_cell(r, *key), OURS)["of_limit"]) for key in GAUSSIAN)


def against_original(keys: tuple[tuple[str, float], ...] = ()) -> Callable[[Results], float]:
    """The lowest ratio over the original format's, of these cells or of all that have both."""

    def figure(r: Results) -> float:
        chosen = [_cell(r, *key) for key in keys] or _cells(r)
        pairs = [(_row(cell, OURS), _row(cell, ORIGINAL)) for cell in chosen]
        times = [o["ratio"] / theirs["ratio"] for o, theirs in pairs if o and theirs]
        if not times:
            raise Missing(f"bounded.json has no {ORIGINAL}")
        return float(min(times))

    return figure


def sine(r: Results) -> float:
    return float(_need(_cell(r, "sine", 1e-4), OURS)["ratio"])


def zeros(r: Results) -> float:
    """Bytes."""
    cell = _cell(r, "zeros", 1e-4)
    if cell["shape"] != [10**6]:
        raise Missing(f"bounded.json has zeros of shape {cell['shape']}")
    return float(_need(cell, OURS)["bytes"])


def rate(way: str) -> Callable[[Results], float]:
    """GB/s of one core from memory; way: of `WAYS`."""
    return lambda r: float(_need(_memory(r), OURS)[way])


def two_threads(r: Results) -> float:
    """How many times faster two threads are, in the slower of both ways."""
    cell = _memory(r)
    one_thread, two = _need(cell, OURS), _need(cell, TWO_THREADS)
    return float(min(two[way] / one_thread[way] for way in WAYS))


def stage(r: Results) -> float:
    """Everything before the entropy stage over the min-max scan, from memory."""
    roofs = _memory(r)["roofs"]
    if "stage alone" not in roofs:
        raise Missing("bounded.json has no codec stage alone")
    return float(roofs["stage alone"] / roofs["scan"])


def cells_with_a_better_peer(r: Results) -> float:
    found = [better(cell) for cell in _cells(r)]
    if any(one is None for one in found):
        raise Missing(f"bounded.json has cells without {OURS}")
    if not any(_others(cell) for cell in _cells(r)):
        raise Missing("bounded.json has no peers")
    return float(sum(bool(one[BOTH]) for one in found if one))


def bounds_missed(r: Results) -> float:
    rows = [_need(cell, OURS) for cell in _cells(r)]
    return float(sum(not row["held"] for row in rows))


# ---- the table of the documents


def table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each corpus and bound."""
    facts = document["machine"]
    caption = (
        f"One core, medians of {facts['rounds']} rounds ({text.machine(facts)}); GB/s of the "
        "values' bytes. `limit`: share of what the entropy of Gaussian values allows. "
        "`best other`: the highest ratio of all others that hold the bound, with GB/s of "
        "compression and decompression. `better`: others with a higher ratio that are faster both "
        "ways."
    )
    titles = ["values", "bound", "ratio", "limit", *WAYS, ORIGINAL, "best other", "better"]
    lines = text.head(caption, titles)
    for cell in document["cells"]:
        ours, original = _row(cell, OURS), _row(cell, ORIGINAL)
        if ours is None:
            continue
        best = max(_others(cell), key=lambda row: float(row["ratio"]), default=None)
        found = better(cell) or {BOTH: []}
        of_limit = "" if ours["of_limit"] is None else f"{100 * ours['of_limit']:.1f} %"
        lines.append(
            text.line(
                cell["corpus"],
                [
                    f"{cell['max_error']:g}" if cell["max_error"] else "lossless",
                    ratio_text(ours["ratio"]),
                    of_limit,
                    *(f"{ours[way]:.2f}" for way in WAYS),
                    "" if original is None else ratio_text(original["ratio"]),
                    "" if best is None else _said(best),
                    ", ".join(row["method"] for row in found[BOTH]) or "nobody",
                ],
            )
        )
    return "\n".join(lines) + "\n"


def entropy_table(document: dict[str, Any]) -> str:
    """As Markdown: a line for each library, columns for each corpus and bound."""
    cells = [cell for cell in document["cells"] if cell.get("coders")]
    facts = document["machine"]
    caption = (
        "Libraries in the place of the entropy stage, on the same blocks, one core "
        f"({text.machine(facts)}): ratio of the whole payload, and GB/s of the values in "
        "compression and decompression of this stage alone."
    )
    titles = ["library", *(f"{cell['corpus']}, {cell['max_error']:g}" for cell in cells)]
    lines = text.head(caption, titles)
    names = dict.fromkeys(row["coder"] for cell in cells for row in cell["coders"])
    for name in names:
        found = [one((r for r in cell["coders"] if r["coder"] == name), name) for cell in cells]
        lines.append(text.line(name, [_said(row).removeprefix(f"{name}: ") for row in found]))
    return "\n".join(lines) + "\n"


def ratio_text(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 100 else f"{ratio:.0f}"


def _said(row: Row) -> str:
    rates = ", ".join(f"{row[way]:.2f}" for way in WAYS)
    name = row.get("method") or row["coder"]
    return f"{name}: {ratio_text(row['ratio'])} ({rates})"


# ---- look-ups


def _cells(r: Results) -> list[Row]:
    return list(r.of("bounded")["cells"])


def _cell(r: Results, corpus: str, max_error: float) -> Row:
    return one(
        (c for c in _cells(r) if (c["corpus"], c["max_error"]) == (corpus, max_error)),
        f"bounded.json has no {corpus} at {max_error:g}",
    )


def _memory(r: Results) -> Row:
    return _cell(r, MEMORY, 1e-4)


def _row(cell: Row, method: str) -> Row | None:
    return next((row for row in cell["rows"] if row["method"] == method), None)


def _need(cell: Row, method: str) -> Row:
    row = _row(cell, method)
    if row is None:
        raise Missing(f"bounded.json has no {method} on {cell['corpus']}")
    return row


def _others(cell: Row) -> list[Row]:
    """Those of peers, with the original format, that hold the bound."""
    return [row for row in cell["rows"] if row["method"] not in _OWN and row["held"]]
