"""Emulation of formats of numbers: what tensors would be in them, exact and at memory speed.

    from torch_cgx import emulate

    y = emulate.cast(x, "mxfp4")                  # or emulate.mxfp4, emulate.Float(4, 3), ...
    y, what = emulate.cast(x, emulate.e4m3fn, statistics=True)
    print(what.sqnr, emulate.mxfp4.info(x).bits)  # decibels; bits per value with scales

    emulation = emulate.apply(model, optimizer, "mxfp8")   # trains as if GEMMs rounded
    y = emulate.matmul(a, b, inputs="e4m3fn", accumulate="hopper14")

Needs no process group and no GPU. docs/formats.md has the formats, docs/emulation.md the uses,
docs/emulated_training.md models and trainings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_cgx.emulate import _presets, _vmap
from torch_cgx.emulate._cast import cast, cast_ste
from torch_cgx.emulate._format import Format
from torch_cgx.emulate._formats import S2FP8, Block, Fixed, Float, Integer, ZScore
from torch_cgx.emulate._info import Info
from torch_cgx.emulate._presets import preset, presets
from torch_cgx.emulate._statistics import Statistics

if TYPE_CHECKING:
    from torch_cgx.emulate.comparison import Comparison, Task, compare
    from torch_cgx.emulate.gemm.layers import QuantConv2d, QuantLinear
    from torch_cgx.emulate.gemm.matmul import matmul
    from torch_cgx.emulate.gemm.product import Accumulation
    from torch_cgx.emulate.insight.blame import Blame, blame
    from torch_cgx.emulate.insight.choose import Choice, choose
    from torch_cgx.emulate.insight.heat_map import heat_map
    from torch_cgx.emulate.training.emulation import Emulation, apply
    from torch_cgx.emulate.training.ledger import Ledger
    from torch_cgx.emulate.training.recipes import recipe, recipes, without

_HOME = {
    "comparison": ("Comparison", "Task", "compare"),
    "gemm.layers": ("QuantConv2d", "QuantLinear"),
    "gemm.matmul": ("matmul",),
    "gemm.product": ("Accumulation",),
    "insight.blame": ("Blame", "blame"),
    "insight.choose": ("Choice", "choose"),
    "insight.heat_map": ("heat_map",),
    "training.emulation": ("Emulation", "apply"),
    "training.ledger": ("Ledger",),
    "training.recipes": ("recipe", "recipes", "without"),
}
_LAZY = {name: module for module, names in _HOME.items() for name in names}
__all__ = [
    "Accumulation",
    "Blame",
    "Block",
    "Choice",
    "Comparison",
    "Emulation",
    "Fixed",
    "Float",
    "Format",
    "Info",
    "Integer",
    "Ledger",
    "QuantConv2d",
    "QuantLinear",
    "S2FP8",
    "Statistics",
    "Task",
    "ZScore",
    "apply",
    "blame",
    "cast",
    "cast_ste",
    "choose",
    "compare",
    "heat_map",
    "matmul",
    "preset",
    "presets",
    "recipe",
    "recipes",
    "without",
]

if not TYPE_CHECKING:  # emulate.e4m3fn, emulate.mxfp4, ...

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            module = importlib.import_module(f"torch_cgx.emulate.{_LAZY[name]}")
            value = globals()[name] = getattr(module, name)
            return value
        try:
            return getattr(_presets, name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted([*__all__, *presets()])


del _vmap
