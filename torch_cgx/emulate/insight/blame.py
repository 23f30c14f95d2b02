"""`blame`: which layer, and which of its tensors, makes the error of a gradient."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from torch_cgx._gradient import Gradient, Loss
from torch_cgx.emulate._cast import cast
from torch_cgx.emulate.gemm.formats import OPERANDS, GemmFormats
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
    """rows: sorted, the greatest error first. total: the error with the whole recipe at once,
    but for the optimizer's state."""

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
        Delayed scales are those of the batch itself.
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
    plan = dataclasses.replace(plan, gemms=tuple((i, one, f.current()) for i, one, f in plan.gemms))
    gradient = Gradient(model, batch, loss)
    if plan.empty or set(wanted.memory) == {"optimizer_state"} and not plan.gemms:
        raise ValueError(
            "the recipe casts the optimizer's state alone, which changes no gradient; allowed: "
            "recipes with other tensors"
        )
    rows = [
        Row(layer, kind, _error(model, gradient, wanted, piece))
        for layer, kind, piece in _pieces(plan)
    ]
    weights, gradients = _weights(model, wanted), _gradients(wanted)
    for name, one, values in weights:
        with _replaced(one, values):
            rows.append(Row(name, "weights", gradient.error()))
    for number, name in enumerate(gradient.names):
        if gradients is not None and wanted.takes(name):
            found = gradients(local(gradient.exact[name]), number)
            rows.append(Row(name, "gradients", gradient.relative({name: found})))
    return Blame(
        str(wanted.recipe.get("name", "the recipe")),
        rows,
        _total(model, gradient, wanted, dataclasses.replace(plan, optimizer=False)),
    )


def _total(model: nn.Module, gradient: Gradient, wanted: Settings, plan: Plan) -> float:
    """The error with all at once: weights are cast, then the model runs, then gradients are."""
    with contextlib.ExitStack() as stack:
        for _, one, values in _weights(model, wanted):
            stack.enter_context(_replaced(one, values))
        if not plan.empty:
            stack.enter_context(Emulation(model, None, wanted, plan))
        now = gradient.now()
    cast_gradient = _gradients(wanted)
    if cast_gradient is not None:
        for number, name in enumerate(now):
            if wanted.takes(name):
                now[name] = cast_gradient(local(now[name]), number)
    return gradient.relative(now)


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


def _weights(model: nn.Module, wanted: Settings) -> list[tuple[str, nn.Parameter, torch.Tensor]]:
    """Parameters with the values that the optimizer would leave."""
    format = wanted.memory.get("weights")
    if format is None:
        return []
    classes = {
        id(one): {cls.__name__ for cls in type(module).__mro__}
        for module in model.modules()
        for one in module.parameters(recurse=False)
    }
    return [
        (name, one, cast(one.detach(), format.format, seed=wanted.seed, number=number))
        for number, (name, one) in enumerate(model.named_parameters())
        if wanted.takes(name) and not classes.get(id(one), set()) & set(format.excepted)
    ]


def _gradients(wanted: Settings) -> Callable[[torch.Tensor, int], torch.Tensor] | None:
    """A function of a gradient and its number: as the optimizer would get it."""
    format = wanted.memory.get("gradients")
    if format is None:
        return None
    from torch_cgx._format_sums import FormatSum

    if format.aps:
        total = FormatSum(format.format, aps=True)
        return lambda gradient, number: total.run([gradient], number)
    return lambda gradient, number: cast(gradient, format.format, seed=wanted.seed, number=number)


@contextlib.contextmanager
def _replaced(parameter: nn.Parameter, values: torch.Tensor) -> Iterator[None]:
    """Inside, a parameter has other values; afterwards its own memory again."""
    own = parameter.data
    parameter.data = values
    try:
        yield
    finally:
        parameter.data = own
