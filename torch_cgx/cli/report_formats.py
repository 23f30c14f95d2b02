"""The section of `cgx report` about emulated formats: which tensors they fit worst."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_cgx.cli.output import table

HEAD = ("cast tensor", "bits", "worst SQNR", "at step", "last", "underflow", "saturation")


def rows(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each tensor with a format in some record: the least and the last SQNR in dB (inf without
    an error, None without a signal), the step of the least, the greatest shares and magnitude, and
    the last bits. The least SQNR first, unknown ones last.
    """
    series: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    for record in records:
        for name, values in record.get("formats", {}).items():
            series.setdefault(name, []).append((record["step"], values))
    found = [_row(name, values) for name, values in series.items()]
    return sorted(found, key=lambda row: (row["sqnr_worst"] is None, row["sqnr_worst"] or 0.0))


def _row(name: str, series: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, Any]:
    ratios = [(_known(values, "sqnr"), step) for step, values in series]
    worst, step = min(
        ((ratio, step) for ratio, step in ratios if ratio is not None), default=(None, None)
    )
    return {
        "name": name,
        "bits": _known(series[-1][1], "bits"),
        "sqnr_worst": worst,
        "step": step,
        "sqnr": ratios[-1][0],
        **{key: _greatest(series, key) for key in ("underflowed", "saturated", "amax")},
    }


def _known(values: Mapping[str, float], key: str) -> float | None:
    value = values.get(key)
    return None if value is None or math.isnan(value) else value


def _greatest(series: Sequence[tuple[int, Mapping[str, float]]], key: str) -> float | None:
    found = [_known(values, key) for _, values in series]
    return max((value for value in found if value is not None), default=None)


def text_of(found: Sequence[Mapping[str, Any]], shown: int | None) -> list[str]:
    """Lines: a table of the first `shown` rows; None: of all."""
    listed = found[:shown]
    cells = [
        [
            row["name"],
            _text(row["bits"], "{:.4g}"),
            _text(row["sqnr_worst"], "{:.1f} dB"),
            _text(row["step"], "{}"),
            _text(row["sqnr"], "{:.1f} dB"),
            _text(row["underflowed"], "{:.3%}"),
            _text(row["saturated"], "{:.3%}"),
        ]
        for row in listed
    ]
    more = len(found) - len(listed)
    rest = [f"and {more} with a better SQNR, or none (--all shows them)"] if more else []
    return [table(HEAD, cells), *rest]


def _text(value: float | None, pattern: str) -> str:
    return "" if value is None else pattern.format(value)
