"""Which rows of benchmarks/frontier.py are on the frontier of bytes, time and error, and which are
best within a budget.

A row dominates another of the same model if it is at least as good in bytes, time and error, up to
the tolerances below, and better by more than its tolerance in one of them. Errors are compared by
their ratio; below EXACT_ERROR, which only the order of float32 sums makes, all count as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.report.results import Missing, Results

Row = dict[str, Any]
# Tolerances, as ratios.
TIME, ERROR, BYTES = 1.02, 1.05, 1.005
EXACT_ERROR = 1e-5
BUDGETS = (0.5, 0.3, 0.2, 0.1, 0.05)
LIMIT = 1.1  # of the time of a step, by the exact one's


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


def is_compiled(row: Row) -> bool:
    """Whether torch.compile runs in the method."""
    return row["time_compiled"] is not None


def eager(rows: Iterable[Row]) -> list[Row]:
    """The rows that run without torch.compile, among which plans of activations.fit choose."""
    return [row for row in rows if not is_compiled(row)]


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
    shares of the exact peak. None: no row fits.
    """
    found = [
        row
        for row in rows
        if row["family"] in families
        and row[key] <= share * BYTES
        and (limit is None or row["time"] <= limit * TIME)
    ]
    return _first(found) if found else None


# ---- figures of targets


def fit_error(results: Results) -> float:
    """The greatest error of a plan over that of the best other eager row within the plan's budget
    and time, of both models and all budgets. Missing without a plan that another row competes with.
    """
    rows = results.rows("frontier")
    found = []
    for row in _plans(rows):
        mine = [one for one in eager(rows) if one["model"] == row["model"]]
        other = best(mine, row["budget"], row["limit"], ("torch", "ours"))
        if other is not None:
            found.append(level(row["error"]) / level(other["error"]))
    if not found:
        raise Missing("frontier.json has no plan that another row competes with")
    return float(max(found))


def fit_over(key: str, limit: str) -> Callable[[Results], float]:
    """The greatest of what plans have by what they may have: ("share", "budget") or ("time",
    "limit").
    """

    def figure(results: Results) -> float:
        plans = [row for row in _plans(results.rows("frontier")) if row[limit] is not None]
        if not plans:
            raise Missing(f"frontier.json has no plan with a {limit}")
        return float(max(row[key] / row[limit] for row in plans))

    return figure


def _plans(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["family"] == "fit"]


def off_frontier(family: str) -> Callable[[Results], float]:
    """How many rows of a family that keep 5 % to 50 % of the exact bytes are dominated by a row
    that runs without torch.compile, like themselves.
    """

    def figure(results: Results) -> float:
        rows = eager(results.rows("frontier"))
        least, most = BUDGETS[-1] / 1.2, BUDGETS[0] * BYTES
        mine = [r for r in rows if r["family"] == family and least <= r["share"] <= most]
        if not mine:
            raise Missing(f"frontier.json has no row of {family} within the budgets")
        return float(sum(dominated_by(row, rows) is not None for row in mine))

    return figure
