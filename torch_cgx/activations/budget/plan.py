"""What each module keeps: the plan that `fit` returns; it may be saved, edited and given back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_cgx.activations.projection.modules import settings_of
from torch_cgx.activations.saved.codings import coding_of
from torch_cgx.cli.output import size_text, table

VERSION = 1
KEYS = ("activation", "checkpoint", "dropout", "gate", "linear", "norm", "saved")
_TOP = ("version", "budget", "bytes", "time", "error", "modules", "compile", "rows", "notes")
_SHARE = "activation_memory_budget"
_FLAGS = ("dropout", "gate", "norm")
Settings = dict[str, dict[str, Any]]  # of modules by name


class Plan(dict[str, Any]):
    """A dict that JSON takes; str() is a table. Its entries:

    version: 1. budget: bytes.
    modules: {name: settings}, which is what `apply` reads; a module without an entry keeps what it
        keeps. Settings of a module:
        "linear": {"keep": .2, "method": "wta"} or a number, as of `convert`;
        "activation": bits of a few-bit activation function, 1 to 4;
        "saved": a configuration of `compress_saved`, for what the module itself saves;
        "norm", "dropout", "gate": true, as of `convert`;
        "checkpoint": true (torch.utils.checkpoint computes the module again; "saved" is of its
        input then), or "selective" (results of matrix products, convolutions and attention stay).
    compile: None, or {"activation_memory_budget": 0.2}: torch.compile compiles the model's forward
        as a whole, with this part of the activations kept, 0 to 1. `modules` is empty then.
    bytes: kept for backward: "exact" without a plan, "predicted", "measured" with it.
    time: "exact", seconds of a step; "limit", "predicted" and "measured", relative to it.
    error: relative L2 of the gradient of the batch: "predicted", "measured".
    rows: for the table: "modules" that share what they keep, "what" was chosen, "exact" and "bytes"
        of them, and the "error" that this choice alone makes.
    notes: lines below the table.

    `apply` reads nothing but version, modules and compile.
    """

    @property
    def modules(self) -> Settings:
        found: Settings = self["modules"]
        return found

    def __str__(self) -> str:
        cells = [
            [
                _short(row["modules"]),
                row["what"],
                size_text(row["exact"]),
                size_text(row["bytes"]),
                percent(row["error"]),
            ]
            for row in self.get("rows", [])
        ]
        sizes = self.get("bytes", {})
        exact = sizes.get("exact")
        kept = sizes.get("measured", sizes.get("predicted"))
        if exact is None or kept is None:
            rows = [
                [name or "(model)", _words(one)] for name, one in self.get("modules", {}).items()
            ]
            if self.get("compile") is not None:
                rows.append(["(model)", f"compiled, {_words(self['compile'])}"])
            return table(["module", "settings"], rows, left=(0, 1))
        error = self.get("error", {})
        last = error.get("measured", error.get("predicted", 0.0))
        cells.append(["total", "", size_text(exact), size_text(kept), percent(last)])
        head = ["modules", "what is kept", "exact", "bytes", "error"]
        lines = [table(head, cells, left=(0, 1))]
        share = f"{100 * kept / exact:.1f} %" if exact else "-"
        times = self.get("time", {})
        took = times.get("measured", times.get("predicted"))
        limit = f" (limit {times['limit']:g})" if times.get("limit") is not None else ""
        lines.append(
            f"{share} of the bytes (budget {size_text(self['budget'])}), "
            + ("" if took is None else f"{took:.2f} of the time of a step{limit}, ")
            + f"error of the gradient {percent(last)}"
        )
        return "\n".join([*lines, *self.get("notes", [])])


def _short(names: list[str]) -> str:
    shown = [name or "(model)" for name in names]
    return ", ".join(shown[:3]) + (f", ... ({len(shown)})" if len(shown) > 3 else "")


def percent(error: float) -> str:
    return f"{100 * error:.2g} %" if error else "0"


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in settings.items())


def checked(plan: Any) -> Settings:
    """The settings of a plan. TypeError: no dict. ValueError names the key or value that is not
    allowed.
    """
    if not isinstance(plan, Mapping):
        raise TypeError(f"plan is of type {type(plan).__name__}; allowed: a Plan, a dict")
    _only(plan, _TOP, "plan")
    if plan.get("version", VERSION) != VERSION:
        raise ValueError(f"the plan's version is {plan['version']!r}; allowed: {VERSION}")
    modules = plan.get("modules")
    if not isinstance(modules, Mapping):
        raise ValueError(f"the plan's modules are {modules!r}; allowed: a dict of names of modules")
    found = {name: _settings(name, one) for name, one in modules.items()}
    if share_of(plan) is not None and found:
        raise ValueError(
            f"the plan has 'compile', and modules has {next(iter(found))!r}; allowed: no modules "
            "beside 'compile', since those of a graph are not told apart"
        )
    return found


def share_of(plan: Mapping[str, Any]) -> float | None:
    """The part of the activations that a compiled model keeps. None: the plan compiles nothing.
    ValueError names what is not allowed.
    """
    given = plan.get("compile")
    if given is None:
        return None
    share = given.get(_SHARE) if isinstance(given, Mapping) and set(given) == {_SHARE} else None
    is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if share is None or not is_number or not 0 <= share <= 1:
        raise ValueError(
            f"the plan's compile is {given!r}; allowed: None, {{{_SHARE!r}: a number from 0 to 1}}"
        )
    return float(share)


def _settings(name: Any, given: Any) -> dict[str, Any]:
    where = f"modules[{name!r}]"
    if not isinstance(name, str) or not isinstance(given, Mapping):
        raise ValueError(f"{where} is {given!r}; allowed: a name and a dict of settings")
    _only(given, KEYS, where)
    for key in _FLAGS:
        if key in given and given[key] is not True:
            raise ValueError(f"{where}[{key!r}]={given[key]!r}; allowed: True, or no entry")
    again = given.get("checkpoint", True)
    if again is not True and again != "selective":
        raise ValueError(
            f"{where}['checkpoint']={again!r}; allowed: True, 'selective', or no entry"
        )
    bits = given.get("activation", 1)
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 4:
        raise ValueError(f"{where}['activation']={bits!r}; allowed: integers from 1 to 4")
    for key, check in (("linear", _linear), ("saved", _saved)):
        if key in given:
            try:
                check(given[key], f"{where}[{key!r}]")
            except TypeError as error:
                raise ValueError(str(error)) from None
    return {key: dict(one) if isinstance(one, Mapping) else one for key, one in given.items()}


def _linear(given: Any, where: str) -> None:
    settings_of(dict(given) if isinstance(given, Mapping) else given, where)


def _saved(given: Any, where: str) -> None:
    if not isinstance(given, (Mapping, str)):
        raise ValueError(f"{where}={given!r}; allowed: a configuration of compress_saved, no entry")
    coding_of(given, where)


def _only(given: Mapping[Any, Any], allowed: tuple[str, ...], where: str) -> None:
    unknown = [key for key in given if key not in allowed]
    if unknown:
        raise ValueError(f"{where} has {unknown[0]!r}; allowed: {', '.join(allowed)}")
