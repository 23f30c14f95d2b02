"""Formats by name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch_cgx import _C
from torch_cgx.emulate._format import Format, facts_of
from torch_cgx.emulate._formats import S2FP8, Block, Fixed, Float, Integer, ZScore


@functools.cache
def _texts() -> dict[str, tuple[str, str]]:
    """Name -> the engine's text, where the format is used."""
    return {name: (text, used) for name, text, used in _C.presets()}


def presets() -> tuple[str, ...]:
    """The names that :func:`preset` knows, in the order of docs/formats.md."""
    return tuple(_texts())


def used(name: str) -> str:
    """Where a named format is used."""
    return _texts()[name][1]


def _float_of(given: dict[str, Any]) -> Float:
    values = {field.name: given[field.name] for field in dataclasses.fields(Float)}
    if values["overflow"] == "default":
        values["overflow"] = None
    return Float(**values)


_CLASSES = {one.family: one for one in (Fixed, Integer, ZScore, S2FP8)}


@functools.cache
def _named(name: str) -> Format:
    facts = facts_of(_texts()[name][0])
    given, family = facts["parameters"], facts["name"]
    if family in _CLASSES:
        return _CLASSES[family](**given)
    element = _float_of(given)
    if family == "float":
        return element
    return Block(element, given["size"], given["scale"], given["scale_rounding"])


def preset(name: str, **changes: Any) -> Format:
    """The format of that name, in any case: ``preset("e4m3fn")``, ``preset("mxfp4",
    scale_rounding="rceil")``. changes: parameters of its class that are to differ; those of a
    Block's element go to the element. An unknown name is a ValueError, a parameter that the class
    lacks a TypeError.
    """
    if not isinstance(name, str) or name.lower() not in _texts():
        raise ValueError(f"format is {name!r}, allowed: {', '.join(presets())}")
    found = _named(name.lower())
    own = {field.name for field in dataclasses.fields(found)}  # type: ignore[arg-type]
    inner = {field.name for field in dataclasses.fields(Float)} - own
    of_element = {
        k: changes.pop(k) for k in list(changes) if k in inner and isinstance(found, Block)
    }
    unknown = sorted(set(changes) - own)
    if unknown:
        allowed = sorted(own | inner if isinstance(found, Block) else own)
        raise TypeError(f"preset({name!r}) got {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    if of_element and isinstance(found, Block):
        changes = {"element": dataclasses.replace(found.element, **of_element), **changes}
    return dataclasses.replace(found, **changes) if changes else found  # type: ignore[type-var]


def __getattr__(name: str) -> Format:
    if name.startswith("_") or name not in _texts():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _named(name)
