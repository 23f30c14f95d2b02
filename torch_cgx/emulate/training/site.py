"""A GEMM layer of a model, with its name."""

from __future__ import annotations

import torch

from torch_cgx.emulate.gemm.formats import GemmFormats
from torch_cgx.emulate.gemm.rounding import Clock, Rounding
from torch_cgx.emulate.training.notes import Notes


class Site(Rounding):
    """A Rounding that notes what it casts."""

    def __init__(self, formats: GemmFormats, clock: Clock, index: int, name: str, notes: Notes):
        super().__init__(formats, clock, index)
        self.name, self._notes = name, notes

    def cast(self, x: torch.Tensor, operand: str, axis: int, step: int) -> torch.Tensor:
        measure = self._notes.measure
        found = self._cast(x, operand, axis, step, measure)
        format = self.formats.by_name[operand]
        self._notes.note(self.name, operand, x, format, axis, found.statistics)
        return found.values
