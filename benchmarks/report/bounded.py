"""Error-bounded compression: who is better than cgx, the figures of its targets, and its table.

The functions take the JSON that benchmarks/bounded.py writes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from benchmarks.compressors.corpora import CORPORA, MEMORY
from benchmarks.compressors.methods import ORIGINAL, OURS, OWN, TWO_THREADS
from benchmarks.compressors.packages import Set
from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results, Row, one

WAYS = ("compress", "decompress")
BOTH = "ratio and both speeds"
SZ3 = ("SZ3", "SZ3 no prediction")
CLEARLY = 1.01  # times the ratio
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
        if row["method"] in OWN or not row["held"] or row["ratio"] <= ours["ratio"]:
            continue
        faster = tuple(row[way] > ours[way] for way in WAYS)
        if faster in names:
            found[names[faster]].append(row)
    return found


def near(cell: Row, row: Row) -> bool:
    """Whether a method holds the bound, or misses it by little, as the original format misses most:
    a ratio means nothing where values have been clamped.
    """
    return bool(row["held"] or row["error"] < 2 * cell["max_error"])


# ---- figures


def of_limit(r: Results) -> float:
    """The lowest share of the Gaussian limit of the four cells."""
    return min(float(_need(_cell(r, *key), OURS)["of_limit"]) for key in GAUSSIAN)


def against_original(keys: tuple[tuple[str, float], ...] = ()) -> Callable[[Results], float]:
    """The lowest ratio over the original format's, of these cells or of all that have both."""

    def figure(r: Results) -> float:
        chosen = [_cell(r, *key) for key in keys] or _cells(r)
        times = [
            ours["ratio"] / theirs["ratio"]
            for cell in chosen
            for ours, theirs in [(_row(cell, OURS), _row(cell, ORIGINAL))]
            if ours and theirs and near(cell, theirs)
        ]
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


def over_copy(r: Results) -> float:
    """Decompression over a copy of the same bytes, from memory."""
    cell = _memory(r)
    if "copy" not in cell["roofs"]:
        raise Missing("bounded.json has no copy beside its roofs")
    return float(_need(cell, OURS)["decompress"] / cell["roofs"]["copy"])


def over_sz3(*what: str) -> tuple[Callable[[Results], float], Callable[[Results], str]]:
    """How cgx compares with SZ3: the lowest quotient of cgx's figures ("ratio", `WAYS`) and those
    of an SZ3 algorithm that holds the bound, and the cell that has it.
    """

    def lowest(r: Results) -> tuple[float, str]:
        found = [
            (ours[key] / row[key], f"{row['method']} on {_name(cell)}")
            for cell in _cells(r)
            for ours in [_row(cell, OURS)]
            for row in _others(cell)
            for key in what
            if ours and row["method"] in SZ3
        ]
        if not found:
            raise Missing("bounded.json has no SZ3")
        return min(found)

    return lambda r: float(lowest(r)[0]), lambda r: lowest(r)[1]


def cells_with_a_better_ratio(r: Results) -> float:
    """Cells where a peer's ratio is clearly higher, whatever its speed."""
    _with_peers(r)
    return float(
        sum(
            any(row["ratio"] > CLEARLY * _need(cell, OURS)["ratio"] for row in _others(cell))
            for cell in _cells(r)
        )
    )


def cells_with_a_better_peer(r: Results) -> float:
    _with_peers(r)
    found = [better(cell) for cell in _cells(r)]
    return float(sum(bool(one[BOTH]) for one in found if one))


def bounds_missed(r: Results) -> float:
    rows = [_need(cell, OURS) for cell in _cells(r)]
    return float(sum(not row["held"] for row in rows))


# ---- the tables of the documents

_TITLES = ("values", "bound", "ratio", "limit", *WAYS, ORIGINAL, "best other", "better")


def table(document: dict[str, Any]) -> str:
    """As Markdown: a table for each kind of data, in it a line for each corpus and bound."""
    facts = document["machine"]
    caption = (
        f"One core, medians of {facts['rounds']} rounds ({text.machine(facts)}); GB/s of the "
        "values' bytes. `limit`: share of what the entropy of Gaussian values allows. "
        "`best other`: the highest ratio of all others that hold the bound, with GB/s of "
        "compression and decompression. `better`: others with a higher ratio that are faster both "
        "ways."
    )
    cells = document["cells"]
    kinds = list(dict.fromkeys(cell.get("kind", "") for cell in cells))
    parts = [textwrap.fill(caption, 118)]
    for kind in kinds:
        some = [cell for cell in cells if cell.get("kind", "") == kind]
        if kind:
            sources = dict.fromkeys(source(cell["corpus"], facts) for cell in some)
            named = ", ".join(one for one in sources if one)
            title = f"{kind[0].upper()}{kind[1:]}" + (f" ({named})" if named else "")
            parts.append(textwrap.fill(f"{title}:", 118))
        parts.append("\n".join(_table(some)))
    return "\n\n".join(parts) + "\n"


def _table(cells: list[Row]) -> list[str]:
    """Without the columns in which nothing stands."""
    rows = [_line(cell) for cell in cells if _row(cell, OURS)]
    used = [i for i in range(len(_TITLES)) if any(row[i] for row in rows)]
    titles = [_TITLES[i] for i in used]
    lines = [text.line(titles[0], titles[1:]), "|---" * len(titles) + "|"]
    return lines + [text.line(row[0], [row[i] for i in used[1:]]) for row in rows]


def _line(cell: Row) -> list[str]:
    """By the titles."""
    ours, original = _need(cell, OURS), _row(cell, ORIGINAL)
    best = best_other(cell)
    found = better(cell) or {BOTH: []}
    return [
        cell["corpus"],
        bound_text(cell),
        ratio_text(ours["ratio"]),
        "" if ours["of_limit"] is None else f"{100 * ours['of_limit']:.1f} %",
        *(f"{ours[way]:.2f}" for way in WAYS),
        ratio_text(original["ratio"]) if original and near(cell, original) else "",
        "" if best is None else _said(best),
        ", ".join(row["method"] for row in found[BOTH]) or "nobody",
    ]


def source(corpus: str, facts: Row) -> str:
    """Name and version of the package that a corpus is read from; "" for others."""
    maker = CORPORA.get(corpus)
    if not isinstance(maker, Set):
        return ""
    return f"{maker.package} {facts.get('packages', {}).get(maker.package, '')}".strip()


def best_other(cell: Row) -> Row | None:
    """The row with the highest ratio among the other methods that hold the bound."""
    return max(_others(cell), key=lambda row: float(row["ratio"]), default=None)


def bound_text(cell: Row) -> str:
    if not cell["max_error"]:
        return "lossless"
    share = cell.get("share")
    return f"{cell['max_error']:g}" if share is None else f"{share:g} of range"


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
    return [row for row in cell["rows"] if row["method"] not in OWN and row["held"]]


def _with_peers(r: Results) -> None:
    """Missing unless cgx is everywhere, and somebody else is anywhere."""
    if any(_row(cell, OURS) is None for cell in _cells(r)):
        raise Missing(f"bounded.json has cells without {OURS}")
    if not any(_others(cell) for cell in _cells(r)):
        raise Missing("bounded.json has no peers")


def _name(cell: Row) -> str:
    return f"{cell['corpus']}, {bound_text(cell)}"
