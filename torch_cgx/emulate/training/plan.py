"""What is to change in a model: found and checked before anything is."""

from __future__ import annotations

import dataclasses

from torch import nn

from torch_cgx.emulate._format import Format
from torch_cgx.emulate.gemm.formats import GemmFormats
from torch_cgx.emulate.training.optimizers import KINDS
from torch_cgx.emulate.training.settings import Settings, exact_ends
from torch_cgx.emulate.training.targets import Target, left, targets, walk

MODEL = "model"
"""The name of the whole model's own output."""


@dataclasses.dataclass(frozen=True)
class Output:
    """A module whose output is cast. name: in the model."""

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
    if settings.filter is not None and not any(map(settings.takes, names)):
        raise ValueError(
            f"filter={settings.filter.pattern!r} matches no module; the model has: {_some(names)}"
        )
    gemms, exact = _gemms(model, settings)
    outputs = _outputs(model, settings)
    optimizer = any(kind in settings.memory for kind in KINDS)
    plan = Plan(gemms, outputs, optimizer, exact, tuple(left(model)) if settings.gemm else ())
    if plan.empty:
        raise ValueError(
            f"nothing is left to cast: exact are {', '.join(exact)} (first_last, layers, filter)"
        )
    return plan


def _gemms(
    model: nn.Module, settings: Settings
) -> tuple[tuple[tuple[int, Target, GemmFormats], ...], tuple[str, ...]]:
    every = targets(model)
    for pattern, _ in settings.layers:
        if not any(pattern.search(one.name) for one in every):
            raise ValueError(
                f"layers[{pattern.pattern!r}] matches no layer with a GEMM; the model has: "
                f"{_some([one.name for one in every])}"
            )
    if settings.gemm is None and not settings.layers:
        return (), ()
    if not every:
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            "the recipe casts the operands of GEMMs, and the model has no layer with one that can "
            "be emulated: Linear, Conv1d to 3d, ConvTranspose1d to 3d, MultiheadAttention; it has "
            f"{_some(classes)}"
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
    return tuple(
        (index, Output(name or MODEL, module, activations, maps))
        for index, (name, module) in enumerate(walk(model))
        if settings.takes(name)
    )


def _some(names: list[str]) -> str:
    shown = [name for name in names if name]
    return ", ".join(shown[:12]) + (", ..." if len(shown) > 12 else "")
