"""Less memory between the forward and the backward pass of a training on one device.

    from torch_cgx import activations

    print(activations.memory(model, batch).table())       # what backward keeps, and which module
    activations.convert(model, activations=3, norms=True) # modules that keep less
    with activations.compress_saved():                    # everything else in 4 bits
        output = model(batch)
    loss_function(output, targets).backward()              # what the loss saves stays exact

    plan = activations.fit(model, batch, budget="40%")     # or choose for a budget of bytes
    activations.apply(model, plan)

Works without a process group, and together with DistributedDataParallel, FSDP2, autocast,
activation checkpointing and torch.compile.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_cgx.activations import functional
    from torch_cgx.activations.budget.applying import Applied, apply
    from torch_cgx.activations.budget.fit import fit
    from torch_cgx.activations.budget.plan import Plan
    from torch_cgx.activations.conversion.convert import Conversion, convert
    from torch_cgx.activations.few_bit.modules import (
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
        Tanh,
        Tanhshrink,
        Threshold,
    )
    from torch_cgx.activations.layers.dropout import Dropout
    from torch_cgx.activations.layers.gate_modules import GEGLU, ReGLU, SwiGLU
    from torch_cgx.activations.layers.norm_modules import LayerNorm, RMSNorm
    from torch_cgx.activations.projection.modules import Linear
    from torch_cgx.activations.projection.variance import VarianceEstimator, variance
    from torch_cgx.activations.report.memory import memory
    from torch_cgx.activations.report.report import Report
    from torch_cgx.activations.saved import Compression, compress, compress_saved
    from torch_cgx.activations.tables.table import Table

_HOME = {
    "budget.applying": ("Applied", "apply"),
    "budget.fit": ("fit",),
    "budget.plan": ("Plan",),
    "conversion.convert": (
        "Conversion",
        "convert",
    ),
    "few_bit.modules": (
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
        "SiLU",
        "Sigmoid",
        "Softplus",
        "Softshrink",
        "Softsign",
        "Tanh",
        "Tanhshrink",
        "Threshold",
    ),
    "layers.dropout": ("Dropout",),
    "layers.gate_modules": (
        "GEGLU",
        "ReGLU",
        "SwiGLU",
    ),
    "layers.norm_modules": (
        "LayerNorm",
        "RMSNorm",
    ),
    "projection.modules": ("Linear",),
    "projection.variance": ("VarianceEstimator", "variance"),
    "report.memory": ("memory",),
    "report.report": ("Report",),
    "saved": (
        "Compression",
        "compress",
        "compress_saved",
    ),
    "tables.table": ("Table",),
}
_LAZY = {name: module for module, names in _HOME.items() for name in names}
__all__ = [
    "Applied",
    "CELU",
    "Compression",
    "Conversion",
    "Dropout",
    "ELU",
    "GEGLU",
    "GELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "Mish",
    "Plan",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReLU6",
    "Report",
    "SELU",
    "SiLU",
    "Sigmoid",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SwiGLU",
    "Table",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "VarianceEstimator",
    "apply",
    "compress",
    "compress_saved",
    "convert",
    "fit",
    "functional",
    "memory",
    "variance",
]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return importlib.import_module("torch_cgx.activations.functional")
    if name not in _LAZY:
        raise AttributeError(f"module 'torch_cgx.activations' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"torch_cgx.activations.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
