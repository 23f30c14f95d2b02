"""Prints what an encoder layer keeps for backward with each measure of torch_cgx.activations.

    python docs/pictures/measure_activations.py

The layer has the width of BERT-base: 768, 12 heads, 3072 hidden values, dropout 0.1; the batch is
8 x 128. Sizes are exact sums over storages, by activations.memory. Needs torch_cgx with zstandard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from torch_cgx import activations
from torch_cgx.activations import Report

CONVERTED = {"activations": 3, "norms": True, "dropout": True}


def layer() -> torch.nn.Module:
    """The same weights in each call."""
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)


def report(dtype: torch.dtype, convert: dict[str, Any], saved: Any = None) -> Report:
    """With the arguments of `convert`, and the configuration of `compress_saved`, if any."""
    model = layer().to(dtype)
    x = torch.randn(8, 128, 768).to(dtype)
    if convert:
        activations.convert(model, **convert)
    with contextlib.nullcontext() if saved is None else activations.compress_saved(saved):
        return activations.memory(model, x)


def _maxmin(bits: int) -> dict[str, Any]:
    return {"codec": "maxmin", "bits": bits}


# A row of the table: the measure as it is typed, arguments of convert, configuration.
Measure = tuple[str, dict[str, Any], Any]
MEASURES: tuple[Measure, ...] = (
    ("none", {}, None),
    ("`convert(model, norms=True)`", {"norms": True}, None),
    ("`convert(model, activations=3)`", {"activations": 3}, None),
    ("`convert(model, dropout=True)`", {"dropout": True}, None),
    ("`convert(model, activations=3, norms=True, dropout=True)`", CONVERTED, None),
    ('`compress_saved("half")`', {}, "half"),
    ('`compress_saved({"codec": "maxmin", "bits": 8})`', {}, _maxmin(8)),
    (
        '`compress_saved({"codec": "bounded", "relative": 1e-2})`',
        {},
        {"codec": "bounded", "relative": 1e-2},
    ),
    ("`compress_saved()`, 4 bits", {}, _maxmin(4)),
    ('`compress_saved({"codec": "maxmin", "bits": 2})`', {}, _maxmin(2)),
    ("`compress_saved()` with the three of `convert`", CONVERTED, _maxmin(4)),
)


def rows(measures: Sequence[Measure] = MEASURES) -> list[str]:
    """Lines of a Markdown table; the first measure is what others are compared with."""
    lines = ["| measure | fp32 | times fewer | bf16 | times fewer |", "|---|---|---|---|---|"]
    plain: dict[torch.dtype, int] = {}
    for name, convert, saved in measures:
        cells = []
        for dtype in (torch.float32, torch.bfloat16):
            total = report(dtype, convert, saved).total
            fewer = plain.setdefault(dtype, total) / total
            cells += [f"{total / (1 << 20):.1f} MiB", f"{fewer:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
