"""The picture of a report: what is kept for backward, a bar of kinds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_cgx.activations.report.kinds import KINDS
from torch_cgx.cli.output import size_text

if TYPE_CHECKING:
    from torch_cgx.activations.report.report import Report

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


def draw(path: str | os.PathLike[str], reports: Mapping[str, Report]) -> None:
    """A bar for each report, with its name; written in the format of the path's suffix."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"plot({str(path)!r}) needs matplotlib: pip install matplotlib") from None

    most = max(report.total for report in reports.values())
    unit, scale = next((one for one in _UNITS if most >= one[1]), _UNITS[-1])
    figure = Figure(figsize=(8, 1.7 + 0.7 * len(reports)), layout="constrained")
    axes = figure.subplots()
    begins = dict.fromkeys(reports, 0.0)
    for number, kind in enumerate(KINDS):  # a kind has one colour in all pictures
        sizes = [report.by_kind.get(kind, 0) / scale for report in reports.values()]
        if not any(sizes):
            continue
        axes.barh(list(reports), sizes, left=list(begins.values()), color=f"C{number}", label=kind)
        for name, size in zip(reports, sizes, strict=True):
            begins[name] += size
    for place, report in enumerate(reports.values()):
        axes.text(report.total / scale, place, f" {size_text(report.total)}", va="center")
    axes.set_xlim(0, 1.15 * most / scale if most else 1)
    axes.invert_yaxis()  # the first report is at the top
    axes.set_xlabel(f"kept for backward, {unit}")
    axes.spines[["top", "right"]].set_visible(False)
    if most:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=120)
