"""A GEMM layer of a model, with its name."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from torch_cgx.emulate.gemm.formats import GemmFormats
from torch_cgx.emulate.gemm.rounding import Call, Clock, Rounding, in_backward
from torch_cgx.emulate.training.notes import Notes


class Site(Rounding):
    """A Rounding that notes what it casts. copies: modules that were copied from the layer."""

    def __init__(self, formats: GemmFormats, clock: Clock, index: int, name: str, notes: Notes):
        super().__init__(formats, clock, index)
        self.name, self._notes = name, notes
        self.copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def __deepcopy__(self, memo: object) -> Site:
        return self

    def cast(self, x: torch.Tensor, operand: str, axis: int, call: Call) -> torch.Tensor:
        found = self._cast(x, operand, axis, call, self._notes.measure)
        format = self.formats.by_name[operand]
        if not (operand.startswith("forward") and in_backward()):  # a checkpoint's repetition
            occasion = self.clock.occasion(call.step, call.training)
            noted = (found.statistics, occasion, call.size)
            self._notes.note(self.name, operand, x, format, axis, *noted)
        return found.values
