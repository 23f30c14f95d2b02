"""What `activations.memory` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch_cgx.activations.report import kinds
from torch_cgx.activations.report.saves import Stored
from torch_cgx.activations.report.savings import Convertible, savings
from torch_cgx.cli.output import size_text, table


@dataclass(frozen=True, repr=False)
class Report:
    """What a forward pass keeps for backward. All sizes are in bytes.

    total: of all storages that are kept, each once; without the model's parameters and buffers.
    peak: the most that the step (forward, loss, backward) had allocated at once, gradients
        included, beyond what there was before it. peak_source: what measured it.
    parameters: of the model's parameters. gradients: of the gradients that the step made, for
        parameters and for inputs that require one.
    rows: a dict for each module and kind, in the order in which modules first kept something:
        "module" (qualified name, "" for the model itself, "(loss)" for what is outside of it),
        "class", "kind", "bytes", "storages" (their number), "share" of the total.
    savings: a dict for each measure that saves something: "measure", "bytes", "share", "line".
    """

    total: int
    peak: int
    peak_source: str
    parameters: int
    gradients: int
    rows: list[dict[str, Any]]
    savings: list[dict[str, Any]]
    storages: tuple[Stored, ...] = field(compare=False)

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind, the largest first."""
        return dict(sorted(_sums(self.rows, "kind").items(), key=lambda one: -one[1]))

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes of each module, in the order of `rows`."""
        return _sums(self.rows, "module")

    def table(self, depth: int | None = None) -> str:
        """Text with a line for each row, and the total.

        depth: parts of qualified names that are told apart: 0 the model as a whole, 1 its children;
            None: all.

        Raises:
            ValueError: a depth below 0.
        """
        if depth is not None and not (isinstance(depth, int) and depth >= 0):
            raise ValueError(f"depth={depth!r}; allowed: None, or integers from 0")
        merged: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows:
            name = row["module"] if depth is None else _cut(row["module"], depth)
            cls = row["class"] if name == row["module"] else ""
            key = name, row["kind"]
            into = merged.setdefault(key, {"class": cls, "bytes": 0, "storages": 0})
            into["class"] = into["class"] or cls
            into["bytes"] += row["bytes"]
            into["storages"] += row["storages"]
        names = list(dict.fromkeys(name for name, _ in merged))
        cells = [
            _cells(name, one["class"], kind, one["bytes"], one["storages"], self.total)
            for place in names
            for (name, kind), one in merged.items()
            if name == place
        ]
        count = sum(row["storages"] for row in self.rows)
        cells.append(_cells("total", "", "", self.total, count, self.total))
        head = ["module", "class", "kind", "bytes", "share", "storages"]
        return table(head, cells, left=(0, 1, 2))

    def plot(self, path: str | os.PathLike[str], before: Report | None = None) -> None:
        """Draws a bar of kinds into a file, in the format of its suffix; with `before` two bars.

        Raises:
            ImportError: matplotlib is missing.
        """
        from torch_cgx.activations.report.plot import draw

        draw(path, {"": self} if before is None else {"before": before, "after": self})

    def __repr__(self) -> str:
        return (
            f"Report(total={self.total}, storages={len(self.storages)}, peak={self.peak}: "
            f"{size_text(self.total)} kept for backward, peak {size_text(self.peak)})"
        )


def report_of(
    stored: list[Stored],
    peak: tuple[int, str],
    parameters: int,
    gradients: int,
    where: Convertible,
) -> Report:
    """peak: bytes, and what measured them. where: what `convert` replaces."""
    total = sum(one.nbytes for one in stored)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in stored:
        first = one.saves[0]
        fresh = {"module": first.module, "class": first.cls, "kind": first.kind}
        row = rows.setdefault((first.module, first.kind), {**fresh, "bytes": 0, "storages": 0})
        row["bytes"] += one.nbytes
        row["storages"] += 1
    order = list(dict.fromkeys(module for module, _ in rows))
    ordered = sorted(
        rows.values(), key=lambda row: (order.index(row["module"]), kinds.KINDS.index(row["kind"]))
    )
    for row in (*ordered, *(measures := savings(stored, where))):
        row["share"] = row["bytes"] / total if total else 0.0
    return Report(total, *peak, parameters, gradients, ordered, measures, tuple(stored))


def _sums(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row[key]] = found.get(row[key], 0) + row["bytes"]
    return found


def _cut(name: str, depth: int) -> str:
    """Names in parentheses are not of the model."""
    return name if name.startswith("(") else ".".join(name.split(".")[:depth])


def _cells(name: str, cls: str, kind: str, nbytes: int, storages: int, total: int) -> list[str]:
    share = f"{100 * nbytes / total:.1f} %" if total else "-"
    return [name or "(model)", cls, kind, size_text(nbytes), share, str(storages)]
