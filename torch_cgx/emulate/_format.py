"""Formats of numbers as objects: what `cast` takes. The engine's declarations (csrc/codec/casts)
have their parameters, allowed values and rules; these classes are their names in Python.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from torch_cgx import _C
from torch_cgx._constant import constant

if TYPE_CHECKING:
    from torch_cgx.emulate._info import Info


@constant
def facts_of(text: str) -> dict[str, Any]:
    """What the engine says of the format that has this text."""
    found: dict[str, Any] = _C.cast_facts(text)
    return found


class Format:
    """A format of numbers and how values become numbers of it. Formats are values: equal ones
    compare equal, and they can be hashed, pickled and copied. Its subclasses are frozen
    dataclasses.
    """

    family: ClassVar[str]  # the engine's name of the class
    axis: Any = -1  # the dimension along which values belong together
    text = ""
    """The engine's text of the format."""

    def __post_init__(self) -> None:
        self._set_text(self._parameters())

    def _parameters(self) -> dict[str, Any]:
        """The engine's parameters, by name."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    def _set_text(self, parameters: dict[str, Any]) -> None:
        text = _C.cast_text(f"{type(self).__name__}: ", self.family, parameters)
        object.__setattr__(self, "text", text)

    def __str__(self) -> str:
        return self.text

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine says of the format."""
        return facts_of(self.text)

    @property
    def elementwise(self) -> bool:
        """Whether a value's result depends on the value alone."""
        return bool(self.facts["elementwise"])

    @property
    def by_channels(self) -> bool:
        """Whether values with one number in the dimension `axis` belong together."""
        return bool(self.facts["by_channels"])

    @property
    def stochastic(self) -> bool:
        """Whether it draws random numbers."""
        return bool(self.facts["stochastic"])

    def info(self, x: torch.Tensor | None = None) -> Info:
        """What the format costs and holds: see `Info`. x: the tensor whose bits are counted, with
        the scales of its blocks; None: a tensor of whole blocks, without what a whole tensor
        shares. TypeError: x is no tensor that `cast` takes.
        """
        from torch_cgx.emulate._info import info_of

        return info_of(self, x)


def check_format(format: object) -> Format:
    """TypeError, ValueError: it is no Format and no name of one."""
    if isinstance(format, Format):
        return format
    if isinstance(format, str):
        from torch_cgx.emulate._presets import preset

        return preset(format)
    raise TypeError(
        f"format is {format!r}, allowed: a format of torch_cgx.emulate, as Float(4, 3), or a name, "
        'as "e4m3fn"'
    )


class Way(NamedTuple):
    """How `cast` calls the operators. axis: the dimension to move to where the engine has its
    blocks or, by_channels, its channels; None: it is there.
    """

    text: str
    axis: int | None
    by_channels: bool


def way_of(format: Format | str) -> Way:
    """Errors as `check_format`."""
    if torch.compiler.is_compiling():
        return _traced_way(format)
    return _way(check_format(format))


def _way(format: Format) -> Way:
    axis = format.axis
    if not isinstance(axis, int):
        return Way(format.text, None, False)
    home = 0 if format.by_channels else -1
    return Way(format.text, None if axis == home else axis, format.by_channels)


@constant
def _traced_way(format: Format | str) -> Way:
    return _way(check_format(format))
