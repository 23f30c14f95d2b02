"""Table of what a `CGXState` does with each parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cgx_utils.summary import Choice

_COLUMNS = ("name", "numel", "bits", "codec", "relative_error", "bytes", "share")


class Report:
    """`rows`: a dict for each parameter, with the keys

    name: of the parameter; None where names are not known
    numel: number of values
    bits: per value, the codec's metadata not included
    codec: as in "maxmin"; "exact"
    relative_error: L2 error of one encoding by L2 norm, over the gradients of all ranks; None if it
        was not measured
    bytes: of one encoding, each step, without headers
    share: of the bytes of all rows, 0 to 1

    `str()` is an aligned table with a line of totals.
    """

    def __init__(self, layers: Iterable[tuple[str | None, Choice, float | None]]):
        listed = list(layers)
        total = sum(choice.sent_bytes() for _, choice, _ in listed)
        self.rows: list[dict[str, Any]] = [
            {
                "name": name,
                "numel": choice.numel,
                "bits": 8 * choice.dtype.itemsize if choice.codec is None else choice.codec.bits,
                "codec": "exact" if choice.codec is None else choice.codec.codec,
                "relative_error": error,
                "bytes": choice.sent_bytes(),
                "share": choice.sent_bytes() / total if total else 0.0,
            }
            for name, choice, error in listed
        ]

    def __str__(self) -> str:
        if not self.rows:
            return "no step has been taken yet"
        lines = [_cells(row) for row in self.rows]
        numel = sum(row["numel"] for row in self.rows)
        nbytes = sum(row["bytes"] for row in self.rows)
        average = f"{8 * nbytes / numel:.2f}" if numel else ""
        lines.append(["total", f"{numel}", average, "", "", f"{nbytes}", "100.0 %"])
        header = [column.replace("_", " ") for column in _COLUMNS]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column in ("name", "codec") else cell.rjust(width)
                for column, cell, width in zip(_COLUMNS, line, widths, strict=True)
            ).rstrip()
            for line in [header, *lines]
        )


def _cells(row: dict[str, Any]) -> list[str]:
    error = row["relative_error"]
    return [
        row["name"] or "?",
        f"{row['numel']}",
        f"{row['bits']}",
        row["codec"],
        "" if error is None else f"{error:.3g}",
        f"{row['bytes']}",
        f"{100 * row['share']:.1f} %",
    ]
