"""`blame`: which layer, and which of its tensors, makes the error of a gradient."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import nn

from torch_cgx.emulate._cast import cast
from torch_cgx.emulate.gemm.formats import OPERANDS, GemmFormats
from torch_cgx.emulate.insight.gradient import Gradient, Loss, replaced
from torch_cgx.emulate.training.emulation import Emulation, check_model, check_plan
from torch_cgx.emulate.training.optimizers import local
from torch_cgx.emulate.training.plan import Plan, make_plan
from torch_cgx.emulate.training.settings import Settings, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from torch_cgx.emulate.insight.heat_map import Matrix

_LABEL = "relative error of the gradient"
_GEMM_KINDS = ("input", "weight", "gradient")


class Row(NamedTuple):
    """layer: of a GEMM, a module or a parameter. kind: "input", "weight", "gradient" or
    "accumulate" of a GEMM; "activations", "gradient_maps" of a module; "weights", "gradients" of a
    parameter. error: relative L2, of the gradient of all parameters together.
    """

    layer: str
    kind: str
    error: float


class Blame:
    """rows: sorted, the greatest error first. total: the error with the whole recipe at once."""

    def __init__(self, name: str, rows: list[Row], total: float):
        self.name, self.total = name, total
        self._in_order = rows
        self.rows = sorted(rows, key=lambda row: -row.error)

    def layers(self) -> dict[str, float]:
        """The error of each layer: the root of the sum of squares over its kinds; sorted."""
        sums: dict[str, float] = {}
        for row in self.rows:
            sums[row.layer] = sums.get(row.layer, 0.0) + row.error**2
        return {name: sums[name] ** 0.5 for name in sorted(sums, key=lambda name: -sums[name])}

    def table(self, most: int | None = 20) -> str:
        """Text: the rows, or the first ones of them."""
        from torch_cgx.cli.output import table

        shown = self.rows if most is None else self.rows[:most]
        lines = [[row.layer, row.kind, f"{100 * row.error:.3g} %"] for row in shown]
        lines.append([f"all of {self.name}", "", f"{100 * self.total:.3g} %"])
        return table(["layer", "tensor", "error of the gradient"], lines, left=(0, 1))

    def draw(self, axes: Axes) -> None:
        """Draws a heat map, layers by kinds, on a picture's axes."""
        from torch_cgx.emulate.insight.heat_map import draw

        draw(axes, *self._matrix(), _LABEL, dark="high", log=True)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes the heat map to a file. ImportError where matplotlib is missing."""
        from torch_cgx.emulate.insight.heat_map import plot

        plot(path, *self._matrix(), _LABEL, dark="high", log=True)

    def _matrix(self) -> tuple[Matrix, list[str], list[str]]:
        """Errors, NaN where a layer has no such kind; names of layers and of kinds."""
        layers = list(dict.fromkeys(row.layer for row in self._in_order))
        kinds = list(dict.fromkeys(row.kind for row in self._in_order))
        matrix = np.full((len(layers), len(kinds)), np.nan)
        for row in self.rows:
            matrix[layers.index(row.layer), kinds.index(row.kind)] = row.error
        return matrix, layers, kinds

    def __str__(self) -> str:
        return self.table()


def blame(
    model: nn.Module,
    batch: Any,
    recipe: str | Mapping[str, Any],
    *,
    loss: Loss | None = None,
    filter: str | re.Pattern[str] | None = None,
    seed: int = 0,
) -> Blame:
    """The error of the gradient when each layer and kind of tensor alone is cast, as the recipe has
    it: one forward and backward pass for each, and two more.

    batch: the model's arguments: a tensor, a tuple, or a dict of named ones.
    recipe: as of `apply`. Its optimizer_state, which does not change a gradient, is left out; so
        are layers that first_last leaves exact: {..., "first_last": "cast"} shows them, too.
    loss: a function of the model's output that returns a tensor of one value. None: the output's
        "loss" if it has one, else the sum of outputs with fixed random weights.
    filter, seed: as of `apply`.

    The model is as before afterwards: gradients, buffers, random numbers. ValueError, TypeError: as
    of `apply`; the loss is not one value that requires a gradient; the exact gradient is zero or
    not finite.
    """
    wanted = settings(recipe, {}, filter, seed)
    check_model(model)
    plan = make_plan(model, wanted)
    check_plan(plan)
    gradient = Gradient(model, batch, loss)
    rows = [
        Row(layer, kind, _error(model, gradient, wanted, piece))
        for layer, kind, piece in _pieces(plan)
    ]
    rows += _weights(model, gradient, wanted) + _gradients(model, gradient, wanted)
    name = str(wanted.recipe.get("name", "the recipe"))
    total = _error(model, gradient, wanted, dataclasses.replace(plan, optimizer=False))
    return Blame(name, rows, total)


def _error(model: nn.Module, gradient: Gradient, wanted: Settings, plan: Plan) -> float:
    if plan.empty:
        return 0.0
    with Emulation(model, None, wanted, plan):
        return gradient.error()


def _pieces(plan: Plan) -> Any:
    """(layer, kind, a plan of this alone)."""
    for index, target, formats in plan.gemms:
        for kind in _GEMM_KINDS:
            kept = formats.only({name for name in OPERANDS if name.endswith(f".{kind}")})
            if not kept.exact:
                yield target.name, kind, Plan(((index, target, kept),))
        if not formats.accumulation.fp32:
            alone = GemmFormats(accumulation=formats.accumulation)
            yield target.name, "accumulate", Plan(((index, target, alone),))
    for index, one in plan.outputs:
        for kind, other in (("activations", "gradient_maps"), ("gradient_maps", "activations")):
            if getattr(one, kind) is not None:
                dropped: dict[str, Any] = {other: None}
                kept_one = dataclasses.replace(one, **dropped)
                yield one.name, kind, Plan(outputs=((index, kept_one),))


def _weights(model: nn.Module, gradient: Gradient, wanted: Settings) -> list[Row]:
    """Of weights as the optimizer would leave them."""
    format = wanted.memory.get("weights")
    if format is None:
        return []
    classes = {
        id(one): {cls.__name__ for cls in type(module).__mro__}
        for module in model.modules()
        for one in module.parameters(recurse=False)
    }
    rows = []
    for number, (name, one) in enumerate(model.named_parameters()):
        if not wanted.takes(name) or classes.get(id(one), set()) & set(format.excepted):
            continue
        values = cast(one.detach(), format.format, seed=wanted.seed, number=number)
        with replaced(one, values):
            rows.append(Row(name, "weights", gradient.error()))
    return rows


def _gradients(model: nn.Module, gradient: Gradient, wanted: Settings) -> list[Row]:
    """Of gradients as the optimizer would get them."""
    format = wanted.memory.get("gradients")
    if format is None:
        return []
    from torch_cgx._format_sums import FormatSum

    rows = []
    for number, name in enumerate(gradient.names):
        if not wanted.takes(name):
            continue
        exact = local(gradient.exact[name])
        if format.aps:
            found = FormatSum(format.format, aps=True).run([exact], number)
        else:
            found = cast(exact, format.format, seed=wanted.seed, number=number)
        rows.append(Row(name, "gradients", gradient.relative({name: found})))
    return rows
