"""The tables that benchmarks/collectives.py prints, and its picture."""

from __future__ import annotations

from typing import Any

from benchmarks import _command
from benchmarks._collectives_rounds import Row
from benchmarks._command import rate_text, size_text, time_text

MIB = 1 << 20


def place_text(row: Row) -> str:
    """ "one host x 2 ranks", "2 hosts x 1 rank, 1 Gbit/s" """
    ranks = row["ranks_per_host"]
    text = f"{ranks} rank{'s' if ranks > 1 else ''}"
    if row["hosts"] == 1:
        return f"one host x {text}"
    return f"{row['hosts']} hosts x {text}, {rate_text(row['rate'])}"


def table(rows: list[Row]) -> str:
    """Of rows of one place and kind."""
    kinds = (("ratio", _ratios), ("of_copy", _copies), ("made", _groups))
    lines = next(make(rows) for key, make in kinds if key in rows[0])
    return "\n".join([place_text(rows[0]), *lines])


def _ratios(rows: list[Row]) -> list[str]:
    width = max(len(row["operation"]) for row in rows)
    lines = [
        f"{'':<{width}} {'size':>6} {'gloo':>11} {'cgx':>11} {'gloo/cgx':>9} {'p10 - p90':>15} "
        "control"
    ]
    for row in rows:
        between = f"{row['ratio_p10']:.2f} - {row['ratio_p90']:.2f}"
        size = size_text(row["bytes"]) if row.get("bytes") else ""
        lines.append(
            f"{row['operation']:<{width}} {size:>6} {time_text(row['gloo_seconds']):>11} "
            f"{time_text(row['cgx_seconds']):>11} {row['ratio']:>9.3f} {between:>15} "
            f"{row['control']:>7.3f}"
        )
    return lines


def _copies(rows: list[Row]) -> list[str]:
    width = max(len(row["operation"]) for row in rows)
    lines = [f"{'':<{width}} {'size':>6} {'cgx':>11} {'GB/s':>7} {'copy GB/s':>9} {'of copy':>8}"]
    lines += [
        f"{row['operation']:<{width}} {size_text(row['bytes']):>6} "
        f"{time_text(row['cgx_seconds']):>11} {row['cgx_gb_per_s']:>7.2f} "
        f"{row['copy_gb_per_s']:>9.2f} {row['of_copy']:>8.3f}"
        for row in rows
    ]
    return lines


def _groups(rows: list[Row]) -> list[str]:
    lines = []
    for row in rows:
        lines.append(
            f"{row['groups']} groups of {row['backend']}, each: creation "
            f"{time_text(row['creation_seconds'])}, first all_reduce "
            f"{time_text(row['first_all_reduce_seconds'])}, destruction "
            f"{time_text(row['destruction_seconds'])}"
        )
        lines += [
            f"  {when:<5} {one['memory'] / 1024:>8.1f} KiB, {one['sockets']:.2f} sockets, "
            f"{one['threads']:.2f} threads, {one['files']:.2f} files"
            for when in ("made", "used", "left")
            for one in [row[when]]
        ]
    return lines


def draw(document: dict[str, Any], file: str) -> None:
    """The picture: for each place, the ratios of every operation, sizes by colour."""
    rows = [
        row
        for name in ("host", "hosts", "fsdp", "creation")
        for row in document["parts"].get(name, {}).get("rows", [])
        if "ratio" in row
    ]
    places = list(dict.fromkeys(map(place_text, rows))) or ["nothing measured"]
    down = -(-len(places) // 2)
    across = min(len(places), 2)
    sizes = sorted({row.get("bytes") or 0 for row in rows})
    with _command.picture(file, down, across, figsize=(7 * across, 5 * down)) as (figure, axes):
        from matplotlib import colormaps

        colors = colormaps["viridis"].resampled(max(len(sizes), 2))
        for axis in axes.flat[len(places) :]:
            axis.set_visible(False)
        for axis, place in zip(axes.flat, places, strict=False):
            mine = [row for row in rows if place_text(row) == place]
            names = list(dict.fromkeys(row["operation"] for row in mine))
            for number, nbytes in enumerate(sizes):
                dots = [row for row in mine if (row.get("bytes") or 0) == nbytes]
                axis.scatter(
                    [row["ratio"] for row in dots],
                    [names.index(row["operation"]) for row in dots],
                    color=colors(number),
                    s=22,
                    label=size_text(nbytes) if nbytes else "no tensor",
                )
            axis.axvline(1, color="black", linewidth=1)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_yticks(range(len(names)), names, fontsize=7)
            axis.invert_yaxis()
            axis.grid(alpha=0.25)
            axis.set_title(place)
            axis.set_xlabel("gloo's time over cgx's")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        if handles:
            axes.flat[0].legend(handles, labels, fontsize=7)
        figure.suptitle(f"every collective over cgx and gloo ({document['machine']['cpu']})")
