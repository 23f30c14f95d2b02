"""What is tried after a plan that took too long."""

from __future__ import annotations

import pytest

from torch_cgx.activations.budget.options import Option
from torch_cgx.activations.budget.solve import Choice
from torch_cgx.activations.budget.tighten import Tried, tightened

LIMIT, REST = 1.1, 1.0


class Plans:
    """Any time is possible; the less, the larger the error. A step takes `slower` times as much
    longer as is predicted."""

    def __init__(self, slower: float, least: float = -1.0) -> None:
        self._slower, self._least = slower, least
        self.allowed: list[float] = []

    def again(self, allowed: float) -> Tried | None:
        self.allowed.append(allowed)
        return self.at(allowed) if allowed >= self._least else None

    def at(self, time: float) -> Tried:
        option = Option((f"{time}",), "", {}, 0, 0.0, time)
        return Tried(Choice((option,), 0, 1 - time, time), 0, REST + self._slower * time)

    def found(self) -> Tried:
        return tightened(self.at(LIMIT - REST), LIMIT, LIMIT - REST, self.again)


@pytest.mark.parametrize("slower", [0.5, 1.0])
def test_what_keeps_the_limit_is_taken(slower: float) -> None:
    plans = Plans(slower)
    assert plans.found().took <= LIMIT and plans.allowed == []


@pytest.mark.parametrize("slower", [1.01, 1.3, 2.0, 5.0])
def test_time_falls_in_proportion(slower: float) -> None:
    plans = Plans(slower * (1 + 1e-12))
    assert LIMIT - 0.01 <= plans.found().took <= LIMIT
    assert len(plans.allowed) <= 2


def test_what_is_far_below_the_limit_is_loosened() -> None:
    class Steep(Plans):
        def at(self, time: float) -> Tried:
            tried = super().at(time)
            return Tried(tried.choice, 0, 1.15 if time > 0.08 else REST + time / 2)

    plans = Steep(1.0)
    found = plans.found()
    assert found.took <= LIMIT and len(plans.allowed) == 4
    below = [one for one in plans.allowed if one <= 0.08]
    assert found.choice.time == max(below) > min(below)


def test_the_fastest_where_none_keeps_the_limit() -> None:
    class Same(Plans):
        def at(self, time: float) -> Tried:
            return Tried(super().at(time).choice, 0, 1.2 + time)

    plans = Same(1.0)
    found = plans.found()
    assert found.choice.time == min(plans.allowed) and len(plans.allowed) == 4


def test_a_budget_that_needs_the_time() -> None:
    plans = Plans(2.0, least=0.06)
    assert plans.found().choice.time == LIMIT - REST and len(plans.allowed) == 1
