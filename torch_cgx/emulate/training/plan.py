"""What is to change in a model: found and checked before anything is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from torch_cgx.emulate._format import Format
from torch_cgx.emulate.gemm.formats import GemmFormats
from torch_cgx.emulate.training.optimizers import KINDS
from torch_cgx.emulate.training.settings import Settings, exact_ends
from torch_cgx.emulate.training.targets import Target, left, targets, walk


@dataclasses.dataclass(frozen=True)
class Output:
    """A module whose output is cast. name: in the model; "model" of the model itself, "(model)" if
    that is a module's.
    """

    name: str
    module: nn.Module
    activations: Format | None
    gradient_maps: Format | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """gemms: with the number of each layer in the model. exact: names of GEMM layers that stay
    exact by the settings. left: (name, class) of modules whose GEMMs cannot be emulated.
    """

    gemms: tuple[tuple[int, Target, GemmFormats], ...] = ()
    outputs: tuple[tuple[int, Output], ...] = ()
    optimizer: bool = False
    exact: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()

    @property
    def empty(self) -> bool:
        return not self.gemms and not self.outputs and not self.optimizer


def make_plan(model: nn.Module, settings: Settings) -> Plan:
    """ValueError: the settings name layers that the model lacks, or nothing is left to cast."""
    names = [name for name, _ in model.named_modules()]
    optimizer = any(kind in settings.memory for kind in KINDS)
    if optimizer:
        names += [name for name, _ in model.named_parameters()]
    if settings.filter is not None and not any(map(settings.takes, names)):
        what = "module or parameter" if optimizer else "module"
        raise ValueError(
            f"filter={settings.filter.pattern!r} matches no {what}; allowed: what finds one of "
            f"{_some(names)}"
        )
    _check_classes(model, settings)
    gemms, exact = _gemms(model, settings)
    outputs = _outputs(model, settings)
    others = [one for one in left(model) if settings.takes(one[0])]
    if not settings.gemm and not settings.layers:
        others = []
    plan = Plan(gemms, outputs, optimizer, exact, tuple(others))
    if plan.empty and exact:
        raise ValueError(
            f"nothing is left to cast: exact are {_some(list(exact)) or 'all'} (first_last, "
            + "layers, filter)"
            + (f", and {named(others)}, whose GEMMs cannot be emulated" if others else "")
        )
    if plan.empty:
        every = [one.name for one in targets(model)]
        raise ValueError(
            f"nothing is left to cast: filter={settings.filter.pattern!r} "  # type: ignore[union-attr]
            f"matches no layer with a GEMM; allowed: what finds one of {_some(every)}"
        )
    return plan


def _check_classes(model: nn.Module, settings: Settings) -> None:
    weights = settings.memory.get("weights")
    known = {cls.__name__ for module in model.modules() for cls in type(module).__mro__}
    for name in () if weights is None else weights.excepted:
        if name not in known and not hasattr(nn, name):
            raise ValueError(
                f"weights: except has {name!r}; allowed: names of classes of torch.nn and of the "
                "model's modules"
            )


def named(others: Sequence[tuple[str, str]]) -> str:
    """As in "rnn (LSTM), head (Linear)"; "the model (LSTM)"."""
    shown = [f"{name or 'the model'} ({cls})" for name, cls in others[:5]]
    return ", ".join(shown) + (", ..." if len(others) > 5 else "")


def _gemms(
    model: nn.Module, settings: Settings
) -> tuple[tuple[tuple[int, Target, GemmFormats], ...], tuple[str, ...]]:
    every = targets(model)
    for one in every:
        if isinstance(one.module, LazyModuleMixin) and one.module.has_uninitialized_params():
            raise ValueError(
                f"{one.name or 'the model'} is a {type(one.module).__name__} without weights; "
                "allowed: one that a forward pass has initialized"
            )
    for pattern, _ in settings.layers:
        if not any(pattern.search(one.name) for one in every):
            raise ValueError(
                f"layers[{pattern.pattern!r}] matches no layer with a GEMM; allowed: what finds "
                f"one of {_some([one.name for one in every])}"
            )
    if settings.gemm is None and not settings.layers:
        return (), ()
    if not every:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            "the recipe casts the operands of GEMMs, and the model has no layer with one that can "
            "be emulated: Linear, Conv1d to 3d, ConvTranspose1d to 3d, MultiheadAttention, of real "
            f"numbers and with torch's own forward; it has {_some(classes)}"
        )
    first, last = exact_ends(settings.first_last, len(every))
    found, exact = [], []
    for index, one in enumerate(every):
        if not settings.takes(one.name):
            continue
        formats = settings.gemm
        if index < first or index >= len(every) - last:
            formats = None
        for pattern, other in settings.layers:
            if pattern.search(one.name):
                formats = other
                break
        if formats is None or formats.exact:
            exact.append(one.name)
        else:
            found.append((index, one, formats))
    return tuple(found), tuple(exact)


def _outputs(model: nn.Module, settings: Settings) -> tuple[tuple[int, Output], ...]:
    formats = [settings.memory.get(kind) for kind in ("activations", "gradient_maps")]
    if formats == [None, None]:
        return ()
    activations, maps = (None if one is None else one.format for one in formats)
    whole = "(model)" if "model" in dict(model.named_modules()) else "model"
    return tuple(
        (index, Output(name or whole, module, activations, maps))
        for index, (name, module) in enumerate(walk(model))
        if settings.takes(name)
    )


def _some(names: list[str]) -> str:
    shown = [name for name in names if name]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")
