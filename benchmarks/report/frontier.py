"""What benchmarks/frontier.py found: tables, and the picture."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from benchmarks import _command
from benchmarks.report import cells as text
from benchmarks.report.pareto import (
    BUDGETS,
    ERROR,
    EXACT_ERROR,
    LIMIT,
    TIME,
    best,
    dominated_by,
    eager,
    is_compiled,
)

Row = dict[str, Any]
PEAKS = (0.4, 0.3)


# ---- text


def error_text(error: float) -> str:
    return "exact" if error < EXACT_ERROR else f"{error:.2g}"


def line_of(row: Row) -> str:
    """For the terminal."""
    compiled = "" if row["time_compiled"] is None else f"{row['time_compiled']:.2f}"
    return (
        f"{row['model']:<8} {row['method']:<34} {_command.size_text(row['bytes']):>7} "
        f"{row['share']:>7.1%} {row['peak_share']:>7.1%} {row['time']:>6.3f} "
        f"({row['time_q1']:.3f} - {row['time_q3']:.3f}) {compiled:>5} {error_text(row['error']):>8}"
    )


def text_table(rows: list[Row]) -> str:
    """For the terminal: all rows, and the best at each budget."""
    head = f"{'model':<8} {'method':<34} {'kept':>7} {'share':>7} {'peak':>7} {'time':>6} "
    lines = [f"{head}{'quartiles':<17} {'comp.':>5} {'error':>8}  dominated by, of eager ones"]
    for row in rows:
        others = [text or "-" for text in _dominating(row, rows)]
        lines.append(f"{line_of(row)}  {', '.join(others)}")
    for some in (eager(rows), list(filter(is_compiled, rows))):
        for model in dict.fromkeys(row["model"] for row in some):
            for share, *cells in _budgets([row for row in some if row["model"] == model]):
                lines.append(f"{model:<8} {share}: " + " | ".join(cells))
    return "\n".join(lines)


def _dominating(row: Row, rows: list[Row]) -> tuple[str | None, str | None]:
    """Of all rows; of those without torch.compile, where the row is one."""
    of_eager = None if is_compiled(row) else dominated_by(row, eager(rows))
    return dominated_by(row, rows), of_eager


_COLUMNS: tuple[tuple[str, float | None, tuple[str, ...]], ...] = tuple(
    (f"{family}, {title}", limit, (family,))
    for title, limit in (("time <= 1.1", LIMIT), ("any time", None))
    for family in ("torch", "ours", "fit")
)


def _budgets(rows: list[Row]) -> list[list[str]]:
    lines = []
    for key, shares, title in (("share", BUDGETS, "kept"), ("peak_share", PEAKS, "peak")):
        for share in shares:
            found = [best(rows, share, limit, some, key) for _, limit, some in _COLUMNS]
            lines.append([f"{title} {100 * share:.0f} %", *map(_best_text, found)])
    return lines


def _best_text(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['method']}: {error_text(row['error'])}, {row['time']:.2f}x"


def table(document: dict[str, Any]) -> str:
    """As Markdown: who wins at each budget, the picture, and all rows."""
    picture = "![Bytes kept, errors of gradients and times](../benchmarks/results/frontier.png)\n"
    return "\n".join((budgets_table(document), picture, frontier_table(document)))


def frontier_table(document: dict[str, Any]) -> str:
    """As Markdown: all rows by model."""
    facts, rows = document["machine"], document["rows"]
    caption = (
        f"`python -m benchmarks frontier`: {facts['layers']} layers, width {facts['width']}, "
        f"sequence {facts['sequence']}, batch {facts['batch']}, fp32, one thread "
        f"({text.machine(facts)}). Kept: bytes allocated in the forward pass that are still there "
        "after it; peak: the most that a step has allocated at once, gradients included; both in % "
        "of the exact step. Time: forward and backward, by the exact step's and, where "
        "torch.compile runs, by the compiled exact step's (medians of "
        f"{facts['rounds']} rounds). Error: relative L2 of the whole gradient, root mean square of "
        f"{facts['draws']} draws; exact: below {EXACT_ERROR:g}. Dominated: by a row that is at "
        f"least as good in bytes, time ({TIME - 1:.0%}) and error ({ERROR - 1:.0%}), and better in "
        "one of them, of all rows and of those without torch.compile; a dash: on the frontier."
    )
    titles = ["model", "method", "kept", "peak", "time", "by compiled", "error", "dominated by"]
    lines = text.head(caption, [*titles, "of eager ones by"])
    for row in rows:
        compiled = f"{row['time_compiled']:.2f}" if is_compiled(row) else ""
        shares = [f"{100 * row[key]:.1f} %" for key in ("share", "peak_share")]
        cells = [row["method"], *shares, f"{row['time']:.2f}", compiled]
        of_all, of_eager = _dominating(row, rows)
        cells += [error_text(row["error"]), of_all or "-"]
        cells.append("" if is_compiled(row) else of_eager or "-")
        lines.append(text.line(row["model"], cells))
    missing = document.get("not_measured") or {}
    if missing:
        lines.append("")
        lines += ["Not measured:", ""]
        whys = (f"- {name}: {why}" for name, why in missing.items())
        lines += [textwrap.fill(one, 118, subsequent_indent="  ") for one in whys]
    return "\n".join(lines) + "\n"


def budgets_table(document: dict[str, Any]) -> str:
    """As Markdown: the row of the least error at each budget, by family; without torch.compile,
    then with it.
    """
    captions = (
        "The least error within a budget of kept bytes, or of the peak of a step, with the time of "
        "its step; of equal errors the fastest. Without `torch.compile`:",
        "Of compiled functions; times are still relative to the exact step without:",
    )
    rows = document["rows"]
    lines = []
    for caption, some in zip(captions, (eager(rows), filter(is_compiled, rows)), strict=True):
        mine = list(some)
        if not mine:
            continue
        columns = [one for one in _COLUMNS if any(row["family"] in one[2] for row in mine)]
        kept = [number for number, one in enumerate(_COLUMNS) if one in columns]
        lines += text.head(caption, ["model", "at most", *(title for title, *_ in columns)])
        for model in dict.fromkeys(row["model"] for row in mine):
            for share, *cells in _budgets([row for row in mine if row["model"] == model]):
                lines.append(text.line(model, [share, *(cells[number] for number in kept)]))
        lines.append("")
    return "\n".join(lines)


# ---- the picture

# Of eager rows, and of compiled ones.
_MARKERS = {"torch": "sD", "ours": "oP", "fit": "**"}
_SLOWEST = 1.5  # the end of the colours


def draw(rows: list[Row], file: str) -> None:
    """Bytes against error, a panel for each model; exact gradients stand on the line below."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    numbers = {one: i for i, one in enumerate(dict.fromkeys(row["method"] for row in rows), 1)}
    with _command.picture(file, 1, len(names) + 1, figsize=(6.5 * len(names) + 4, 8)) as (
        figure,
        axes,
    ):
        for axis, name in zip(axes[0], names, strict=False):
            dots = _panel(axis, [row for row in rows if row["model"] == name], numbers)
            axis.set(title=name, xlabel="% of the exact bytes kept for backward")
        axes[0][0].set(ylabel="relative L2 error of the gradient (the line below: exact)")
        key, lines = axes[0][-1], [f"{i:>2}  {one}" for one, i in numbers.items()]
        key.axis("off")
        key.text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=8)
        marks = axes[0][0].get_legend_handles_labels()
        key.legend(*marks, fontsize=9, loc="lower left", title="wide edge: on the frontier")
        figure.colorbar(dots, ax=key, location="left", label="time of a step, exact = 1")


def _panel(axis: Any, rows: list[Row], numbers: dict[str, int]) -> Any:
    """The dots, for the scale of colours."""
    errors = [row["error"] for row in rows if row["error"] >= EXACT_ERROR] or [1.0]
    floor = 10 ** (math.floor(math.log10(min(errors))) - 0.5)
    axis.axhline(floor, color="grey", linewidth=0.8)
    dots = None
    for family, compiled in ((f, c) for f in _MARKERS for c in (False, True)):
        some = [row for row in rows if row["family"] == family and is_compiled(row) == compiled]
        if not some:
            continue
        places = [max(row["error"], floor) for row in some]
        dots = axis.scatter(
            [100 * row["share"] for row in some],
            places,
            c=[row["time"] for row in some],
            vmin=0.9,
            vmax=_SLOWEST,
            cmap="viridis_r",
            marker=_MARKERS[family][compiled],
            s=130 if family == "fit" else 45,
            edgecolors="black",
            linewidths=[1.3 if dominated_by(row, rows) is None else 0.3 for row in some],
            label=family + (", compiled" if compiled else ""),
            zorder=3,
        )
        for row, y in zip(some, places, strict=True):
            number = numbers[row["method"]]
            # Above or below the dot, so that neighbours' numbers are apart.
            place = (0, 6 if number % 2 or y == floor and number % 3 else -13)
            options = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
            axis.annotate(str(number), (100 * row["share"], y), xytext=place, **options)
    axis.set(xscale="log", yscale="log", ylim=(floor / 2, 2 * max(1.0, *errors, floor)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter(lambda *_: "")
    axis.grid(alpha=0.25, which="both")
    return dots
