"""The choice of options, against all choices."""

from __future__ import annotations

import itertools
import random

import pytest

from torch_cgx.activations.budget.options import Option, Rows, scaled, useful
from torch_cgx.activations.budget.solve import Frontier


def _option(name: str, nbytes: float, error: float, time: float) -> Option:
    return Option((name,), f"{nbytes}", {}, nbytes, error, time)  # type: ignore[arg-type]


def _rows(seed: int) -> Rows:
    """Two blocks of two items, and one item outside: each from 100 bytes without error down."""
    draw = random.Random(seed)

    def item(name: str) -> list[Option]:
        weight = draw.uniform(0.1, 10)
        found = [_option(name, 100, 0, 0)]
        for size in (25, 12.5, 6.25):
            slow = draw.uniform(0, 0.05)
            found.append(_option(name, size, weight * 4 ** (-size / 3.125), slow))
        return found

    items = [item(f"item{n}") for n in range(5)]
    again = [
        [_option(f"block{n}", 20, 0, 0.2), _option(f"block{n}", 5, 1e-4, 0.21)] for n in (0, 1)
    ]
    return Rows(items, again, [[0, 1], [2, 3]], [], 7)


def _all(rows: Rows) -> list[tuple[float, float, float]]:
    """Bytes, error and time of all choices."""
    blocks = [
        [*itertools.product(*(rows.items[n] for n in inner)), *((one,) for one in again)]
        for inner, again in zip(rows.inner, rows.blocks, strict=True)
    ]
    outside = [(one,) for one in rows.items[4]]
    found = []
    for choice in itertools.product(*blocks, outside):
        options = [option for part in choice for option in part]
        found.append(
            (
                rows.fixed + sum(o.nbytes for o in options),
                sum(o.error for o in options),
                sum(o.time for o in options),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_choices_are_near_the_best_of_all(seed: int) -> None:
    rows = _rows(seed)
    choices, frontier = _all(rows), Frontier(rows)
    for budget in (400, 250, 150, 100, 60):
        for limit in (None, 0.5, 0.25, 0.1):
            able = [c for c in choices if c[0] <= budget and (limit is None or c[2] <= limit)]
            found = frontier.best(budget, limit)
            if not able:
                assert found is None
                continue
            if found is None:  # the hull may miss what is tight in both
                assert len(able) < 0.02 * len(choices)
                continue
            assert found.nbytes <= budget and (limit is None or found.time <= limit)
            # The item that the budget cuts may have the next coding.
            assert found.error <= 16 * min(c[1] for c in able) + 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_least_bytes(seed: int) -> None:
    rows = _rows(seed)
    choices, frontier = _all(rows), Frontier(rows)
    least = frontier.least(None)
    assert least is not None and least.nbytes == min(c[0] for c in choices)
    within = frontier.least(0.25)
    assert within is not None and within.time <= 0.25
    assert within.nbytes <= 1.3 * min(c[0] for c in choices if c[2] <= 0.25)
    assert frontier.least(-1.0) is None


def test_items_of_several_blocks_vanish_with_all_of_them() -> None:
    rows = _rows(0)
    alone = Frontier(rows).least(None)
    assert alone is not None
    gone = Frontier(Rows(rows.items, rows.blocks, rows.inner, [4], rows.fixed)).least(None)
    assert gone is not None and gone.nbytes == rows.fixed + 5 + 5 < alone.nbytes


def test_options_that_others_beat_are_left_out() -> None:
    a, b = _option("x", 10, 1, 0), _option("x", 10, 1, 0)
    slow, better, exact = _option("x", 10, 1, 1), _option("x", 10, 0.5, 1), _option("x", 20, 0, 0)
    assert useful([a, b, slow, better, exact]) == [better, a, exact]


def test_errors_of_other_codings() -> None:
    noise = {"8": 1e-4, "4": 1e-2, "3": 0.04, "2": 0.5, "masks": 0.0}
    known = {"4": 3e-3, "2": 0.4}
    assert scaled("8", noise, known) == pytest.approx(3e-5)
    assert scaled("3", noise, known) == pytest.approx(1.2e-2)  # nearer to 4 than to 2
    assert scaled("4", noise, known) == 3e-3 and scaled("2", noise, known) == 0.4
    assert scaled("masks", noise, known) == 0 == scaled("none", noise, known)
