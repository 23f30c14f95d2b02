"""Emulation of formats of numbers: what tensors would be in them, exact and at memory speed.

    from torch_cgx import emulate

    y = emulate.cast(x, "mxfp4")                  # or emulate.mxfp4, emulate.Float(4, 3), ...
    y, what = emulate.cast(x, emulate.e4m3fn, statistics=True)
    print(what.sqnr, emulate.mxfp4.info(x).bits)  # decibels; bits per value with scales

Needs no process group and no GPU. docs/formats.md has the formats, docs/emulation.md the uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_cgx.emulate import _presets, _vmap
from torch_cgx.emulate._cast import cast, cast_ste
from torch_cgx.emulate._format import Format
from torch_cgx.emulate._formats import S2FP8, Block, Fixed, Float, Integer, ZScore
from torch_cgx.emulate._info import Info
from torch_cgx.emulate._presets import preset, presets
from torch_cgx.emulate._statistics import Statistics

__all__ = [
    "S2FP8",
    "Block",
    "Fixed",
    "Float",
    "Format",
    "Info",
    "Integer",
    "Statistics",
    "ZScore",
    "cast",
    "cast_ste",
    "preset",
    "presets",
]

if not TYPE_CHECKING:  # emulate.e4m3fn, emulate.mxfp4, ...

    def __getattr__(name: str) -> Any:
        try:
            return getattr(_presets, name)
        except AttributeError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        return sorted([*__all__, *presets()])


del _vmap
