"""FewBit's modules: activation functions, randomized linear layers, VarianceEstimator."""

from __future__ import annotations

from torch_cgx.compat.fewbit.modules import activations, linear, variance
from torch_cgx.compat.fewbit.modules.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softplus,
    Softshrink,
    Softsign,
    Stepwise,
    Tanh,
    Tanhshrink,
    Threshold,
)
from torch_cgx.compat.fewbit.modules.linear import LinearCRS, LinearGRP, RandomizedLinear
from torch_cgx.compat.fewbit.modules.variance import VarianceEstimator

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "SiLU",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Stepwise",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "LinearCRS",
    "LinearGRP",
    "RandomizedLinear",
    "VarianceEstimator",
    "activations",
    "linear",
    "variance",
]
