"""Picture of what formats did to the tensors of a training, layers by steps; needs matplotlib."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Matrix = npt.NDArray[np.float64]
Record = Mapping[str, Any]

_ROW, _COLUMN, _LETTER = 0.2, 0.35, 0.075  # inches
_WIDEST, _TALLEST = 16.0, 400.0  # inches of the map; matplotlib has no pictures beyond 2^16 pixels
_LABELS = 20  # of columns, at most


class _Value(NamedTuple):
    label: str
    dark: str  # which end is bad, and dark
    least: float | None = None
    log: bool = False


_VALUES = {
    "sqnr": _Value("SQNR, dB", "low"),
    "underflowed": _Value("share of values that became 0", "high", least=0.0),
    "saturated": _Value("share of values beyond the largest number", "high", least=0.0),
    "amax": _Value("greatest magnitude", "high", log=True),
}


def heat_map(
    records: Iterable[Record] | str | os.PathLike[str],
    path: str | os.PathLike[str],
    value: str = "sqnr",
    tensor: str | None = None,
) -> None:
    """Writes a picture with a row for each tensor and a column for each record's step::

        heat_map("cgx.jsonl", "sqnr.png", tensor="dgrad.gradient")

    records: of a Monitor with `formats`, or of a FormatMonitor: dicts with "step" and "formats", or
        the path of what cgx_utils.monitor.JsonLines wrote. Others of them are left out, and a last
        line without its end.
    path: of the picture, whose suffix says the format, as in png, svg, pdf.
    value: "sqnr" (dB), "underflowed", "saturated" (shares, 0 to 1) or "amax" (on a log scale).
    tensor: a kind, as in "forward.input": rows are the layers that have it. None: all kinds, and
        rows are LAYER/TENSOR. Rows are in the order of the records.

    Dark is bad; of amax, large. No error at all (an infinite SQNR) has the colour of the scale's
    top; grey is what was not measured, or had no signal.

    Errors: ValueError: an unknown value or tensor, no record with formats, a line that is none
    (with its number). ImportError: no matplotlib. OSError as of any file.
    """
    if value not in _VALUES:
        raise ValueError(f"value={value!r}; allowed: {', '.join(_VALUES)}")
    if isinstance(records, (str, os.PathLike)):
        records = _read(Path(records))
    matrix, rows, columns = table(records, value, tensor)
    what = _VALUES[value]
    label = what.label if tensor is None else f"{what.label}, of {tensor}"
    scale: dict[str, Any] = {"dark": what.dark, "least": what.least, "log": what.log}
    plot(path, matrix, rows, columns, label, xlabel="step", **scale)


def table(
    records: Iterable[Record], value: str, tensor: str | None = None
) -> tuple[Matrix, list[str], list[int]]:
    """A matrix of values, rows by columns, NaN where one is missing; the names of the rows; the
    steps of the columns, in order. ValueError: no record has such formats.
    """
    found: dict[str, dict[int, float]] = {}
    kinds: dict[str, None] = {}  # in order
    steps: set[int] = set()
    if not isinstance(records, Iterable):
        raise TypeError(
            f"records is of type {type(records).__name__}; allowed: a list of records (dicts), or "
            "the path of a log; FormatMonitor makes them of an emulation"
        )
    for record in records:
        if not isinstance(record, Mapping):
            raise TypeError(f"records has {record!r}; allowed: dicts with step and formats")
        formats = record.get("formats") or {}
        if formats:
            steps.add(record["step"])
        for name, values in formats.items():
            layer, _, kind = name.rpartition("/")
            kinds[kind] = None
            if tensor is None or kind == tensor:
                row = found.setdefault(name if tensor is None else layer, {})
                row[record["step"]] = values.get(value, np.nan)
    if not steps:
        raise ValueError(
            "no record has formats; allowed: records of Monitor(..., formats=handle) or "
            "FormatMonitor(handle), of at least `every` steps"
        )
    if not found:
        raise ValueError(f"tensor={tensor!r}; the records have: {', '.join(kinds)}")
    columns = sorted(steps)
    matrix = [[row.get(step, np.nan) for step in columns] for row in found.values()]
    return np.array(matrix, np.float64), list(found), columns


def _read(path: Path) -> list[Record]:
    lines = path.read_text(encoding="utf-8").split("\n")
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], 1):  # the last is empty, or has no end
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or "step" not in record:
            raise ValueError(
                f"{path}, line {number}: not a record of a Monitor; allowed: what "
                "cgx_utils.monitor.JsonLines wrote"
            )
        records.append(record)
    return records


def plot(
    path: str | os.PathLike[str],
    matrix: Matrix,
    rows: Sequence[str],
    columns: Sequence[object],
    label: str,
    *,
    xlabel: str = "",
    dark: str = "low",
    least: float | None = None,
    log: bool = False,
) -> None:
    """Writes a matrix as a picture that is large enough for its rows; the arguments of `draw`.
    ImportError where matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None

    names = _LETTER * max(map(len, rows), default=0)
    width = 2 + names + min(max(_COLUMN * len(columns), 4), _WIDEST)
    height = min(max(1.2 + _ROW * len(rows), 3), _TALLEST)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no display, and no change of the program's pyplot
    axes = figure.add_subplot()
    draw(axes, matrix, rows, columns, label, dark=dark, least=least, log=log)
    axes.set_xlabel(xlabel)
    figure.savefig(path, dpi=120)


def draw(
    axes: Axes,
    matrix: Matrix,
    rows: Sequence[str],
    columns: Sequence[object],
    label: str,
    *,
    dark: str = "low",
    least: float | None = None,
    log: bool = False,
) -> None:
    """Draws a matrix of numbers on a picture's axes, with names and a scale of colours.

    matrix: float64, rows by columns. Infinities have the colours of the scale's ends, NaN is grey.
    label: of the scale. dark: "low" or "high", the end that is dark. least: where the scale begins;
        None: at the least number. log: a log scale, on which zeros have the colour of the lowest
        number above 0.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    known = matrix[np.isfinite(matrix) & ((matrix > 0) if log else True)]
    low, high = (known.min(), known.max()) if known.size else (1.0, 1.0)
    low = low if least is None else least
    if low >= high:  # a scale needs two ends
        low, high = (low / 2, low * 2) if log else (low - (least is None), low + 1)
    shown = np.clip(matrix, low, high)  # NaN stays
    colours = colormaps["viridis" if dark == "low" else "viridis_r"].with_extremes(bad="0.8")
    norm = (LogNorm if log else Normalize)(low, high)
    image = axes.imshow(shown, colours, norm, aspect="auto", interpolation="nearest")
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    beyond = bool(np.isneginf(matrix).any()), bool(np.isposinf(matrix).any())
    height = axes.figure.bbox.height / axes.figure.dpi  # inches
    axes.figure.colorbar(
        image,
        ax=axes,
        label=label,
        extend=ends.get(beyond, "both"),
        shrink=min(1.0, 5 / height),
        anchor=(0.0, 1.0),
        aspect=20,
    )
    if np.isnan(matrix).any():
        axes.set_title("grey: not measured, or no signal", loc="right", fontsize="small")
    room = (height - 1) / (0.7 * _ROW)  # labels that do not touch
    axes.set_yticks(*_ticks(rows, max(1, int(room))), fontsize="small")
    slanted = any(len(str(name)) > 6 for name in columns)
    slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(*_ticks(columns, _LABELS), fontsize="small", **(slant if slanted else {}))


def _ticks(names: Sequence[object], most: int) -> tuple[list[int], list[str]]:
    places = list(range(0, len(names), -(-len(names) // most) or 1))
    return places, [str(names[place]) for place in places]
