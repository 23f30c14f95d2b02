"""What benchmarks/frontier.py found: which rows are on the frontier, tables, and the picture.

A row dominates another of the same model if it is at least as good in bytes, time and error, up to
the tolerances below, and better by more than its tolerance in one of them. Errors are compared by
their ratio; below EXACT_ERROR, which only the order of float32 sums makes, all count as equal.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import _command
from benchmarks.report import cells as text
from benchmarks.report.results import Missing, Results

Row = dict[str, Any]
# Tolerances, as ratios.
TIME, ERROR, BYTES = 1.02, 1.05, 1.005
EXACT_ERROR = 1e-5
BUDGETS = (0.5, 0.3, 0.2, 0.1, 0.05)
PEAKS = (0.6, 0.4, 0.35, 0.3)
LIMITS = (1.1, None)  # of the time of a step, by the exact one's


def level(error: float) -> float:
    """An error as it is compared."""
    return max(error, EXACT_ERROR)


def dominates(row: Row, other: Row, key: str = "bytes") -> bool:
    """key: "bytes" or "peak". Of two rows at most one dominates the other."""
    pairs = (
        (row[key], other[key], BYTES),
        (row["time"], other["time"], TIME),
        (level(row["error"]), level(other["error"]), ERROR),
    )
    return all(a <= b * most for a, b, most in pairs) and any(a * most < b for a, b, most in pairs)


def dominated_by(row: Row, rows: Iterable[Row], key: str = "bytes") -> str | None:
    """The method, of the row's model, that dominates it; of several the one of the least error,
    then the fastest. None: the row is on the frontier.
    """
    found = [one for one in _alike(row, rows) if dominates(one, row, key)]
    return _first(found)["method"] if found else None


def _alike(row: Row, rows: Iterable[Row]) -> list[Row]:
    return [one for one in rows if one["model"] == row["model"] and one is not row]


def _first(rows: list[Row]) -> Row:
    """The row of the least error; of those within its tolerance the fastest, then the smallest."""
    least = min(level(row["error"]) for row in rows)
    near = [row for row in rows if level(row["error"]) <= least * ERROR]
    return min(near, key=lambda row: (row["time"], row["bytes"]))


def best(
    rows: list[Row],
    share: float,
    limit: float | None,
    families: tuple[str, ...] = ("torch", "ours", "fit"),
    key: str = "share",
) -> Row | None:
    """Of rows of one model: the row that keeps at most `share` of the exact bytes and takes at most
    `limit` times the exact step (up to the tolerance), with the least error. key: "peak_share" for
    shares of the exact peak. None: there is none.
    """
    found = [
        row
        for row in rows
        if row["family"] in families
        and row[key] <= share * BYTES
        and (limit is None or row["time"] <= limit * TIME)
    ]
    return _first(found) if found else None


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
    lines = [f"{head}{'quartiles':<17} {'comp.':>5} {'error':>8}  dominated by"]
    lines += [f"{line_of(row)}  {row['dominated_by'] or '-'}" for row in rows]
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        for share, *cells in _budgets(mine):
            lines.append(f"{model:<8} at {share}: " + " | ".join(cells))
    return "\n".join(lines)


_COLUMNS: tuple[tuple[str, float | None, tuple[str, ...]], ...] = (
    ("torch, time <= 1.1", LIMITS[0], ("torch",)),
    ("ours, time <= 1.1", LIMITS[0], ("ours",)),
    ("fit, time <= 1.1", LIMITS[0], ("fit",)),
    ("torch, any time", LIMITS[1], ("torch",)),
    ("ours, any time", LIMITS[1], ("ours",)),
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
        return "none"
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
        "one of them; a dash: on the frontier."
    )
    titles = ["model", "method", "kept", "peak", "time", "by compiled", "error", "dominated by"]
    lines = text.head(caption, titles)
    for row in rows:
        compiled = "" if row["time_compiled"] is None else f"{row['time_compiled']:.2f}"
        shares = [f"{100 * row[key]:.1f} %" for key in ("share", "peak_share")]
        cells = [row["method"], *shares, f"{row['time']:.2f}", compiled]
        cells += [error_text(row["error"]), dominated_by(row, rows) or "-"]
        lines.append(text.line(row["model"], cells))
    missing = document.get("not_measured") or {}
    if missing:
        lines += [
            "",
            *(textwrap.fill(f"Not measured: {n}: {why}.", 118) for n, why in missing.items()),
        ]
    return "\n".join(lines) + "\n"


def budgets_table(document: dict[str, Any]) -> str:
    """As Markdown: the row of the least error at each budget, by family."""
    caption = (
        "The least error within a budget of kept bytes, or of the peak of a step, with the time of "
        "its step; of equal errors the fastest."
    )
    lines = text.head(caption, ["model", "at most", *(title for title, *_ in _COLUMNS)])
    rows = document["rows"]
    for model in dict.fromkeys(row["model"] for row in rows):
        for cells in _budgets([row for row in rows if row["model"] == model]):
            lines.append(text.line(model, cells))
    return "\n".join(lines) + "\n"


# ---- figures of targets


def fit_over_best(limit: float | None = LIMITS[0]) -> Callable[[Results], float]:
    """The greatest error of a plan over that of the best other row that keeps no more bytes and
    takes no more time, of both models and all budgets. Missing without plans.
    """

    def figure(results: Results) -> float:
        rows = results.rows("frontier")
        found = []
        for row in rows:
            if row["family"] != "fit" or (limit is not None and row["time"] > limit * TIME):
                continue
            mine = [one for one in rows if one["model"] == row["model"]]
            other = best(mine, row["share"], row["time"], ("torch", "ours"))
            if other is not None:
                found.append(level(row["error"]) / level(other["error"]))
        if not found:
            raise Missing("frontier.json has no plans of activations.fit to compare")
        return float(max(found))

    return figure


def off_frontier(family: str) -> Callable[[Results], float]:
    """How many rows of a family that keep 5 % to 50 % of the exact bytes are dominated."""

    def figure(results: Results) -> float:
        rows = results.rows("frontier")
        mine = [r for r in rows if r["family"] == family and 0.04 <= r["share"] <= 0.5 * BYTES]
        if not mine:
            raise Missing(f"frontier.json has no row of {family} within the budgets")
        return float(sum(dominated_by(row, rows) is not None for row in mine))

    return figure


# ---- the picture

_MARKERS = {"torch": "s", "ours": "o", "fit": "*"}
_SLOWEST = 1.5  # the end of the colours


def draw(rows: list[Row], file: str) -> None:
    """Bytes against error, a panel for each model; exact gradients stand on the line below."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    with _command.picture(file, 1, len(names), figsize=(8 * len(names), 7)) as (figure, axes):
        for axis, name in zip(axes[0], names, strict=True):
            mine = [row for row in rows if row["model"] == name]
            errors = [row["error"] for row in mine if row["error"] >= EXACT_ERROR] or [1.0]
            floor = 10 ** (math.floor(math.log10(min(errors))) - 0.5)
            axis.axhline(floor, color="grey", linewidth=0.8)
            for family, marker in _MARKERS.items():
                some = [row for row in mine if row["family"] == family]
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
                    marker=marker,
                    s=110 if family == "fit" else 45,
                    edgecolors="black",
                    linewidths=[1.2 if dominated_by(row, rows) is None else 0.3 for row in some],
                    label=family,
                    zorder=3,
                )
                for row, y in zip(some, places, strict=True):
                    axis.annotate(
                        row["method"],
                        (100 * row["share"], y),
                        xytext=(4, 4),
                        textcoords="offset points",
                        fontsize=6.5,
                        rotation=60 if y == floor else 15,
                    )
            axis.set(title=name, xscale="log", yscale="log", ylim=(floor / 1.5, None))
            axis.set(xlabel="% of the exact bytes kept for backward", ylabel="")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.grid(alpha=0.25, which="both")
            axis.legend(fontsize=8, loc="upper right", title="wide edge: on the frontier")
        axes[0][0].set(ylabel="relative L2 error of the gradient (the line below: exact)")
        figure.colorbar(dots, ax=axes[0][-1], label="time of a step, exact = 1")
