"""Functions that are constant between borders, and the best ones for a derivative.

FewBit's `approximate` searches from a random start, and may not converge. Here the optimum is
computed (`activations.Table.fit`), so there are no iterations, tolerances or seeds to set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_cgx.activations.tables import objective
from torch_cgx.activations.tables.objective import Function, OfTensor
from torch_cgx.activations.tables.table import Table
from torch_cgx.compat.fewbit.store import both_sides

Array = npt.NDArray[np.float64]


def stepwise(x: npt.ArrayLike, borders: npt.ArrayLike, levels: npt.ArrayLike) -> Array:
    """The level of each value, float64, in x's shape: levels[i] for i inner borders below x. At a
    border it is the lower one's. The first and the last border, the ends of the domain, change
    nothing. ValueError: borders that are not one more than levels, or do not rise.
    """
    edges, heights = _checked(borders, levels)
    found: Array = heights[np.searchsorted(edges[1:-1], np.asarray(x, np.float64), side="left")]
    return found


def _checked(borders: npt.ArrayLike, levels: npt.ArrayLike) -> tuple[Array, Array]:
    edges, heights = np.asarray(borders, np.float64), np.asarray(levels, np.float64)
    if edges.ndim != 1 or heights.ndim != 1 or len(edges) != len(heights) + 1 or not len(heights):
        raise ValueError(
            f"borders have the shape {edges.shape}, levels {heights.shape}; allowed: one "
            "dimension, one border more than levels, at least one level"
        )
    wrong = np.flatnonzero(~(np.diff(edges) > 0))
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"borders[{i + 1}]={edges[i + 1]} after {edges[i]}; allowed: strictly rising numbers"
        )
    return edges, heights


class StepWiseFunction:
    """`stepwise` with fixed borders and levels (float64 arrays); called with values."""

    def __init__(self, borders: npt.ArrayLike, levels: npt.ArrayLike) -> None:
        self.borders, self.levels = _checked(borders, levels)

    def __call__(self, x: npt.ArrayLike) -> Array:
        return stepwise(x, self.borders, self.levels)

    def __repr__(self) -> str:
        return f"StepWiseFunction(borders={self.borders.tolist()}, levels={self.levels.tolist()})"


def approximate(
    function: Function,
    steps: int = 8,
    domain: Sequence[float] = (-100.0, 100.0),
    parity: bool = False,
    *,
    derivative: OfTensor | None = None,
) -> StepWiseFunction:
    """The step function q with the least integral of (f'(x) - q(x))^2 over the domain.

    function: f, a name ("gelu", ...) or a callable on float64 tensors that autograd differentiates.
    steps: levels, 2, 4, 8 or 16. domain: its two ends. parity: f' is even; the domain begins at 0,
    and the result is for |x|. derivative: f', where autograd cannot have it. ValueError.
    """
    if steps not in (2, 4, 8, 16):
        raise ValueError(f"steps={steps!r}; allowed: 2, 4, 8, 16")
    low, high = domain
    if parity and low != 0:
        raise ValueError(f"domain={(low, high)!r}; allowed with parity=True: (0, ...)")
    table = Table.fit(
        function,
        steps.bit_length() - 1,
        domain=(-high, high) if parity else (low, high),
        parity=parity,
        derivative=derivative,
    )
    return StepWiseFunction([low, *table.borders, high], table.levels)


def estimate_error(
    function: Function,
    approximation: StepWiseFunction | Table,
    domain: Sequence[float] = (-100.0, 100.0),
    *,
    derivative: OfTensor | None = None,
) -> float:
    """The integral of (f'(x) - q(x))^2 over the domain; arguments as of `approximate`."""
    if isinstance(approximation, Table):
        approximation = StepWiseFunction(*both_sides(approximation))
    made: Any = objective.make(function, "uniform", domain, derivative=derivative)
    return float(made.error(approximation, approximation.borders[1:-1]))


__all__ = ["StepWiseFunction", "approximate", "estimate_error", "stepwise"]
