"""Every collective over cgx and gloo: figures for the targets, and the tables of
docs/performance.md, from the results of benchmarks/collectives.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from typing import Any

from benchmarks._command import rate_text
from benchmarks.report.cells import head, layout, line, machine, ranks_text, size_text, time_text
from benchmarks.report.results import Missing, Results, Row

FILE = "collectives"
SHORT, MIDDLE, LONG = (0, 4 << 10), (64 << 10, 1 << 20), (16 << 20, 64 << 20)
OBJECTS = ("broadcast_object_list", "all_gather_object")
COMPRESSED = "all_to_all_single, 4 bits"
MOVED = ("broadcast", "all_to_all_single", "all_to_all", "scatter", "send and recv")
MOVED += ("isend and irecv",)
SHARED = ("all_gather", "all_gather_single", "reduce_scatter_single", "reduce_scatter", "gather")
COLUMNS = (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)  # of the table of one host
COLUMNS_BETWEEN = (4, 16 << 20)

Select = Callable[[Row], bool]


def place(row: Row) -> str:
    """ "one host x 2 ranks", "2 hosts x 1 rank, 1 Gbit/s" """
    if row["hosts"] == 1:
        return f"one host x {ranks_text(row)}"
    return f"{layout(row)}, {rate_text(row['rate'])}"


def rows_of(results: Results, part: str) -> list[Row]:
    parts = results.of(FILE)["parts"]
    if part not in parts:
        raise Missing(f"{FILE}.json has no part {part!r}")
    return list(parts[part]["rows"])


# ---- figures


def sized(span: tuple[int, int], names: Collection[str] | None = None) -> Select:
    """Rows with sizes in `span`, of these operations; None: of all exact ones on tensors."""

    def select(row: Row) -> bool:
        name = row["operation"]
        known = name in names if names else name not in (*OBJECTS, COMPRESSED)
        return known and span[0] <= row["bytes"] <= span[1]

    return select


def named(name: str, between: bool | None = None) -> Select:
    """Rows of an operation; between: hosts, on one host, or both."""
    return lambda row: (
        row["operation"] == name
        and "ratio" in row
        and (between is None or (row["hosts"] > 1) == between)
    )


class Rows:
    """The `key` of the selected rows of a part: the median, the lowest, and which row that is."""

    def __init__(self, part: str, select: Select, key: str = "ratio"):
        self._part, self._select, self._key = part, select, key

    def _rows(self, results: Results) -> list[Row]:
        found = [row for row in rows_of(results, self._part) if self._select(row)]
        if not found:
            raise Missing(f"{FILE}.json has no such rows in the part {self._part!r}")
        return sorted(found, key=lambda row: float(row[self._key]))

    def lowest(self, results: Results) -> float:
        return float(self._rows(results)[0][self._key])

    def median(self, results: Results) -> float:
        return statistics.median(float(row[self._key]) for row in self._rows(results))

    def name(self, results: Results) -> str:
        """Of the lowest, with its 10th and 90th percentile over the rounds."""
        row = self._rows(results)[0]
        size = f" of {size_text(row['bytes'])}" if row.get("bytes") else ""
        low, high = (row[f"{self._key}_{p}"] for p in ("p10", "p90"))
        return f"{row['operation']}{size}, {place(row)}: {low:.2f} to {high:.2f}"


# ---- tables


def table(document: dict[str, Any]) -> str:
    """All tables; of a part that was not measured, a sentence."""
    parts = document["parts"]
    makes = {
        "host": _host_table,
        "hosts": _hosts_table,
        "copy": _copy_table,
        "fsdp": _steps_table,
        "creation": _creation_table,
    }
    texts = []
    for name, make in makes.items():
        rows = parts.get(name, {}).get("rows", [])
        if rows:
            texts.append("\n".join(make(rows, document["machine"])))
        else:
            command = f"`python -m benchmarks.collectives --part {name}`"
            texts.append(f"Not measured yet: {command}.")
    return "\n\n".join(texts) + "\n"


def _grid(rows: list[Row], columns: list[tuple[str, int]], key: str = "ratio") -> list[str]:
    """A line per operation; columns: places and sizes. A row without a size is in the first column
    of its place."""
    cells = {(row["operation"], place(row), row["bytes"]): row[key] for row in rows}
    first = {}
    for where, nbytes in columns:
        first.setdefault(where, nbytes)
    lines = []
    for name in dict.fromkeys(row["operation"] for row in rows):
        texts = []
        for where, nbytes in columns:
            ratio = cells.get((name, where, nbytes))
            if ratio is None and first[where] == nbytes:
                ratio = cells.get((name, where, 0))
            texts.append("" if ratio is None else f"{ratio:.2f}")
        if any(texts):
            lines.append(line(name, texts))
    return lines


def _places(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(map(place, rows)))


def _columns(rows: list[Row], sizes: Collection[int]) -> list[tuple[str, int]]:
    """Of a place without any of the sizes one column, for rows without a size."""
    there = {(place(row), row["bytes"]) for row in rows}
    columns = []
    for where in _places(rows):
        columns += [(where, n) for n in sizes if (where, n) in there] or [(where, 0)]
    return columns


def _titles(columns: list[tuple[str, int]]) -> list[str]:
    """The place is in the first of its columns."""
    titles, last = [], ""
    for where, nbytes in columns:
        size = size_text(nbytes) if nbytes else ""
        titles.append(size if where == last else ": ".join(filter(None, [where, size])))
        last = where
    return titles


def _host_table(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    columns = _columns(rows, COLUMNS)
    controls = [row["control"] for row in rows]
    most = max(row["rounds"] for row in rows)
    caption = (
        f"Times faster than gloo in turns in the same processes, over shared memory ("
        f"{machine(facts)}); geometric mean of up to {most} rounds of new processes. Two "
        f"groups of gloo differ by chance alone: {min(controls):.2f} to {max(controls):.2f}."
    )
    return [*head(caption, ["", *_titles(columns)]), *_grid(rows, columns)]


def _hosts_table(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    columns = _columns(rows, COLUMNS_BETWEEN)
    controls = [row["control"] for row in rows]
    caption = (
        f"The same between hosts; all hosts share {facts['cores']} cores. Two groups of gloo: "
        f"{min(controls):.2f} to {max(controls):.2f}."
    )
    return [*head(caption, ["", *_titles(columns)]), *_grid(rows, columns)]


def _copy_table(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    columns = _columns(rows, sorted({row["bytes"] for row in rows}))
    copies = [row["copy_gb_per_s"] for row in rows]
    caption = (
        "The speed at which a rank gets its tensor, divided by the speed of a copy of such a "
        f"tensor by all ranks at once ({min(copies):.1f} to {max(copies):.1f} GB/s each)."
    )
    return [*head(caption, ["", *_titles(columns)]), *_grid(rows, columns, "of_copy")]


def _turns(caption: str, rows: list[Row]) -> list[str]:
    lines = head(caption, ["", "gloo", "cgx", "times faster", "control"])
    for row in rows:
        times = [time_text(row["gloo_seconds"]), time_text(row["cgx_seconds"])]
        cells = [*times, f"{row['ratio']:.2f}", f"{row['control']:.2f}"]
        lines.append(line(f"{row['operation']}, {place(row)}", cells))
    return lines


def _steps_table(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    return _turns("A step of exact FSDP2, the GPT of the examples.", rows)


def _creation_table(rows: list[Row], facts: dict[str, Any]) -> list[str]:
    lines = _turns(
        "A group of all ranks: `new_group`, the first all-reduce of one value, and "
        "`destroy_process_group`, slowest rank.",
        [row for row in rows if "ratio" in row],
    )
    many = [row for row in rows if "made" in row]
    if not many:
        return lines
    caption = f"{many[0]['groups']} groups alive, each used once; per group and rank."
    titles = ["", "creation", "first all-reduce", "destruction", "memory", "sockets", "threads"]
    lines += ["", *head(caption, titles)]
    for row in many:
        steps = ("creation", "first_all_reduce", "destruction")
        cells = [time_text(row[f"{step}_seconds"]) for step in steps]
        used = row["used"]
        cells += [f"{used['memory'] / 1024:.0f} KiB", f"{used['sockets']:.2g}"]
        lines.append(line(f"{row['backend']}, {place(row)}", [*cells, f"{used['threads']:.2g}"]))
    return lines
