"""FewBit's modules: activation functions, randomized linear layers, VarianceEstimator."""

from __future__ import annotations

from torch_cgx.compat.fewbit.modules import activations, linear, variance
from torch_cgx.compat.fewbit.modules.linear import LinearCRS, LinearGRP, RandomizedLinear
from torch_cgx.compat.fewbit.modules.variance import VarianceEstimator

__all__ = [
    "LinearCRS",
    "LinearGRP",
    "RandomizedLinear",
    "VarianceEstimator",
    "activations",
    "linear",
    "variance",
]
