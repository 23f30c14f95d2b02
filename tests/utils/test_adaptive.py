"""AdaptiveBits and choose(): against brute force and dynamic programming; bad arguments."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from cgx_utils.adaptive import AdaptiveBits, choose


def _layers(generator, layers, candidates, convex=True):
    """Bytes and squared errors as codecs have them: an error falls by 4 with each bit, or, not
    convex, anyhow.
    """
    numel = generator.integers(8, 200, layers) * 64
    bits = np.sort(generator.choice(np.arange(1, 9), candidates, replace=False))
    sizes = [[int(n * b // 8 + n // 64 * 8) for b in bits] for n in numel]
    scale = numel * np.exp(generator.normal(0, 2, layers))
    errors = scale[:, None] * 4.0 ** -bits[None, :]
    if not convex:
        errors = np.sort(scale[:, None] * generator.random((layers, candidates)))[:, ::-1]
    return errors.tolist(), sizes


def _sum(rows, picked):
    return sum(row[i] for row, i in zip(rows, picked, strict=True))


def _best(gains, costs, limit):
    """By brute force: the least sum of gains within the limit; None if there is none."""
    choices = itertools.product(*(range(len(row)) for row in gains))
    found = [_sum(gains, c) for c in choices if _sum(costs, c) <= limit]
    return min(found, default=None)


def _dynamic(errors, sizes, budget):
    """The least error within `budget` bytes, by dynamic programming over every byte."""
    best = np.full(budget + 1, np.inf)
    best[0] = 0.0
    for row, cost in zip(errors, sizes, strict=True):
        new = np.full(budget + 1, np.inf)
        for error, size in zip(row, cost, strict=True):
            if size <= budget:
                new[size:] = np.minimum(new[size:], best[: budget + 1 - size] + error)
        best = new
    return float(best.min())


def _largest_step(gains):
    return max(max(row) - min(row) for row in gains)


@pytest.mark.parametrize("convex", [True, False], ids=["codecs", "anyhow"])
@pytest.mark.parametrize("seed", range(20))
def test_against_brute_force(seed, convex):
    generator = np.random.default_rng(seed)
    layers, candidates = int(generator.integers(1, 6)), int(generator.integers(2, 6))
    errors, sizes = _layers(generator, layers, candidates, convex)
    least, most = _sum(sizes, [0] * layers), _sum(sizes, [candidates - 1] * layers)
    exact = 0
    budgets = np.linspace(least, most, 9).astype(int).tolist()
    for budget in budgets:
        picked = choose(errors, sizes, most_bytes=budget)
        assert _sum(sizes, picked) <= budget
        best = _best(errors, sizes, budget)
        found = _sum(errors, picked)
        assert best * (1 - 1e-12) <= found <= best + _largest_step(errors)
        exact += found <= best * (1 + 1e-12)
        # The dual problem, with the error found as the limit: at most as many bytes.
        limit = _sum(errors, picked) * (1 + 1e-9)
        dual = choose(errors, sizes, most_error=limit)
        assert _sum(errors, dual) <= limit
        assert _best(sizes, errors, limit) <= _sum(sizes, dual)
        assert _sum(sizes, dual) <= _best(sizes, errors, limit) + _largest_step(sizes)
    assert exact >= 2  # all of the smallest, all of the largest


def test_against_dynamic_programming():
    """As many layers as a model has: the gap to the optimum is small."""
    gaps = []
    for seed in range(6):
        errors, sizes = _layers(np.random.default_rng(seed), 40, 6)
        for candidate in (1, 2, 3):
            budget = _sum(sizes, [candidate] * 40)
            found = _sum(errors, choose(errors, sizes, most_bytes=budget))
            best = _dynamic(errors, sizes, budget)
            assert found >= best * (1 - 1e-9)
            gaps.append(found / best - 1)
    assert np.mean(gaps) < 0.01 and max(gaps) < 0.03, gaps


@pytest.mark.parametrize("seed", range(10))
def test_never_worse_than_one_candidate_for_all(seed):
    generator = np.random.default_rng(seed)
    errors, sizes = _layers(generator, int(generator.integers(1, 8)), 5, convex=False)
    for candidate in range(5):
        uniform = [candidate] * len(errors)
        picked = choose(errors, sizes, most_bytes=_sum(sizes, uniform))
        assert _sum(errors, picked) <= _sum(errors, uniform)
        picked = choose(errors, sizes, most_error=_sum(errors, uniform))
        assert _sum(sizes, picked) <= _sum(sizes, uniform)


def test_a_candidate_off_the_hull_is_taken_where_the_budget_ends():
    # The hull of the only layer has its ends alone; 2 bits are within the budget.
    assert choose([[9.0, 8.0, 0.0]], [[1, 2, 3]], most_bytes=2) == [1]


def test_a_candidate_with_more_bytes_and_more_error_is_never_taken():
    assert choose([[4.0, 5.0, 1.0], [1.0, 1.0, 1.0]], [[1, 2, 3]] * 2, most_bytes=6) == [2, 0]


def test_ties_go_to_the_first_layer():
    assert choose([[4.0, 1.0]] * 3, [[1, 2]] * 3, most_bytes=4) == [1, 0, 0]


def test_no_layers():
    assert choose([], [], most_bytes=0) == [] == choose([], [], most_error=0.0)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"most_bytes": 3}, "3 bytes; allowed: at least 4"),
        ({"most_error": 0.5}, "0.5 squared error; allowed: at least 1.5"),
        ({}, "allowed: one of them"),
        ({"most_bytes": 4, "most_error": 1.0}, "allowed: one of them"),
    ],
)
def test_a_limit_that_no_choice_meets(limit, message):
    with pytest.raises(ValueError, match=message):
        choose([[4.0, 1.0], [2.0, 0.5]], [[1, 2], [3, 4]], **limit)


# ---- the parameters


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, ["average_bits=None", "error_budget=None", "one of them"]),
        ({"average_bits": 3, "error_budget": 0.1}, ValueError, ["average_bits=3", "one of them"]),
        ({"average_bits": 0.5}, ValueError, ["average_bits=0.5", "from 1,", "to 8"]),
        ({"average_bits": 9}, ValueError, ["average_bits=9", "to 8, the largest"]),
        ({"average_bits": 1, "candidates": (2, 4)}, ValueError, ["average_bits=1", "from 2,"]),
        ({"average_bits": float("nan")}, ValueError, ["average_bits=nan"]),
        ({"average_bits": "3"}, TypeError, ["average_bits='3'"]),
        ({"average_bits": True}, TypeError, ["average_bits=True"]),
        ({"error_budget": 0.0}, ValueError, ["error_budget=0.0", "above 0 and below 1"]),
        ({"error_budget": 1}, ValueError, ["error_budget=1;"]),
        ({"error_budget": float("inf")}, ValueError, ["error_budget=inf"]),
        ({"error_budget": "a"}, TypeError, ["error_budget='a'"]),
        ({"average_bits": 3, "every": 0}, ValueError, ["every=0", "integers >= 1"]),
        ({"average_bits": 3, "every": 1.5}, TypeError, ["every=1.5"]),
        ({"average_bits": 3, "every": True}, TypeError, ["every=True"]),
        ({"average_bits": 3, "candidates": (3,)}, ValueError, ["candidates=(3,)", "two"]),
        ({"average_bits": 3, "candidates": (3, 3)}, ValueError, ["candidates=(3, 3)", "different"]),
        ({"average_bits": 3, "candidates": (0, 3)}, ValueError, ["has 0", "1 to 8 and 16"]),
        ({"average_bits": 3, "candidates": (3, 9)}, ValueError, ["has 9"]),
        ({"average_bits": 3, "candidates": (3, 32)}, ValueError, ["has 32"]),
        ({"average_bits": 3, "candidates": (2, 4.0)}, TypeError, ["has 4.0"]),
        ({"average_bits": 3, "candidates": (True, 4)}, TypeError, ["has True"]),
        ({"average_bits": 3, "candidates": 4}, TypeError, ["candidates=4"]),
        ({"average_bits": 3, "candidates": "34"}, TypeError, ["candidates='34'"]),
    ],
)
def test_bad_parameters_are_named(options, error, words):
    with pytest.raises(error) as caught:
        AdaptiveBits(**options)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))


def test_parameters_are_kept_in_order_and_cannot_change():
    bits = AdaptiveBits(2.5, [8, 2, 16, 3])
    assert bits.candidates == (2, 3, 8, 16) and bits.every == 100
    assert bits == AdaptiveBits(average_bits=2.5, candidates=(2, 3, 8, 16))
    with pytest.raises(AttributeError):
        bits.every = 3


@pytest.mark.parametrize(
    ("bits", "start"),
    [
        (AdaptiveBits(3), 3),
        (AdaptiveBits(5.9), 4),
        (AdaptiveBits(1), 1),
        (AdaptiveBits(8), 8),
        (AdaptiveBits(error_budget=0.1), 8),
    ],
)
def test_before_a_decision_the_largest_candidate_in_the_budget(bits, start):
    assert bits.start_bits == start


@pytest.mark.parametrize("average", [2, 2.5, 3, 3.1, 4, 7.999, 8])
def test_the_budget_is_between_the_bytes_of_the_neighbouring_candidates(average):
    bits = AdaptiveBits(average, (2, 4, 8))
    sizes = [[20, 41, 82], [7, 11, 30]]
    total = {2: 27, 4: 52, 8: 112}
    low = max(b for b in total if b <= average)
    high = min(b for b in total if b >= average)
    share = Fraction(average - low) / (high - low) if high > low else Fraction(0)
    exact = total[low] + (total[high] - total[low]) * share
    assert exact - 1 < bits.budget_bytes(sizes) <= exact
