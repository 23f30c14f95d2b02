"""What casts did to the tensors of a training: bits, and errors where they are measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from torch_cgx.emulate._formats import ZScore
from torch_cgx.emulate._statistics import Statistics
from torch_cgx.emulate.gemm.formats import OperandFormat
from torch_cgx.emulate.gemm.operand import total_bits


@dataclasses.dataclass
class Entry:
    """The casts of one tensor in its last step; of a layer that is called several times in a
    forward pass, those of its last call. layer, tensor: as "blocks.0.up" and "forward.input", or
    "fc.weight" and "optimizer_state.exp_avg". before, after: bits of all of it, scales included.
    """

    layer: str
    tensor: str
    values: int
    before: float
    after: float


class Notes:
    """Of one model. measure: whether casts also count what happens to values."""

    def __init__(self) -> None:
        self.measure = False
        self.records: dict[str, dict[str, float]] = {}
        self.entries: dict[str, Entry] = {}
        self.total: dict[str, int] = {}
        """Values of all casts so far, by the names of entries."""
        self._counted: dict[str, tuple[Any, float, float]] = {}
        self._occasions: dict[str, int] = {}

    def note(
        self,
        layer: str,
        tensor: str,
        x: torch.Tensor,
        format: OperandFormat,
        axis: int,
        statistics: Statistics | None,
        occasion: int,
        size: int | None = None,
    ) -> None:
        """x: before the cast. occasion: casts of the same one belong together, as those of three
        projections in an attention. size: bytes of a value in memory; None: of x's.
        """
        name = f"{layer}/{tensor}"
        before, after = self._count(name, x, format, axis, statistics is not None, size)
        if self._occasions.get(name) != occasion:
            self._occasions[name] = occasion
            self.entries[name] = Entry(layer, tensor, 0, 0.0, 0.0)
        entry = self.entries[name]
        entry.values += x.numel()
        entry.before += before
        entry.after += after
        self.total[name] = self.total.get(name, 0) + x.numel()
        if statistics is not None:
            self.records[name] = {
                "underflowed": statistics.underflowed,
                "saturated": statistics.saturated,
                "sqnr": statistics.sqnr,
                "amax": statistics.amax,
                "bits": entry.after / max(entry.values, 1),
            }

    def _count(
        self,
        name: str,
        x: torch.Tensor,
        format: OperandFormat,
        axis: int,
        measured: bool,
        size: int | None,
    ) -> tuple[float, float]:
        """Bits before and after; SmaQ's are counted anew where values are measured."""
        by_values = measured and isinstance(format, ZScore)
        kind = (x.shape, size, x.dtype, format, axis)
        known = self._counted.get(name)
        if known is not None and known[0] == kind and not by_values:
            return known[1:]
        counted = x if by_values else torch.empty(x.shape, dtype=x.dtype, device="meta")
        before = 8.0 * (size or x.element_size()) * x.numel()
        self._counted[name] = (kind, before, _bits(format, counted, axis))
        return self._counted[name][1:]


def _bits(format: OperandFormat, x: torch.Tensor, axis: int) -> float:
    if isinstance(format, ZScore) and x.is_meta and x.numel() >= 8:
        info = format.info()  # of normal values
        return info.bits * x.numel() + float(format.facts["group_bits"])
    return total_bits(format, x, axis)
