"""The names of FewBit, on top of `torch_cgx.activations`::

    from torch_cgx.compat import fewbit

    convert = lambda m: fewbit.GELU() if isinstance(m, nn.GELU) else m
    model = fewbit.map_module(model, convert)
    y = fewbit.functional.silu(x, bits=2)
    layer = fewbit.RandomizedLinear(768, 3072, proj_dim_ratio=0.2)

A program that was written for FewBit runs with this import in place of ``import fewbit``. The text
and code are torch_cgx's own, from a description of FewBit's names and behaviour. What is different,
and where new programs find more: docs/compatibility.md, FewBit's names.

    functional    activation functions, randomized linear functions, gradients that are caught
    modules       the same as modules; VarianceEstimator
    util          map_module, convert_linear, tensors and bytes of a graph
    fft           dct, idct
    approx        functions that are constant between borders, and the best ones for a derivative
"""

from __future__ import annotations

from torch_cgx import __version__
from torch_cgx.compat.fewbit import approx, fft, functional, modules, store, util
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
from torch_cgx.compat.fewbit.util import convert_linear, map_module

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
    "LinearCRS",
    "LinearGRP",
    "LogSigmoid",
    "Mish",
    "RandomizedLinear",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Stepwise",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "VarianceEstimator",
    "__version__",
    "approx",
    "convert_linear",
    "fft",
    "functional",
    "map_module",
    "modules",
    "store",
    "util",
]
