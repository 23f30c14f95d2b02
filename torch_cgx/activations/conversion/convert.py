"""`convert`: puts modules that keep less for backward in the place of others."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_cgx.activations.conversion.replaceable import Found, Wanted, new_function, replacement
from torch_cgx.activations.layers.norm_modules import CastRMSNorm, LayerNorm, RMSNorm
from torch_cgx.activations.projection.function import Settings
from torch_cgx.activations.projection.modules import settings_of

Filter = Callable[[str, nn.Module], bool]
_UNUSED = ("act_fn", "down_proj")  # children that a converted gated MLP does not call
_NORMS = (LayerNorm, RMSNorm, CastRMSNorm)  # which keep their result


class Replaced(NamedTuple):
    """name: of the module, as in named_modules; of a function, the attribute that holds it.
    old, new: names of classes or functions."""

    name: str
    old: str
    new: str


class Left(NamedTuple):
    """A module of a kind that was looked for, and the reason why it stayed."""

    name: str
    old: str
    reason: str


@dataclass
class Conversion:
    """What `convert` did. replaced: rows (name, old class, new class); left: rows (name, class,
    reason). str() is a table of both."""

    model: nn.Module
    replaced: list[Replaced] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    _children: list[tuple[dict[str, Any], str, nn.Module, nn.Module]] = field(
        default_factory=list, repr=False
    )
    _functions: list[tuple[nn.Module, Any, Any]] = field(default_factory=list, repr=False)
    _classes: dict[int, type[nn.Module]] = field(default_factory=dict, repr=False)

    def restore(self) -> None:
        """Puts the originals back, with the parameters, training mode, hooks and other attributes
        of now. What has been replaced since by something else stays. A second call changes
        nothing."""
        for children, key, old, new in self._children:
            # Another class: something has since been made of it, such as a parametrization.
            if children.get(key) is new and type(new) is self._classes[id(new)]:
                children[key] = old
                old.__dict__.update({k: v for k, v in new.__dict__.items() if k in old.__dict__})
        for layer, old_one, new_one in self._functions:
            if layer.activation is new_one:
                layer.activation = old_one
        self._children, self._functions = [], []

    def __str__(self) -> str:
        rows = [(name, old, f"-> {new}") for name, old, new in self.replaced]
        rows += [(name, old, f"left: {reason}") for name, old, reason in self.left]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        lines = [f"{name:{widths[0]}}  {old:{widths[1]}}  {what}" for name, old, what in rows]
        return "\n".join([f"{len(self.replaced)} replaced, {len(self.left)} left", *lines])


def convert(
    model: nn.Module,
    *,
    activations: int | None = None,
    norms: bool = False,
    dropout: bool = False,
    gates: bool = False,
    linear: float | Mapping[str, Any] | None = None,
    pattern: str | re.Pattern[str] | None = None,
    filter: Filter | None = None,
) -> Conversion:
    """Replaces modules inside `model` by modules with the same forward that keep less for backward.

    activations: bits (1 to 4) of the derivative of activation functions, 1 for step functions:
        torch.nn's, transformers.activations' and the `activation` of torch.nn's transformer layers.
    norms: LayerNorm, RMSNorm and the RMS norms of Llama-like models keep their output.
    dropout: torch.nn.Dropout keeps its random key.
    gates: MLPs with gate_proj, up_proj, act_fn and a plain down_proj keep the two inputs of the
    product.
    linear: torch.nn.Linear keeps this part of its input (activations.Linear), 0.2 or so; or a dict
        of keep, method, by and rows.
    pattern: regular expression of the names of linear layers (`re.search`); None: all.
    filter: called with the name and the module; False leaves the module as it is.

    Classes derived from known ones are replaced if they do not override forward. Modules of other
    libraries are run on a small probe first. Parameters, names of the state dict, hooks, training
    mode and ties stay: a module used in two places is replaced by one module in both. Outputs stay
    bit for bit, except for the tanh forms of GELU that transformers writes out (one rounding).

    Everything is checked before anything is changed. ValueError: bits outside 1 to 4, a `linear` or
    `pattern` that is not allowed, a pattern that matches no linear layer's name, nothing to
    convert, a model that is itself such a module (nothing holds it), a ScriptModule, a model
    wrapped by FullyShardedDataParallel. TypeError: arguments of other types.
    """
    wanted = _checked(model, activations, norms, dropout, gates, filter, (linear, pattern))
    conversion = Conversion(model)
    _plan_modules(conversion, wanted, filter)
    _plan_functions(conversion, wanted, filter)
    _sort(conversion)
    if not conversion.replaced:
        left = "".join(f"; left {name} ({old}): {why}" for name, old, why in conversion.left[:5])
        raise ValueError(
            f"{type(model).__name__} has nothing to convert; looked for: {wanted}{left}"
        )
    for children, key, _, new in conversion._children:
        children[key] = new
        conversion._classes[id(new)] = type(new)
    for layer, _, new_one in conversion._functions:
        layer.activation = new_one
    return conversion


def _checked(
    model: Any,
    activations: Any,
    norms: Any,
    dropout: Any,
    gates: Any,
    filter: Any,
    linear: tuple[Any, Any],
) -> Wanted:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed: torch.nn.Module")
    if activations is not None and (
        not isinstance(activations, int)
        or isinstance(activations, bool)
        or not 1 <= activations <= 4
    ):
        raise ValueError(f"activations={activations!r}; allowed: None, integers from 1 to 4")
    for name, value in {"norms": norms, "dropout": dropout, "gates": gates}.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}; allowed: True, False")
    if filter is not None and not callable(filter):
        raise TypeError(f"filter={filter!r}; allowed: None, a function of a name and a module")
    kept, pattern = _checked_linear(*linear)
    if activations is None and kept is None and not (norms or dropout or gates):
        raise ValueError("nothing asked for; allowed: activations, norms, dropout, gates, linear")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("model is a torch.jit.ScriptModule, which is compiled; convert it before")
    for module in model.modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise ValueError("model is wrapped by FullyShardedDataParallel; convert it before")
    if pattern is not None:
        _check_matches(model, pattern)
    wanted = Wanted(activations, norms, dropout, gates, kept, pattern)
    if isinstance(replacement(model, wanted), nn.Module):
        raise ValueError(
            f"model is itself a {type(model).__name__}, and no module holds it; allowed: a module "
            "that contains what is to be replaced, such as torch.nn.Sequential(model)"
        )
    return wanted


def _checked_linear(linear: Any, pattern: Any) -> tuple[Settings | None, re.Pattern[str] | None]:
    kept = None
    if linear is not None:
        linear = dict(linear) if isinstance(linear, Mapping) else linear
        kept = settings_of(linear, "linear")
    if pattern is None:
        return kept, None
    if kept is None:
        raise ValueError(f"pattern={pattern!r} without linear; allowed: with linear, as 0.2")
    written = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(written, str):
        raise TypeError(f"pattern={pattern!r}; allowed: None, a regular expression of str")
    try:
        return kept, re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern={pattern!r} is not a regular expression: {error}") from None


def _check_matches(model: nn.Module, pattern: re.Pattern[str]) -> None:
    modules = model.named_modules(remove_duplicate=False)  # all names of a module
    names = [name for name, one in modules if isinstance(one, nn.Linear)]
    if not any(pattern.search(name) for name in names):
        more = ", ..." if len(names) > 12 else ""
        raise ValueError(
            f"pattern={pattern.pattern!r} matches no linear layer; the model has: "
            f"{', '.join(names[:12]) or 'none'}{more}"
        )


class _Place(NamedTuple):
    """after: the next module, where the parent is a Sequential."""

    name: str
    children: dict[str, Any]
    key: str
    after: nn.Module | None


def _is_changed(place: _Place) -> bool:
    """Whether the module behind a place writes to its input, as ReLU(inplace=True) does."""
    return getattr(place.after, "inplace", False) is True


def _places(model: nn.Module) -> dict[nn.Module, list[_Place]]:
    """Where the modules are. The act_fn of a gated MLP that is replaced is told apart by the
    caller."""
    places: dict[nn.Module, list[_Place]] = {}
    for path, parent in model.named_modules():
        if isinstance(parent, torch.jit.ScriptModule):
            continue
        keys = list(parent._modules) if isinstance(parent, nn.Sequential) else []
        following = {key: parent._modules[after] for key, after in itertools.pairwise(keys)}
        for key, child in parent._modules.items():
            if child is not None:
                name = f"{path}.{key}" if path else key
                after = following.get(key)
                places.setdefault(child, []).append(_Place(name, parent._modules, key, after))
    return places


def _sort(conversion: Conversion) -> None:
    """Rows in the order of named_modules; a function comes after the module that holds it."""
    modules = conversion.model.named_modules(remove_duplicate=False)
    order = {name: number for number, (name, _) in enumerate(modules)}

    def number(row: Replaced | Left) -> int:
        return order.get(row.name, order.get(row.name.rpartition(".")[0], 0))

    conversion.replaced.sort(key=number)
    conversion.left.sort(key=number)


def _plan_modules(conversion: Conversion, wanted: Wanted, filter: Filter | None) -> None:
    unused: set[int] = set()  # children of modules that no longer call these
    for old, places in _places(conversion.model).items():
        calling = [p for p in places if not (p.key in _UNUSED and id(p.children) in unused)]
        if isinstance(old, torch.jit.ScriptModule):
            found: Found = "a torch.jit.ScriptModule is compiled"
        else:
            found = replacement(old, wanted) if calling else None
        if found is None:
            continue
        if wanted.pattern is not None and isinstance(old, nn.Linear):
            if not any(wanted.pattern.search(p.name) for p in calling):
                continue
        if filter is not None and not all(filter(p.name, old) for p in calling):
            found = "filter leaves it"
        elif isinstance(found, _NORMS) and any(map(_is_changed, calling)):
            found = "the next module changes its result in place, which is kept"
        kind = type(old).__name__
        if isinstance(found, str):
            conversion.left += [Left(p.name, kind, found) for p in calling]
            continue
        if wanted.gates and found._modules is old._modules and "act_fn" in old._modules:
            unused.add(id(old._modules))
        for place in calling:
            conversion.replaced.append(
                Replaced(place.name, kind, f"activations.{type(found).__name__}")
            )
            conversion._children.append((place.children, place.key, old, found))


def _plan_functions(conversion: Conversion, wanted: Wanted, filter: Filter | None) -> None:
    for path, layer in conversion.model.named_modules():
        found = new_function(layer, wanted)
        if found is None:
            continue
        name = f"{path}.activation" if path else "activation"
        old: Any = layer.activation
        kind = f"function {getattr(old, '__name__', type(old).__name__)}"
        if filter is not None and not filter(name, layer):
            found = "filter leaves it"
        if isinstance(found, str):
            conversion.left.append(Left(name, kind, found))
            continue
        new = getattr(found, "func", found)
        conversion.replaced.append(Replaced(name, kind, f"activations.functional.{new.__name__}"))
        conversion._functions.append((layer, old, found))
