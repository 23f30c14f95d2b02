"""Picture of a comparison: losses of the training by step, and differences to float32."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torch_cgx.emulate.comparison.comparison import Comparison


def plot(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Writes the picture to a file. ImportError where matplotlib is missing."""
    try:
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None

    rows = comparison.rows
    colors = {row["recipe"]: colormaps["tab20"](i % 20) for i, row in enumerate(rows)}
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no change of the program's pyplot
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_curves(left, comparison.runs, colors)
    _draw_differences(right, rows, colors)
    figure.savefig(path, dpi=120)


def _draw_curves(axes: Axes, runs: Sequence[dict[str, Any]], colors: dict[str, Any]) -> None:
    """A line for each recipe, the mean of its seeds, to where the first diverged."""
    for name, color in colors.items():
        mine = [run for run in runs if run["recipe"] == name]
        points = list(zip(*(run["curve"] for run in mine), strict=False))
        means = [statistics.fmean(point) if None not in point else math.nan for point in points]
        every = mine[0]["every"]
        steps = [every * (i + 0.5) for i in range(len(means))]
        axes.plot(steps, means, color=color, linewidth=1.2, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss of the training, mean of the seeds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_differences(axes: Axes, rows: Sequence[dict[str, Any]], colors: dict[str, Any]) -> None:
    """A point for each recipe, with its interval; none where a seed diverged."""
    for place, row in enumerate(rows):
        if row["difference"] is not None:
            axes.errorbar(
                row["difference"],
                place,
                xerr=row["interval"] or 0,
                color=colors[row["recipe"]],
                marker="o",
                capsize=3,
            )
    axes.axvline(0, color="grey", linewidth=1)
    names = [row["recipe"] + (" (diverged)" if row["diverged"] else "") for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=0.01)
    axes.set_xlabel("validation loss above that of fp32, 95 % interval")
    axes.grid(alpha=0.3)
