"""Table of what a `CGXState` does with each parameter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cgx_utils.decisions import sample_of
from cgx_utils.summary import Decision

if TYPE_CHECKING:
    from torch_cgx._C import Codec

_COLUMNS = ("name", "numel", "bits", "codec", "relative_error", "bytes", "share", "why")


class Report:
    """`rows`: a dict for each parameter, with the keys

    name: of the parameter; None where names are not known
    numel: number of values
    bits: per value, the codec's metadata not included
    codec: as in "maxmin"; "exact"
    relative_error: L2 error by L2 norm: of the reduced gradient, from a `Monitor`; else of one
        encoding of the gradients of all ranks, from `adaptive`; else of one encoding of a sample of
        the gradient that the parameter holds now; None where there is none
    bytes: of one encoding, each step, without headers
    share: of the bytes of all rows, 0 to 1
    why: the rule that keeps the parameter exact; empty for a compressed one

    `str()` is an aligned table, with one line for all exact parameters, one of totals, and one of
    what the tuner of the group has sent.
    """

    def __init__(
        self, layers: Iterable[tuple[str | None, Decision, float | None]], remark: str = ""
    ):
        self._remark = remark
        listed = list(layers)
        total = sum(decision.sent_bytes() for _, decision, _ in listed)
        self.rows: list[dict[str, Any]] = [
            {
                "name": name,
                "numel": decision.numel,
                "bits": decision.bits,
                "codec": decision.codec_name,
                "relative_error": error,
                "bytes": decision.sent_bytes(),
                "share": decision.sent_bytes() / total if total else 0.0,
                "why": decision.why,
            }
            for name, decision, error in listed
        ]

    def __str__(self) -> str:
        if not self.rows:
            return "no step has been taken yet"
        exact = [row for row in self.rows if row["codec"] == "exact"]
        shown = [row for row in self.rows if row["codec"] != "exact"]
        lines = [_cells(row) for row in [*shown, *([_together(exact)] if exact else [])]]
        numel = sum(row["numel"] for row in self.rows)
        nbytes = sum(row["bytes"] for row in self.rows)
        average = f"{8 * nbytes / numel:.2f}" if numel else ""
        lines.append(["total", f"{numel}", average, "", "", f"{nbytes}", "100.0 %", ""])
        header = [column.replace("_", " ") for column in _COLUMNS]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        table = "\n".join(
            "  ".join(
                cell.ljust(width) if column in ("name", "codec", "why") else cell.rjust(width)
                for column, cell, width in zip(_COLUMNS, line, widths, strict=True)
            ).rstrip()
            for line in [header, *lines]
        )
        return f"{table}\n{self._remark}" if self._remark else table


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows of exact parameters as one: a model has many biases and norms."""
    if len(rows) == 1:
        return rows[0]
    bits = sorted({row["bits"] for row in rows})
    reasons = Counter(row["why"] for row in rows).most_common()
    return {
        "name": f"{len(rows)} exact parameters",
        "bits": ", ".join(map(str, bits)),
        "codec": "exact",
        "relative_error": 0.0,
        "why": ", ".join(why if len(reasons) == 1 else f"{n} by {why}" for why, n in reasons),
        **{key: sum(row[key] for row in rows) for key in ("numel", "bytes", "share")},
    }


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
        row["why"],
    ]


def rows_of(
    decided: Mapping[int, Decision],
    names: Mapping[int, str],
    measured: Mapping[str, float | None],
    gradients: Mapping[int, torch.Tensor | None],
    aps_ranks: int | None = None,
) -> list[tuple[str | None, Decision, float | None]]:
    """Name, decision and relative error of each parameter, in the order of the names. measured:
    errors by name; for other parameters, one encoding of the gradient is measured here. The keys of
    the other arguments are ids of parameters. aps_ranks: with APS, the number of ranks.
    """
    rows: list[tuple[str | None, Decision, float | None]] = []
    for key, decision in decided.items():
        name, gradient = names.get(key), gradients.get(key)
        error = 0.0 if decision.codec is None else measured.get(name or "")
        if error is None and decision.codec is not None and gradient is not None:
            error = error_of_encoding(gradient, decision.codec, aps_ranks)
        rows.append((name, decision, error))
    order = {name: number for number, name in enumerate(names.values())}
    return sorted(rows, key=lambda row: order.get(row[0] or "", len(order)))


def tuner_line(group: dist.ProcessGroup | None) -> str:
    """How many bits the tuner of a group has sent so far."""
    import torch_cgx

    found = torch_cgx.stats(group)
    kinds = {"as asked": "tuned_asked", "with 16 bits": "tuned_half", "exact": "tuned_exact"}
    calls = ", ".join(f"{found[key]} {name}" for name, key in kinds.items())
    ratio = found["bytes_raw"] / max(1, found["bytes_sent"])
    return f"the tuner sent calls: {calls}; {ratio:.1f}x fewer bytes in all calls of the group"


def error_of_encoding(
    values: torch.Tensor, codec: Codec, aps_ranks: int | None = None
) -> float | None:
    """Relative L2 error of one encoding of (a sample of) these values; None if it is not finite.
    aps_ranks: the values are shifted as APS on so many ranks shifts them.
    """
    sample = sample_of(values, codec.granule, 0).contiguous()
    if aps_ranks is not None:
        sample = _shifted(sample, codec, aps_ranks)
    exact = sample.double()
    decoded = codec.decode(codec.encode(sample), torch.empty_like(sample)).double()
    norm = exact.norm().item()
    error = (decoded - exact).norm().item() / norm if norm else 0.0
    return error if math.isfinite(error) and math.isfinite(norm) else None


def _shifted(sample: torch.Tensor, codec: Codec, ranks: int) -> torch.Tensor:
    from torch_cgx._aps import Shift

    shift = Shift([(sample.numel(), codec)], ranks, sample.dtype)
    shift.decide(shift.exponents(sample, None))
    shifted = sample.clone()
    shift.apply(shifted, None)
    return shifted
