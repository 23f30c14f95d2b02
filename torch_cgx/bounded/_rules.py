"""Bounds of tensors by name: a default, and overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_cgx._warnings import warn_of_argument
from torch_cgx.bounded._bound import NAMES, bound_of

KINDS = NAMES[1:]
# From regular expressions to a number, a bound of the default's kind, or to {"relative": 1e-3}.
Overrides = Mapping[Any, Any]
_SHOWN = 8


@dataclass(frozen=True)
class Rule:
    """kind: the name of an argument of `compress`; number: its value, 0 for lossless."""

    kind: str
    number: float

    def arguments(self, tensor: torch.Tensor) -> dict[str, float]:
        """Arguments of `compress` for this tensor: none for integers, which are lossless."""
        bounded = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        return {self.kind: self.number} if bounded else {}

    def __str__(self) -> str:
        # With all digits, as ranks compare this text.
        return f"{self.kind}={repr(self.number).removesuffix('.0')}"


@dataclass
class Rules:
    """Rules by name. The last override whose pattern is found in a name (re.search) wins, so an
    exception comes after the pattern that it restricts.
    """

    default: Rule
    overrides: list[tuple[re.Pattern[str], Rule]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        max_error: float | None,
        relative: float | None,
        pointwise: float | None,
        overrides: Overrides | None,
    ) -> Rules:
        """The rules of the arguments of `save`. TypeError, ValueError: not exactly one bound, a
        bound that is not allowed, or a key that is not a regular expression.
        """
        given = dict(zip(KINDS, (max_error, relative, pointwise), strict=True))
        given = {kind: number for kind, number in given.items() if number is not None}
        if not given:
            raise ValueError(
                "a bound is missing: give max_error, relative or pointwise; max_error=0 is lossless"
            )
        default = _rule(given, "the bound")
        if overrides is not None and not isinstance(overrides, Mapping):
            raise TypeError(
                f"overrides is {overrides!r}, expected a dict such as {{r'norm': 0}}: pattern of "
                "names to bound"
            )
        found = []
        for pattern, bound in (overrides or {}).items():
            what = f"overrides[{getattr(pattern, 'pattern', pattern)!r}]"
            if bound is None:
                raise TypeError(
                    f"{what} is None, allowed: a number, 0 for lossless, or a dict with one of "
                    f"{', '.join(KINDS)}"
                )
            rule = _rule(bound if isinstance(bound, Mapping) else {default.kind: bound}, what)
            found.append((_pattern(pattern, what), rule))
        return cls(default, found)

    def rule(self, name: str) -> Rule:
        for pattern, rule in reversed(self.overrides):
            if pattern.search(name):
                return rule
        return self.default

    def rule_of_all(self, names: Iterable[str]) -> Rule:
        """The rule of a tensor with several names, within the bounds of all of them. Bounds of
        different kinds cannot be compared, so they make the tensor lossless.
        """
        rules = [self.rule(name) for name in names]
        least = min(rules, key=lambda rule: rule.number)
        same = len({rule.kind for rule in rules}) == 1
        return least if same or least.number == 0 else Rule("max_error", 0.0)

    def warn_of_unused(self, names: list[str]) -> None:
        """Warns of overrides whose pattern is found in no name: if it is misspelt, tensors get the
        default bound.
        """
        for pattern, rule in self.overrides:
            if not any(pattern.search(name) for name in names):
                shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
                warn_of_argument(
                    f"overrides[{pattern.pattern!r}] ({rule}) is found in no name; the names are "
                    f"{shown or 'none'}"
                )


def _rule(given: Mapping[str, Any], what: str) -> Rule:
    unknown = [kind for kind in given if kind not in KINDS]
    if unknown or len(given) != 1 or any(number is None for number in given.values()):
        raise ValueError(f"{what} is {dict(given)!r}, allowed: one of {', '.join(KINDS)}")
    ((kind, number),) = given.items()
    try:
        arguments = [number if kind == one else None for one in KINDS]
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        return Rule(kind, bound_of(nothing, *arguments).asked)
    except (TypeError, ValueError) as error:
        prefix = "" if what == "the bound" else f"{what}: "
        raise type(error)(f"{prefix}{error}") from None


def _pattern(pattern: Any, what: str) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"{what}: the key is {pattern!r}, expected a regular expression")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{what}: the key is not a regular expression: {error}") from None
