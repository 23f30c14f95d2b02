"""Picture of the errors of formats over the magnitude of values; needs matplotlib."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from torch_cgx.emulate._cast import cast
from torch_cgx.emulate._format import Format

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 40  # no magnitudes beyond 2^-40 and 2^40
_VALUES = 1024  # of a magnitude
_ROWS, _COLUMNS = 512, 1024  # of values from N(0, 1)
_LEAST = 16  # values of a magnitude, for an error to be shown


def errors(format: Format) -> dict[int, float]:
    """By exponent k, the relative error of values from 2^k to 2^(k + 1), root mean square: 1 where
    all become 0, NaN or infinite where one does.

    A format whose values do not depend on each other is shown over its range, with 1024 evenly
    spaced values of each magnitude. Where values share scales, 2^19 values from N(0, 1) are cast as
    rows of 1024, and their errors are grouped by magnitude.
    """
    if not format.elementwise:
        return _of_normal(format)
    info = format.info()
    low, high = math.log2(info.smallest_step) - 2, math.log2(info.largest) + 2
    shown = range(max(math.floor(low), -_SHOWN), min(math.floor(high), _SHOWN) + 1)
    steps = (torch.arange(_VALUES, dtype=torch.float64, device="cpu") + 0.5) / _VALUES
    return {k: _error(x, cast(x, format)) for k in shown for x in [(1 + steps) * 2.0**k]}


def _of_normal(format: Format) -> dict[int, float]:
    generator = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(_ROWS, _COLUMNS, generator=generator, dtype=torch.float64, device="cpu")
    y = cast(x, format)
    exponents = x.abs().log2().floor()
    found = {}
    for k in range(int(exponents.min()), int(exponents.max()) + 1):
        here = exponents == k
        if int(here.sum()) >= _LEAST:
            found[k] = _error(x[here], y[here])
    return found


def _error(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(((y - x) / x).square().mean().sqrt())


def draw(axes: Axes, formats: Mapping[str, Format]) -> None:
    """Adds a line for each format to a picture's axes."""
    for name, format in formats.items():
        found = errors(format)
        shown = [y if math.isfinite(y) and y > 0 else math.nan for y in found.values()]
        x = [1.5 * 2.0**k for k in found]
        label = f"{name}, {format.info().bits:.4g} bits"
        axes.plot(x, shown, marker=".", linewidth=1.2, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shared = any(not format.elementwise for format in formats.values())
    among = "; where values share scales, of values from N(0, 1)" if shared else ""
    axes.set_xlabel(f"magnitude of a value{among}")
    axes.set_ylabel("relative error, root mean square in [2^k, 2^(k+1))")
    axes.grid(alpha=0.3)
    axes.legend()


def plot(path: str | os.PathLike[str], formats: Mapping[str, Format]) -> None:
    """Writes the picture to a file. ImportError where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no change of the program's pyplot
    draw(figure.add_subplot(), formats)
    figure.savefig(path, dpi=120)
