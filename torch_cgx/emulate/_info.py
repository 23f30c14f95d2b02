"""What a format costs and holds."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_cgx.emulate._format import Format


@dataclasses.dataclass(frozen=True)
class Info:
    """What a format costs and holds.

    bits: of a value, with its share of what blocks, rows or the tensor share.
    total_bits: of the tensor; None without one.
    side_bits: the part of total_bits that scales, means and the like take.
    largest: the largest finite number of a value over its scale.
    smallest_step: the least distance of two such numbers.
    largest and smallest_step are NaN where a format has none of its own.
    """

    bits: float
    total_bits: float | None
    side_bits: float | None
    largest: float
    smallest_step: float


def _blocks_and_groups(format: Format, x: torch.Tensor) -> tuple[int, int]:
    """How many blocks a tensor has, and how many measured groups."""
    facts = format.facts
    shape = list(x.shape) or [1]
    if x.numel() == 0:
        return 0, 0
    if isinstance(format.axis, int):
        moved = shape.pop(format.axis)
        shape.append(moved)
    columns = shape[-1]
    runs = columns if facts["by_channels"] else x.numel() // columns
    if facts["by_channels"]:
        columns = x.numel() // runs
    if facts["block_rows"] > 1:
        rows = shape[-2] if len(shape) > 1 else 1
        runs = x.numel() // (rows * columns) * math.ceil(rows / facts["block_rows"])
    blocks = runs * math.ceil(columns / facts["block"])
    groups = {None: 0, "tensor": 1, "run": runs}[facts["group"]]
    return blocks, groups


def info_of(format: Format, x: torch.Tensor | None) -> Info:
    facts = format.facts
    largest, step = facts["largest"], facts["smallest_step"]
    if x is None:
        shared = facts["block_bits"] / (facts["block"] * facts["block_rows"])
        return Info(facts["bits"] + shared, None, None, largest, step)
    from torch_cgx.emulate._operators import _check_floating

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is of type {type(x).__name__}, allowed: a torch.Tensor, None")
    _check_floating("x", x)
    blocks, groups = _blocks_and_groups(format, x)
    side = blocks * facts["block_bits"] + groups * facts["group_bits"]
    total = x.numel() * facts["bits"] + side
    return Info(total / max(x.numel(), 1), total, side, largest, step)
