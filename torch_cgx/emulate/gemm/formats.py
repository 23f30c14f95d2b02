"""Which formats the operands of a GEMM have, forward and backward, as data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from torch_cgx._constant import constant
from torch_cgx.emulate._format import Format, check_format
from torch_cgx.emulate._formats import Block, Float, Integer
from torch_cgx.emulate._presets import preset, presets
from torch_cgx.emulate.gemm.product import Accumulation

OPERANDS = (
    *("forward.input", "forward.weight", "dgrad.gradient"),
    *("dgrad.weight", "wgrad.gradient", "wgrad.input"),
)
"""y = input weight^T (forward), the gradient of the input = gradient weight (dgrad), the gradient
of the weight = gradient^T input (wgrad)."""
_PARTS = {"forward": ("input", "weight"), "dgrad": ("gradient", "weight")}
_PARTS["wgrad"] = ("gradient", "input")
_OTHERS = ("hadamard", "accumulate", "kahan", "order", "block")
SCALES = ("current", "delayed")


@dataclasses.dataclass(frozen=True)
class Scaled:
    """A float format times a scale of the whole tensor, by which the greatest magnitude becomes the
    format's largest number over 2^margin.

    scale: "current": of the tensor's own greatest magnitude; "delayed": of the greatest of the last
    `history` tensors in this place, as Transformer Engine's DelayedScaling has it; 1 before the
    first. Values beyond the largest number saturate, unless the format says otherwise. A recipe has
    it as a dict: {"format": "e4m3fn", "scale": "delayed", "history": 1024}.
    """

    format: Float
    scale: str
    history: int = 1024
    margin: int = 0

    def __str__(self) -> str:
        return f"{self.format} scale={self.scale}"


OperandFormat = Format | Scaled


def name_of(format: OperandFormat) -> str:
    """As in "mxfp4", "nvfp4 16x16", "nvfp4 stochastic", "e4m3fn delayed"; the format's text where
    no preset is like it.
    """
    if isinstance(format, Scaled):
        own = format.format
        plain = dataclasses.replace(own, overflow=None) if own.overflow == "saturate" else own
        return f"{name_of(plain)} {format.scale}"
    like, more = format, []
    if isinstance(like, Block):
        if isinstance(like.axis, tuple):
            more.append(f"{like.axis[0]}x{like.axis[1]}")
        if like.scale_rounding != "floor":
            more.append(like.scale_rounding)
        like = dataclasses.replace(like, axis=-1, scale_rounding="floor")
    if format.stochastic:
        more.append("stochastic")
        like = nearest(like)
    known = _named().get(like.text)
    return format.text if known is None else " ".join([known, *more])


def nearest(format: Format) -> Format:
    """A stochastic format with rounding to nearest."""
    if isinstance(format, Block):
        element = dataclasses.replace(format.element, rounding="nearest")
        return dataclasses.replace(format, element=element)
    return dataclasses.replace(format, rounding="nearest")  # type: ignore[type-var]


@functools.cache
def _named() -> dict[str, str]:
    return {preset(name).text: name for name in presets()}


def _scaled(given: Mapping[str, Any], where: str) -> Scaled:
    names = [field.name for field in dataclasses.fields(Scaled)]
    unknown = sorted(set(given) - set(names), key=str)
    if unknown or not {"format", "scale"} <= set(given):
        raise ValueError(
            f"{where}={dict(given)!r}; allowed: a format, or a dict with format and scale, and "
            "history and margin"
        )
    format = check_format(given["format"])
    if not isinstance(format, Float) or format.variant in ("scale", "cpd"):
        raise ValueError(f"{where}: format={format}; allowed with a scale: a Float, as 'e4m3fn'")
    if given["scale"] not in SCALES:
        raise ValueError(f"{where}: scale={given['scale']!r}; allowed: {', '.join(SCALES)}")
    if format.overflow is None:  # values beyond a delayed scale's range, as hardware has it
        format = dataclasses.replace(format, overflow="saturate")
    found = Scaled(**{**given, "format": format})
    for name, least in (("history", 1), ("margin", 0)):
        value = getattr(found, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{where}: {name}={value!r}; allowed: integers from {least}")
    return found


def operand_format(given: Any, where: str) -> OperandFormat | None:
    """A format, the name of one, a dict of `Scaled`, or None: exact. ValueError, TypeError."""
    if given is None or isinstance(given, Scaled):
        return given
    if isinstance(given, Mapping):
        return _scaled(given, where)
    try:
        return check_format(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None


@dataclasses.dataclass(frozen=True)
class GemmFormats:
    """What the GEMMs of a layer round. operands: by the names in OPERANDS; without an entry an
    operand is exact. hadamard: the size of the random Hadamard transform along the contraction of
    wgrad, a power of two of 2 to 256; 0: none. accumulation: of all three GEMMs.
    """

    operands: tuple[tuple[str, OperandFormat], ...] = ()
    hadamard: int = 0
    accumulation: Accumulation = Accumulation()

    @functools.cached_property
    def by_name(self) -> dict[str, OperandFormat]:
        return dict(self.operands)

    def __str__(self) -> str:
        groups: dict[str, list[str]] = {}
        for operand, format in self.operands:
            groups.setdefault(name_of(format), []).append(operand)
        rows = [
            format if len(names) == len(OPERANDS) else f"{', '.join(names)}: {format}"
            for format, names in groups.items()
        ]
        if self.hadamard:
            rows.append(f"hadamard {self.hadamard}")
        if not self.accumulation.fp32:
            rows.append(f"accumulate {self.accumulation.accumulate}")
        return "; ".join(rows) or "exact"

    @property
    def exact(self) -> bool:
        return not self.operands and self.accumulation.fp32

    def current(self) -> GemmFormats:
        """With scales of the tensor itself in the place of delayed ones."""
        operands = tuple(
            (name, dataclasses.replace(one, scale="current") if isinstance(one, Scaled) else one)
            for name, one in self.operands
        )
        return GemmFormats(operands, self.hadamard, self.accumulation)

    def only(self, operands: set[str]) -> GemmFormats:
        """With these operands alone, and without a format of accumulation."""
        kept = tuple(pair for pair in self.operands if pair[0] in operands)
        hadamard = self.hadamard if any(name.startswith("wgrad") for name, _ in kept) else 0
        return GemmFormats(kept, hadamard)


def gemm_formats(given: Any, where: str = "gemm") -> GemmFormats:
    """Of what a recipe has: a format for all six operands, or a dict:

    {"forward": F, "dgrad": F, "wgrad": F}, where F is a format or a dict by operand ("input",
    "weight", "gradient"); or {"input": format, "weight": format, "gradient": format}, for all GEMMs
    that have the operand. Besides "hadamard", "accumulate", "kahan", "order", "block". ValueError,
    TypeError.
    """
    if isinstance(given, GemmFormats):
        return given
    if not isinstance(given, Mapping) or "format" in given:
        given = dict.fromkeys(_PARTS, operand_format(given, where))
    short = {"input", "weight", "gradient"}
    unknown = sorted(set(given) - {*_PARTS, *short, *_OTHERS}, key=str)
    if unknown or (short & set(given) and set(_PARTS) & set(given)):
        raise ValueError(
            f"{where} has the keys {', '.join(map(str, given))}; allowed: forward, dgrad, wgrad, "
            f"or input, weight, gradient; and {', '.join(_OTHERS)}"
        )
    found: dict[str, Any] = {}
    for part, operands in _PARTS.items():
        one = given if short & set(given) else given.get(part)
        if not isinstance(one, Mapping) or "format" in one:
            one = dict.fromkeys(operands, one)
        elif one is not given and set(one) - set(operands):
            raise ValueError(
                f"{where}[{part!r}] has the keys {', '.join(map(str, one))}; allowed: "
                f"{', '.join(operands)}"
            )
        for name in operands:
            format = operand_format(one.get(name), f"{where}[{part!r}][{name!r}]")
            if format is not None:
                found[f"{part}.{name}"] = format
    return GemmFormats(tuple(found.items()), _hadamard(given, where), _accumulation(given))


def _hadamard(given: Mapping[str, Any], where: str) -> int:
    size = given.get("hadamard", 0)
    ok = isinstance(size, int) and not isinstance(size, bool)
    if not ok or (size != 0 and (size not in range(2, 257) or size & (size - 1))):
        raise ValueError(f"{where}: hadamard={size!r}; allowed: 0, powers of two of 2 to 256")
    return int(size)


def _accumulation(given: Mapping[str, Any]) -> Accumulation:
    names = ("accumulate", "kahan", "order", "block")
    return Accumulation(**{name: given[name] for name in names if name in given})


@constant
def along(format: Format, axis: int) -> Format:
    """The format with its blocks or rows along a dimension; formats with rectangles of blocks, of
    channels or of whole tensors are as they are.
    """
    if isinstance(format, Block) and isinstance(format.axis, int):
        return dataclasses.replace(format, axis=axis)
    if isinstance(format, Integer) and format.per in ("row", "block"):
        return dataclasses.replace(format, axis=axis)
    return format


def by_axis(format: OperandFormat) -> bool:
    """Whether a cast depends on the dimension that values belong together along."""
    if isinstance(format, Block):
        return isinstance(format.axis, int)
    return isinstance(format, Integer) and format.per in ("row", "block")
