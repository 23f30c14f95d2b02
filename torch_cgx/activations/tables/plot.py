"""Picture of a table over the derivative that it stands for; needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_cgx.activations.tables.objective import Function, OfTensor, make
from torch_cgx.activations.tables.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 2000


def draw(
    axes: Axes,
    table: Table,
    function: Function,
    *,
    domain: Sequence[float] = (-5.0, 5.0),
    derivative: OfTensor | None = None,
) -> None:
    """Adds the derivative and the levels of a table to a picture's axes."""
    low, high = map(float, domain)
    slope = make(function, "uniform", domain, derivative=derivative).derivative
    middle = np.linspace(low, high, 2 * _POINTS + 1)[1::2]
    axes.plot(middle, slope(middle), color="black", linewidth=1.5, label="derivative")
    borders = [*(-x for x in reversed(table.borders)), *table.borders]
    jumps = [x for x in (borders if table.parity else table.borders) if low < x < high]
    edges = np.unique([low, *jumps, high])
    levels = table(0.5 * (edges[1:] + edges[:-1]))
    label = f"{len(table.levels)} levels, {table.bits} bits{', of |x|' if table.parity else ''}"
    axes.stairs(levels, edges, baseline=None, color="tab:blue", linewidth=2, label=label)
    for x in jumps:
        axes.axvline(x, color="tab:blue", alpha=0.25, linewidth=0.8)
    axes.set_xlim(low, high)
    axes.set_xlabel("x")
    axes.set_ylabel("derivative")
    axes.set_title(table.name)
    axes.legend()


def plot(
    path: str | os.PathLike[str],
    table: Table,
    function: Function,
    *,
    domain: Sequence[float] = (-5.0, 5.0),
    derivative: OfTensor | None = None,
) -> None:
    """Writes the picture to a file. ImportError where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no change of the program's pyplot
    draw(figure.add_subplot(), table, function, domain=domain, derivative=derivative)
    figure.savefig(path, dpi=120)
