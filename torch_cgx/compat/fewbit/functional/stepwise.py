"""`stepwise`: the function whose derivative is a given step function."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_cgx.activations.few_bit.function import apply, check_input
from torch_cgx.activations.tables.table import Table
from torch_cgx.compat.fewbit.store import numbers


def stepwise(
    input: Tensor,
    borders: Any,
    levels: Any,
    parity: bool | None = None,
    shift: float | None = None,
) -> Tensor:
    """The function whose derivative is a step function, exactly, in ceil(bits * n / 8) bytes.

    The derivative at x is the level of t = x - shift, or of |t| with parity: levels[i] for i
    borders below. The value is its integral from shift to x, so it is 0 at shift, continuous, and
    linear between borders. FewBit declares this function and has no definition of it.

    input: float32, float64, float16 or bfloat16, any shape. borders: rising, one fewer than levels,
    or one more, of which the first and the last are left out. levels: 2 to 16. ValueError.
    """
    return step_function(input, step_table(borders, levels, parity), shift)


def step_table(borders: Any, levels: Any, parity: bool | None = None) -> Table:
    edges, values = numbers("borders", borders), numbers("levels", levels)
    if len(edges) > len(values):
        edges = edges[1:-1]
    return Table(tuple(edges), tuple(values), parity=bool(parity), name="stepwise")


def step_function(input: Tensor, table: Table, shift: float | None = None) -> Tensor:
    check_input("stepwise", input)
    shifted = input - shift if shift else input
    return apply(_integral, shifted, (table,), table)


def _integral(t: Tensor, table: Table) -> Tensor:
    """From 0 to t, computed in float32 at least."""
    borders, levels = np.array(table.borders), np.array(table.levels)
    # At each border, but for a constant: the value at 0.
    at = np.concatenate([[0.0], np.cumsum(np.diff(borders) * levels[1:-1])])
    piece = int(np.searchsorted(borders, 0.0))
    nearest = max(piece - 1, 0)
    at -= at[nearest] + (0.0 - borders[nearest]) * levels[piece]
    # Each piece as a line through one of its borders.
    starts, heights = np.concatenate([borders[:1], borders]), np.concatenate([at[:1], at])
    wide = torch.float64 if t.dtype == torch.float64 else torch.float32
    x = t.to(wide)
    x = x.abs() if table.parity else x
    edges, start, height, slope = (
        torch.tensor(part, dtype=wide, device=t.device)
        for part in (borders, starts, heights, levels)
    )
    code = torch.bucketize(x, edges)
    rise = slope[code] * (x - start[code])
    y = height[code] + torch.where(slope[code] == 0, 0.0, rise)  # 0 at infinity, too
    return (torch.where(t < 0, -y, y) if table.parity else y).to(t.dtype)


__all__ = ["stepwise"]
