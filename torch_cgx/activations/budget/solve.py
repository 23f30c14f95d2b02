"""Which option each item and each block takes: fewest errors within bytes and time.

Without blocks it is one knapsack. A block is either the sum of its items, or computed again: what
its items can do within different budgets is solved first, and these are options of the block. Time
is priced: the price of a second, in error, that just keeps the limit is found by bisection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch_cgx._policy.budget import within_budget
from torch_cgx.activations.budget.options import Option, Rows

_INNER = 16  # budgets of a block's items
_PRICES = 18  # bisections
_LOWEST, _HIGHEST = 1e-12, 1e12


@dataclasses.dataclass(frozen=True)
class Choice:
    """An option of each item that is not computed again, and of each block that is. error:
    squared."""

    options: tuple[Option, ...]
    nbytes: float
    error: float
    time: float


_Value = Callable[[Choice], float]


def _sum(options: Sequence[Option]) -> Choice:
    return Choice(
        tuple(options),
        sum(one.nbytes for one in options),
        sum(one.error for one in options),
        sum(one.time for one in options),
    )


def _bytes(choice: Choice) -> float:
    return choice.nbytes


def _time(choice: Choice) -> float:
    return choice.time


class Frontier:
    """What can be reached with the options."""

    def __init__(self, rows: Rows) -> None:
        self._fixed = rows.fixed
        self._ways = [_Way.of(rows, all_again=False)]
        if rows.blocks and rows.crossing:
            self._ways.append(_Way.of(rows, all_again=True))

    def best(self, nbytes: float, time: float | None) -> Choice | None:
        """The least error within bytes and time. None: there is nothing, or it was not found."""
        found = [one for way in self._ways if (one := self._best(way, nbytes, time)) is not None]
        least = self.least(time)
        if not found and least is not None and least.nbytes <= nbytes:
            found = [least]
        return min(found, key=lambda one: one.error, default=None)

    def least(self, time: float | None) -> Choice | None:
        """The fewest bytes within the time. None: no choice takes so little time."""
        if time is None:
            found = [way.solve(_bytes, _time, float(way.least_bytes)) for way in self._ways]
        else:
            found = [way.solve(_time, _bytes, time) for way in self._ways]
        known = [self._with_fixed(one) for one in found if one is not None]
        return min(known, key=_bytes, default=None)

    def _best(self, way: _Way, nbytes: float, time: float | None) -> Choice | None:
        def at(price: float) -> Choice | None:
            found = way.solve(
                _bytes, lambda one: one.error + price * one.time, nbytes - self._fixed
            )
            return None if found is None else self._with_fixed(found)

        free = at(0.0)
        if free is None or time is None or free.time <= time:
            return free
        low, high, found = _LOWEST, _HIGHEST, at(_HIGHEST)
        if found is None or found.time > time:
            return None
        for _ in range(_PRICES):
            middle = (low * high) ** 0.5
            one = at(middle)
            if one is None or one.time > time:
                low = middle
            else:
                high = middle
                if one.error <= found.error:
                    found = one
        return found

    def _with_fixed(self, one: Choice) -> Choice:
        return dataclasses.replace(one, nbytes=one.nbytes + self._fixed)


@dataclasses.dataclass
class _Way:
    """loose: options of items outside of blocks. inner: of those inside of each; None: all blocks
    are computed again. again: of the blocks."""

    loose: list[list[Choice]]
    inner: list[list[list[Choice]]] | None
    again: list[list[Choice]]

    @classmethod
    def of(cls, rows: Rows, all_again: bool) -> _Way:
        of = [[_sum([option]) for option in one] for one in rows.items]
        within = {n for one in rows.inner for n in one}
        gone = set(rows.crossing) if all_again else set()
        return cls(
            [one for n, one in enumerate(of) if n not in within | gone],
            None if all_again else [[of[n] for n in one] for one in rows.inner],
            [[_sum([option]) for option in one] for one in rows.blocks],
        )

    @property
    def least_bytes(self) -> float:
        def least(rows: list[list[Choice]]) -> float:
            return sum(min(one.nbytes for one in row) for row in rows)

        blocks = [min(one.nbytes for one in row) for row in self.again]
        if self.inner is not None:
            blocks = [min(a, least(b)) for a, b in zip(blocks, self.inner, strict=True)]
        return least(self.loose) + sum(blocks) + 0.5  # sums in another order round otherwise

    def solve(self, cost: _Value, value: _Value, budget: float) -> Choice | None:
        """The least value within a budget of cost."""
        if self.inner is None:
            return _solved([*self.loose, *self.again], cost, value, budget)
        pairs = list(zip(self.inner, self.again, strict=True))
        blocks = [[*_inside(items, cost, value), *again] for items, again in pairs]
        first = _solved([*self.loose, *blocks], cost, value, budget)
        if first is None:
            return None
        # Again, with all items at once, and the blocks computed again that were so.
        rows, chosen = list(self.loose), set(first.options)
        for items, again in pairs:
            is_again = any(option in chosen for one in again for option in one.options)
            rows += [again] if is_again else items
        second = _solved(rows, cost, value, budget)
        return first if second is None or value(first) <= value(second) else second


def _inside(items: list[list[Choice]], cost: _Value, value: _Value) -> list[Choice]:
    low = sum(min(map(cost, row)) for row in items)
    high = sum(max(map(cost, row)) for row in items)
    found: list[Choice] = []
    for n in range(_INNER):
        budget = low + (high - low) * (n / (_INNER - 1)) ** 2
        one = _solved(items, cost, value, budget + 1e-9 * (abs(budget) + 1e-9))
        if one is not None and one not in found:
            found.append(one)
    return found


def _solved(rows: list[list[Choice]], cost: _Value, value: _Value, budget: float) -> Choice | None:
    try:
        picked = within_budget(
            [[cost(one) for one in row] for row in rows],
            [[value(one) for one in row] for row in rows],
            budget,
        )
    except ValueError:  # the budget is below the least cost
        return None
    return _sum([o for row, n in zip(rows, picked, strict=True) for o in row[n].options])
