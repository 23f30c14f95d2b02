"""FewBit's `VarianceEstimator`, on top of that of `torch_cgx.activations.projection`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from torch_cgx.activations.projection import function
from torch_cgx.activations.projection import variance as ours
from torch_cgx.compat.fewbit.modules.linear import LinearGRP


class _OfProjection(ours.VarianceEstimator):
    _allowed = (LinearGRP, "LinearGRP")
    layer: LinearGRP

    def _kept(self, input: Tensor) -> tuple[int | None, function.Settings]:
        layer = self.layer
        rows = layer.rows_of(input.numel() // input.shape[-1])
        return rows, function.checked(1.0, layer.matmul, "batch", rows)


class VarianceEstimator(nn.Module):
    """Wraps a LinearGRP, whose forward it runs, and computes variances in each backward pass.

    model: the layer. callback: called in backward with the correlation, the variance over batches,
    that of the projection by FewBit's formula, and the number of the pass, from 1.
    correlation: of the latest pass. variance: (of batches, of the projection) of the latest pass;
    FewBit has the first twice. All nan before the first. step: passes so far.

    What the numbers are: `torch_cgx.activations.projection.variance`, which has the true error of
    the projection, too (`last.expected`). The layer's exact input is kept for it until the backward
    pass is over. TypeError: another layer.
    """

    def __init__(self, model: LinearGRP, callback: ours.Callback | None = None) -> None:
        super().__init__()
        self._estimator = _OfProjection(model, callback)
        self.model = model

    @property
    def last(self) -> ours.Variance | None:
        return self._estimator.last

    @property
    def step(self) -> int:
        return self._estimator.step

    @property
    def correlation(self) -> float:
        return math.nan if self.last is None else self.last.correlation

    @property
    def variance(self) -> tuple[float, float]:
        return (math.nan, math.nan) if self.last is None else (self.last.sgd, self.last.projected)

    def forward(self, *args: Any, **options: Any) -> Tensor:
        found: Tensor = self.model(*args, **options)
        return found


__all__ = ["VarianceEstimator"]
