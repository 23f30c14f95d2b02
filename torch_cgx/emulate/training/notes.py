"""What casts did to the tensors of a training: bits, and errors where they are measured."""

from __future__ import annotations

import dataclasses

import torch

from torch_cgx.emulate._formats import ZScore
from torch_cgx.emulate._statistics import Statistics
from torch_cgx.emulate.gemm.formats import OperandFormat
from torch_cgx.emulate.gemm.operand import total_bits


@dataclasses.dataclass
class Entry:
    """The last cast of one tensor. layer, tensor: as "blocks.0.up" and "forward.input", or
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
        self._seen: dict[str, tuple[torch.Size, int]] = {}

    def note(
        self,
        layer: str,
        tensor: str,
        x: torch.Tensor,
        format: OperandFormat,
        axis: int,
        statistics: Statistics | None,
        size: int | None = None,
    ) -> None:
        """x: before the cast. size: bytes of a value in memory; None: of x's."""
        name = f"{layer}/{tensor}"
        kind = (x.shape, size or x.element_size())
        changed = self._seen.get(name) != kind
        by_values = statistics is not None and isinstance(format, ZScore)
        if changed or by_values:
            self._seen[name] = kind
            counted = x if by_values else torch.empty(x.shape, dtype=x.dtype, device="meta")
            after = _bits(format, counted, axis)
            before = 8.0 * (size or x.element_size()) * x.numel()
            self.entries[name] = Entry(layer, tensor, x.numel(), before, after)
        if statistics is not None:
            entry = self.entries[name]
            self.records[name] = {
                "underflowed": statistics.underflowed,
                "saturated": statistics.saturated,
                "sqnr": statistics.sqnr,
                "amax": statistics.amax,
                "bits": entry.after / max(entry.values, 1),
            }


def _bits(format: OperandFormat, x: torch.Tensor, axis: int) -> float:
    if isinstance(format, ZScore) and x.is_meta and x.numel() >= 8:
        info = format.info()  # of normal values
        return info.bits * x.numel() + float(format.facts["group_bits"])
    return total_bits(format, x, axis)
