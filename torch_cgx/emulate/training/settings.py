"""What `apply` is told, checked as a whole before anything is changed."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from torch_cgx.emulate._format import Format, check_format
from torch_cgx.emulate._formats import Float
from torch_cgx.emulate.gemm.formats import GemmFormats, gemm_formats
from torch_cgx.emulate.training.recipes import KEYS, MEMORY, recipe

FirstLast = tuple[int | float, int | float]


@dataclasses.dataclass(frozen=True)
class MemoryFormat:
    """format: of tensors of one kind. excepted: names of classes of modules whose parameters stay
    exact. aps: shifts each gradient into the format's range first.
    """

    format: Format
    excepted: tuple[str, ...] = ()
    aps: bool = False


@dataclasses.dataclass(frozen=True)
class Settings:
    """gemm: None where GEMMs are exact. layers: (pattern of names, formats or None) in the order in
    which they are looked at. first_last: how many of the first and last GEMM layers stay exact,
    integers, or shares of all of them. memory: by kind.
    """

    recipe: dict[str, Any]
    gemm: GemmFormats | None
    layers: tuple[tuple[re.Pattern[str], GemmFormats | None], ...]
    first_last: FirstLast
    memory: dict[str, MemoryFormat]
    filter: re.Pattern[str] | None
    seed: int

    def takes(self, name: str) -> bool:
        return self.filter is None or self.filter.search(name) is not None


def settings(
    given: str | Mapping[str, Any] | None,
    changes: Mapping[str, Any],
    filter: str | re.Pattern[str] | None,
    seed: int,
) -> Settings:
    """changes: arguments of `apply` that replace the recipe's entries, without those that are None.
    ValueError, TypeError.
    """
    if given is None:
        found: dict[str, Any] = {}
    elif isinstance(given, Mapping):
        found = dict(given)
    elif isinstance(given, str):
        found = recipe(given)
    else:
        raise TypeError(f"recipe is of type {type(given).__name__}; allowed: a name, a dict, None")
    unknown = sorted(set(found) - set(KEYS), key=str)
    if unknown:
        raise ValueError(f"the recipe has the key {unknown[0]!r}; allowed: {', '.join(KEYS)}")
    found.update(changes)
    gemm = found.get("gemm")
    memory = {kind: _memory(kind, found[kind]) for kind in MEMORY if found.get(kind) is not None}
    formats = None if gemm is None else gemm_formats(gemm)
    layers = _layers(found.get("layers"))
    if (formats is None or formats.exact) and not memory and not layers:
        raise ValueError(
            f"nothing would be cast; allowed: recipe=, or formats for gemm, {', '.join(MEMORY)}"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed!r}; allowed: integers of 0 to 2**63 - 1")
    ends = _first_last(found.get("first_last", "exact"))
    return Settings(found, formats, layers, ends, memory, _pattern("filter", filter), seed)


def _pattern(where: str, given: Any) -> re.Pattern[str] | None:
    if given is None:
        return None
    try:
        return re.compile(given)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"{where}={given!r} is no regular expression, allowed: a pattern of names: {error}"
        ) from None


def _layers(given: Any) -> tuple[tuple[re.Pattern[str], GemmFormats | None], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise TypeError(
            f"layers is of type {type(given).__name__}; allowed: a dict of regular expressions of "
            "layers' names and formats of their GEMMs, or 'exact'"
        )
    found = []
    for pattern, one in given.items():
        where = f"layers[{pattern!r}]"
        compiled = _pattern("a key of layers", pattern)
        assert compiled is not None
        exact = one is None or one == "exact"
        found.append((compiled, None if exact else gemm_formats(one, where)))
    return tuple(found)


def _first_last(given: Any) -> FirstLast:
    if given == "exact":
        return (1, 1)
    if given == "cast":
        return (0, 0)
    ok = isinstance(given, (tuple, list)) and len(given) == 2
    if not ok or not all(_is_count(one) for one in given):
        raise ValueError(
            f"first_last={given!r}; allowed: 'exact' (one each), 'cast' (none), or a pair of "
            "numbers of layers, or of shares below 1 of them"
        )
    return (given[0], given[1])


def _is_count(one: Any) -> bool:
    if isinstance(one, bool) or not isinstance(one, (int, float)) or not math.isfinite(one):
        return False
    return one >= 0 and (isinstance(one, int) or one < 1)


def exact_ends(ends: FirstLast, layers: int) -> tuple[int, int]:
    """Numbers of the first and last layers that stay exact; shares are rounded up."""
    first, last = (
        # 0.07 of 100 layers are 7, whose product is 7.000000000000001
        one if isinstance(one, int) else math.ceil(round(one * layers, 9))
        for one in ends
    )
    return first, last


def _memory(kind: str, given: Any) -> MemoryFormat:
    if isinstance(given, MemoryFormat):
        return given
    if not isinstance(given, Mapping):
        given = {"format": given}
    allowed = {"weights": ("format", "except"), "gradients": ("format", "aps")}
    keys = allowed.get(kind, ("format",))
    if "format" not in given or set(given) - set(keys):
        raise ValueError(
            f"{kind} has the keys {', '.join(map(str, given))}; allowed: {', '.join(keys)}"
        )
    try:
        format = check_format(given["format"])
    except (TypeError, ValueError) as error:
        raise type(error)(f"{kind}: {error}") from None
    aps, excepted = given.get("aps", False), given.get("except", ())
    if not isinstance(aps, bool):
        raise TypeError(f"{kind}: aps={aps!r}; allowed: True, False")
    if aps and not isinstance(format, Float):
        raise ValueError(f"{kind}: aps=True with {format}; allowed: a Float, which has a range")
    listed = isinstance(excepted, (list, tuple, set, frozenset))
    if not listed or not all(isinstance(one, str) for one in excepted):
        raise TypeError(f"{kind}: except={excepted!r}; allowed: a list of names of classes")
    return MemoryFormat(format, tuple(excepted), aps)
