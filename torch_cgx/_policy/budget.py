"""Which candidate each item takes under a budget: layers and bits, tensors and formats, or anything
else that has a cost and an error.

The problem is a multiple-choice knapsack: each item takes one of its candidates; the sum of their
errors is minimised while the sum of their costs stays within the budget. On the lower convex hull
of each item's (cost, error) points the greedy order of steepest descent is optimal up to the one
step that the budget cuts (Sinha and Zoltners, Operations Research 27, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def within_budget(
    costs: Sequence[Sequence[float]],
    errors: Sequence[Sequence[float]],
    budget: float,
    unit: str = "of cost",
) -> list[int]:
    """The number of the candidate that each item takes.

    costs, errors: finite, of each item with each of its candidates; items may have different
    numbers of candidates. unit: of costs and the budget, for errors. The two are exchangeable: with
    errors in the place of costs, the costs are minimised within a budget of error.

    The sum of errors is above the least possible one by no more than the largest step on the hull
    of an item, and it is never above the sum with the same candidate for all items, where all have
    it and the budget allows it. A larger budget never makes it larger if all candidates are on the
    hulls of their items (as with bits, each of which divides the error by about four); others are
    used only to fill what the hulls leave. Neither does the answer depend on anything else: equal
    arguments give equal answers on every machine, and ties go to the item and the candidate that
    come first.

    ValueError: an item without candidates or with different numbers of costs and errors, a number
    that is not finite, or a budget that no answer meets: the text says what the least is.
    """
    _check(costs, errors)
    hulls = [_hull(row, errors[n]) for n, row in enumerate(costs)]
    picked = [hull[0] for hull in hulls]

    spent = _total(costs, picked)
    if spent > budget:
        raise ValueError(f"{budget:g} {unit}; allowed: at least {spent:g}")
    steps = [
        ((errors[n][a] - errors[n][b]) / (costs[n][b] - costs[n][a]), n, a, b)
        for n, hull in enumerate(hulls)
        for a, b in zip(hull, hull[1:], strict=False)
    ]
    for _, n, a, b in sorted(steps, key=lambda step: -step[0]):  # stable: items in their order
        if picked[n] == a and spent + costs[n][b] - costs[n][a] <= budget:
            picked[n] = b
            spent = _total(costs, picked)
    _fill(costs, errors, picked, budget)
    for candidate in range(min(map(len, errors), default=0)):
        uniform = [candidate] * len(errors)
        if _total(costs, uniform) <= budget and _total(errors, uniform) < _total(errors, picked):
            picked = uniform
    return picked


def _check(costs: Sequence[Sequence[float]], errors: Sequence[Sequence[float]]) -> None:
    if len(costs) != len(errors):
        raise ValueError(f"costs of {len(costs)} items and errors of {len(errors)}")
    for n, (row, other) in enumerate(zip(costs, errors, strict=True)):
        if not row or len(row) != len(other):
            raise ValueError(
                f"item {n} has {len(row)} costs and {len(other)} errors; allowed: equally many, at "
                "least one"
            )
        for name, values in (("cost", row), ("error", other)):
            for value in values:
                if not math.isfinite(value):
                    raise ValueError(f"item {n} has the {name} {value}; allowed: finite numbers")


def _fill(
    costs: Sequence[Sequence[float]],
    errors: Sequence[Sequence[float]],
    picked: list[int],
    budget: float,
) -> None:
    """Spends what the greedy order has left, on candidates off the hull too: each time the change
    of one layer that errors most.
    """
    while True:
        left = budget - _total(costs, picked)
        best, change = 0.0, None
        for n, now in enumerate(picked):
            for i in range(len(errors[n])):
                gain = errors[n][now] - errors[n][i]
                if gain > best and costs[n][i] - costs[n][now] <= left:
                    best, change = gain, (n, i)
        if change is None:
            return
        picked[change[0]] = change[1]


def _total(values: Sequence[Sequence[float]], picked: Sequence[int]) -> float:
    """Exactly rounded, so that the order of the items does not matter."""
    return math.fsum(row[i] for row, i in zip(values, picked, strict=True))


def _hull(costs: Sequence[float], errors: Sequence[float]) -> list[int]:
    """Candidates on the lower convex hull, by ascending cost and descending error."""
    hull: list[int] = []
    for new in sorted(range(len(costs)), key=lambda i: (costs[i], errors[i])):
        if hull and errors[new] >= errors[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            first = (errors[a] - errors[b]) * (costs[new] - costs[b])
            second = (errors[b] - errors[new]) * (costs[b] - costs[a])
            if first > second:
                break
            hull.pop()
        hull.append(new)
    return hull
