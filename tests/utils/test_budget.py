"""within_budget(): items of any kind against brute force; what it promises; bad arguments."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from torch_cgx._policy.budget import within_budget


def total(rows, picked):
    return math.fsum(row[i] for row, i in zip(rows, picked, strict=True))


def problem(draw, convex):
    """Costs and errors of a few items, which have different numbers of candidates."""
    costs, errors = [], []
    for _ in range(draw.randrange(1, 6)):
        count = draw.randrange(1, 5)
        if convex:
            steps = sorted((draw.randrange(1, 40) for _ in range(count)), reverse=True)
            costs.append([3 * i for i in range(count)])  # equally far apart
            errors.append([sum(steps[i:]) for i in range(count)])
        else:
            costs.append([draw.randrange(12) for _ in range(count)])
            errors.append([draw.randrange(40) for _ in range(count)])
    return costs, errors


def best(costs, errors, budget):
    every = itertools.product(*(range(len(row)) for row in costs))
    return min(total(errors, one) for one in every if total(costs, one) <= budget)


def budgets(costs):
    least = sum(map(min, costs))
    return range(least, sum(map(max, costs)) + 2)


def largest_step(errors):
    """No step on a hull is larger than its item's range of errors."""
    return max(max(row) - min(row) for row in errors)


@pytest.mark.parametrize("convex", [True, False])
def test_the_sum_is_within_a_step_of_the_least(convex):
    draw, exact, tried = random.Random(1), 0, 0
    for _ in range(120):
        costs, errors = problem(draw, convex)
        for budget in budgets(costs):
            picked = within_budget(costs, errors, budget)
            assert total(costs, picked) <= budget
            least = best(costs, errors, budget)
            assert least <= total(errors, picked) <= least + largest_step(errors)
            exact += total(errors, picked) == least
            tried += 1
    assert exact > 0.85 * tried


def test_a_larger_budget_is_never_worse_on_the_hull():
    draw = random.Random(2)
    for _ in range(120):
        costs, errors = problem(draw, convex=True)
        sums = [total(errors, within_budget(costs, errors, one)) for one in budgets(costs)]
        assert sums == sorted(sums, reverse=True), (costs, errors)
        assert sums[-1] == sum(map(min, errors))


def test_never_worse_than_the_same_candidate_for_all():
    draw = random.Random(3)
    for _ in range(200):
        count = draw.randrange(1, 5)
        costs = [[draw.randrange(12) for _ in range(count)] for _ in range(4)]
        errors = [[draw.random() for _ in range(count)] for _ in range(4)]
        for same in range(count):
            uniform = [same] * 4
            picked = within_budget(costs, errors, total(costs, uniform))
            assert total(errors, picked) <= total(errors, uniform)


def test_the_order_of_items_decides_ties_alone():
    assert within_budget([[1, 2]] * 3, [[4.0, 1.0]] * 3, 4) == [1, 0, 0]
    # Two candidates that are alike: the first.
    assert within_budget([[1, 1]], [[2.0, 2.0]], 1) == [0]
    draw = random.Random(4)
    for _ in range(50):
        costs = [[draw.random() for _ in range(3)] for _ in range(5)]
        errors = [[draw.random() for _ in range(3)] for _ in range(5)]
        budget = math.fsum(map(min, costs)) + draw.random()
        picked = within_budget(costs, errors, budget)
        assert within_budget(costs[::-1], errors[::-1], budget) == picked[::-1]


def test_costs_and_errors_are_exchangeable():
    costs, errors = [[1, 2, 4], [2, 3, 9]], [[16.0, 4.0, 1.0], [8.0, 6.0, 0.0]]
    assert within_budget(costs, errors, 7) == [2, 1]
    assert within_budget(errors, costs, 7.0) == [2, 1]


def test_no_items():
    assert within_budget([], [], 0) == []


@pytest.mark.parametrize(
    "costs, errors, budget, words",
    [
        ([[1, 2]], [[1.0]], 9, "item 0 has 2 costs and 1 errors"),
        ([[1], []], [[1.0], []], 9, "item 1 has 0 costs and 0 errors; .* at least one"),
        ([[1]], [[1.0], [2.0]], 9, "costs of 1 items and errors of 2"),
        ([[1]], [[math.nan]], 9, "item 0 has the error nan"),
        ([[math.inf]], [[1.0]], 9, "item 0 has the cost inf"),
        ([[3, 4], [5]], [[2.0, 1.0], [1.0]], 7, "7 joules; allowed: at least 8"),
    ],
)
def test_bad_arguments_are_named(costs, errors, budget, words):
    with pytest.raises(ValueError, match=words):
        within_budget(costs, errors, budget, "joules")
