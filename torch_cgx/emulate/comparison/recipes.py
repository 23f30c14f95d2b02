"""Recipes by the names that `compare` takes: fp32, mxfp8, nvfp4-hadamard, cpd43+aps."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_cgx._format_sums import FormatSum, make
from torch_cgx.emulate._format import Format
from torch_cgx.emulate.training.settings import settings

REFERENCE = "fp32"
OPTIONS = ("aps", "kahan")
_MEANS_NOTHING = ("name", "source", "first_last", "layers")  # alone


@dataclasses.dataclass(frozen=True)
class Method:
    """A recipe of a comparison. given: what `emulate.apply` gets; None: it is not called. sums: how
    the gradients of nodes are summed; None: in float32. definition: of all this, as JSON has it.
    """

    name: str
    given: dict[str, Any] | None
    sums: FormatSum | None
    definition: Any

    def sum_bits(self, parameters: Sequence[torch.Tensor]) -> float:
        """Bits of a gradient's value as it is summed; with aps, a float of each tensor besides."""
        assert self.sums is not None
        values = sum(parameter.numel() for parameter in parameters)
        side = 32 * len(parameters) if self.sums.aps else 0
        return self.sums.format.info().bits + side / max(values, 1)


def resolve(asked: Sequence[Any] | Mapping[str, Any]) -> list[Method]:
    """The recipes of these names, or of a mapping from names to recipes (names, dicts, None for
    float32); float32 is the first, asked for or not. ValueError, TypeError: there is no such recipe
    or option, or a name comes twice.
    """
    if isinstance(asked, str):
        raise TypeError(f"recipes={asked!r} is a str; allowed: a list of names, or a dict")
    pairs = list(asked.items()) if isinstance(asked, Mapping) else [(one, one) for one in asked]
    found = [_resolved(name, given) for name, given in pairs]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the recipe {name} is named {names.count(name)} times; allowed: once")
    reference = [one for one in found if one.name == REFERENCE] or [_exact(REFERENCE)]
    return reference + [one for one in found if one.name != REFERENCE]


def _exact(name: str) -> Method:
    return Method(name, None, None, REFERENCE)


def _resolved(name: Any, given: Any) -> Method:
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"recipes has {name!r}; allowed: names of recipes")
    name = name.strip()
    if given is None or (isinstance(given, str) and given.strip() == REFERENCE):
        return _exact(name)
    if name == REFERENCE:
        raise ValueError(f"the recipe {REFERENCE} is the reference; allowed: None, or another name")
    options: tuple[str, ...] = ()
    if isinstance(given, str):
        given, options = _named(given.strip())
    if not isinstance(given, Mapping):
        raise TypeError(f"the recipe {name} is of type {type(given).__name__}; allowed: a dict")
    try:
        settings(given, {}, None, 0)
    except (ValueError, TypeError) as error:
        raise type(error)(f"recipe {name}: {error}") from None
    return _parted(name, dict(given), options)


def _named(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A recipe, without the parts that are named after "-"; the options named after "+"."""
    from torch_cgx import emulate
    from torch_cgx.emulate.training.recipes import without

    words, *options = name.split("+")
    base, *parts = words.split("-")
    for option in options:
        if option not in OPTIONS or options.count(option) > 1:
            raise ValueError(
                f"recipe {name}: {option!r} after +; allowed: {', '.join(OPTIONS)}, each once"
            )
    found = emulate.recipe(base)
    for part in parts:
        found = without(found, part)
    return found, tuple(options)


def _parted(name: str, given: dict[str, Any], options: tuple[str, ...]) -> Method:
    """Sums of gradients are for `compare`, the rest for `emulate.apply`."""
    gradients = given.get("gradients")
    sums = None
    if isinstance(gradients, Mapping) and "aps" in gradients:
        del given["gradients"]
        aps = bool(gradients["aps"]) or "aps" in options
        sums = make(gradients["format"], "kahan" in options, "rank", aps, 1, 1)
    elif options:
        raise ValueError(
            f"recipe {name}: +{options[0]} is for recipes that sum gradients in a format, as cpd43"
        )
    rest = {key: value for key, value in given.items() if key not in _MEANS_NOTHING}
    applied = given if any(value is not None for value in rest.values()) else None
    definition = {"applied": rest if applied else None, "sums": sums}
    if applied:
        definition |= {k: given[k] for k in ("first_last", "layers") if k in given}
    if definition.get("layers"):
        definition["layers"] = {_pattern(k): one for k, one in given["layers"].items()}
    return Method(name, applied, sums, json.loads(json.dumps(definition, default=_plain)))


def _pattern(given: str | re.Pattern[str]) -> str:
    """A key of layers as JSON has it."""
    if isinstance(given, str):
        return given
    return f"{given.pattern}, flags {given.flags}"


def _plain(value: Any) -> Any:
    """An object as JSON has it, equal in all processes."""
    if isinstance(value, Format):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)
