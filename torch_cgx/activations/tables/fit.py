"""The best borders and levels of a table: dynamic programming, then Newton's method.

Dynamic programming finds the best borders among about a thousand nodes, which are dense where f'
turns most, so no start value matters. At the optimum f'(b_i) = (y_(i-1) + y_i) / 2 for every border
b_i between the levels y_(i-1) and y_i, unless f' jumps there; Newton's method moves the borders
from the nodes to that point (Novikov et al., Few-Bit Backward, ICML 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torch_cgx.activations.tables.catalog import Array
from torch_cgx.activations.tables.objective import Function, Objective, OfTensor, Weight, make

_SAME = 1e-12  # of the integral of w f'^2: a smaller gain is worth no further level
_STEPS, _DAMPINGS = 50, 12


def fit(
    function: Function,
    bits: int,
    weight: Weight,
    domain: Sequence[float],
    parity: bool,
    derivative: OfTensor | None,
    points: int,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Borders and levels. See Table.fit for arguments and errors."""
    check_bits(bits)
    if isinstance(points, bool) or not isinstance(points, int) or not 64 <= points <= 2048:
        raise ValueError(f"points={points!r}; allowed: integers from 64 to 2048")
    objective = make(function, weight, domain, parity, derivative)
    nodes = _nodes(objective, points)
    borders = nodes[_partition(objective.cells(nodes), 2**bits)]
    borders = _rounded(_refined(objective, nodes, borders), nodes)
    mass, first, _, plain = objective.pieces(nodes, borders)
    width = np.diff(np.concatenate([nodes[:1], borders, nodes[-1:]]))
    levels = np.where(mass > 0, first / np.where(mass > 0, mass, 1.0), plain / width)
    return tuple(borders.tolist()), tuple(levels.tolist())


def check_bits(bits: int) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 4:
        raise ValueError(f"bits={bits!r}; allowed: integers from 1 to 4")


def _nodes(objective: Objective, points: int) -> Array:
    """The edges, and `points` more: half of them even, half as dense as the best borders of many
    levels, (w f''^2)^(1/3) (Panter and Dite, 1951).
    """
    edges = objective.edges
    width = np.diff(edges)
    mass, _, _, plain = objective.cells(edges)
    middle, mean = 0.5 * (edges[1:] + edges[:-1]), plain / width
    turn = np.interp(middle, 0.5 * (middle[1:] + middle[:-1]), np.diff(mean) / np.diff(middle))
    dense = np.cbrt(mass / width * turn**2) * width
    share = 0.5 * width / width.sum() + 0.5 * dense / (dense.sum() or 1.0)
    reached = np.concatenate([[0.0], np.cumsum(share)])
    more = np.interp(np.linspace(0.0, reached[-1], points), reached, edges)
    return np.union1d(edges, more)


def _partition(cells: Array, most: int) -> list[int]:
    """The inner nodes of the best partition into `most` intervals, or into fewer (at least two)
    that are as good. cost[j, i] is of the interval from node i to node j: O(most * n^2) in all.
    """
    mass, first, second = (np.concatenate([[0.0], np.cumsum(part)]) for part in cells[:3])
    size = mass.size
    total = mass[:, None] - mass
    cost = first[:, None] - first
    np.multiply(cost, cost, out=cost)
    np.divide(cost, total, out=cost, where=total > 0)
    np.subtract(second[:, None] - second, cost, out=cost)
    np.maximum(cost, 0.0, out=cost)
    cost[np.triu_indices(size)] = np.inf
    best = cost[:, 0].copy()
    ends, choices = [], []
    sums = np.empty_like(cost)
    for _ in range(most - 1):
        np.add(cost, best, out=sums)
        choices.append(sums.argmin(1))
        best = np.take_along_axis(sums, choices[-1][:, None], 1)[:, 0]
        ends.append(float(best[-1]))
    enough = ends[-1] + _SAME * float(second[-1])
    count = next(number for number, end in enumerate(ends, 1) if end <= enough)
    found, at = [], size - 1
    for choice in reversed(choices[:count]):
        at = int(choice[at])
        found.append(at)
    return found[::-1]


def _refined(objective: Objective, nodes: Array, borders: Array) -> Array:
    """The borders after Newton's method on f'(b_i) = (y_(i-1) + y_i) / 2. A step is taken only if
    the objective falls, or stays and the equation is nearer to hold.
    """
    span = float(nodes[-1] - nodes[0])
    value, gap, step = _newton(objective, nodes, borders, span)
    for _ in range(_STEPS):
        for scale in 0.5 ** np.arange(_DAMPINGS):
            moved = borders + scale * step
            if not (np.diff(moved, prepend=nodes[0], append=nodes[-1]) > 0).all():
                continue
            new_value, new_gap, new_step = _newton(objective, nodes, moved, span)
            slack = 1e-15 * abs(value)
            if new_value < value - slack or (new_value <= value + slack and new_gap < gap):
                break
        else:
            return borders
        borders, value, gap, step = moved, new_value, new_gap, new_step
    return borders


def _newton(
    objective: Objective, nodes: Array, borders: Array, span: float
) -> tuple[float, float, Array]:
    """The objective less the integral of w f'^2, the largest violation, and Newton's step."""
    mass, first, _, _ = objective.pieces(nodes, borders)
    kept = np.where(mass > 0, mass, 1.0)
    level = first / kept
    slope, density = objective.derivative, objective.density
    near, wide = 1e-12 * span, 1e-6 * span
    at, w = slope(borders), density(borders)
    middle = 0.5 * (level[1:] + level[:-1])
    # A jump of f' over the mean of the two levels: no better place is near.
    under, over = slope(borders - near), slope(borders + near)
    jumps = np.abs(over - under) > 1e-6 * (level.max() - level.min())
    fixed = jumps & ((under - middle) * (over - middle) <= 0)
    gap = np.where(fixed, 0.0, at - middle)
    left, right = np.maximum(borders - wide, nodes[0]), np.minimum(borders + wide, nodes[-1])
    bend = (slope(right) - slope(left)) / (right - left)
    by_left, by_right = w * (at - level[:-1]) / kept[:-1], w * (level[1:] - at) / kept[1:]
    jacobian = np.diag(bend - 0.5 * (by_left + by_right))
    jacobian -= 0.5 * (np.diag(by_left[1:], 1) + np.diag(by_right[:-1], -1))
    free = ~fixed
    step = np.zeros_like(borders)
    if free.any() and np.isfinite(jacobian).all():
        step[free] = np.linalg.lstsq(jacobian[np.ix_(free, free)], -gap[free], rcond=None)[0]
    return -float((first * level).sum()), float(np.abs(gap).max()), step


def _rounded(borders: Array, nodes: Array) -> Array:
    """To 1e-12 for a domain of length 20: 0 and jumps at short numbers become exact."""
    digits = 14 - math.ceil(math.log10(nodes[-1] - nodes[0]))
    rounded = np.unique(np.round(borders, digits) + 0.0)
    return rounded[(rounded > nodes[0]) & (rounded < nodes[-1])]
