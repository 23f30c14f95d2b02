"""`choose`: which format each GEMM layer takes under a budget of bits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from torch_cgx._gradient import Gradient, Loss
from torch_cgx._policy.budget import within_budget
from torch_cgx.emulate._formats import Float
from torch_cgx.emulate._presets import presets
from torch_cgx.emulate.gemm.formats import GemmFormats, gemm_formats
from torch_cgx.emulate.training.emulation import Emulation, check_model, check_plan
from torch_cgx.emulate.training.notes import Entry
from torch_cgx.emulate.training.plan import Plan, make_plan
from torch_cgx.emulate.training.recipes import recipe
from torch_cgx.emulate.training.settings import Settings, settings

_TENSORS = ("input", "weight", "gradient")
_EXACT = 32.0


class Choice:
    """layers: {name: the candidate's name}. bits: per value, over the operands of all GEMM layers.
    error: the root of the sum of squared errors of the layers, each cast alone.

        emulate.apply(model, optimizer, choice.recipe)
    """

    def __init__(
        self,
        layers: dict[str, str],
        candidates: Mapping[str, Any],
        bits: float,
        error: float,
        rows: list[list[str]],
    ):
        self.layers, self.bits, self.error = layers, bits, error
        self._rows = rows
        self.recipe: dict[str, Any] = {
            "name": f"chosen, {bits:.3g} bits",
            "source": "emulate.choose",
            "layers": {f"^{re.escape(name)}$": candidates[one] for name, one in layers.items()},
        }

    def table(self) -> str:
        """Text: of each layer the candidate, bits per value and error, and of all together."""
        from torch_cgx.cli.output import table

        last = ["all", "", f"{self.bits:.2f}", f"{100 * self.error:.3g} %"]
        head = ["layer", "format", "bits", "error of the gradient"]
        return table(head, [*self._rows, last], left=(0, 1))

    def __str__(self) -> str:
        return self.table()


def choose(
    model: nn.Module,
    batch: Any,
    candidates: Iterable[Any] | Mapping[str, Any],
    budget_bits: float,
    *,
    loss: Loss | None = None,
    filter: str | re.Pattern[str] | None = None,
    seed: int = 0,
) -> Choice:
    """Formats of the operands of each GEMM layer, so that the error of the gradient is least within
    a budget. Each layer is cast alone with each candidate: one forward and backward pass each. The
    errors' squares are taken to add up; the rest is a knapsack with one candidate for each layer,
    which the solver of `AdaptiveBits` solves.

    batch, loss, filter, seed: as of `blame`.
    candidates: at least two, of names of formats or recipes (whose "gemm" counts), formats, dicts
        as a recipe's "gemm", and "exact"; or a dict that names them.
    budget_bits: per value, on average over input, weight and gradient of all GEMM layers that the
        filter takes, scales included; an exact value has 32.

    ValueError: no choice is within the budget (the text has the least), a candidate without GEMM
    formats, or as of `blame`.
    """
    named = _candidates(candidates)
    formats_of = {
        name: None if one == "exact" else gemm_formats(one, f"candidates[{name!r}]").current()
        for name, one in named.items()
    }
    ok = isinstance(budget_bits, (int, float)) and not isinstance(budget_bits, bool)
    if not ok or not 0 < budget_bits < float("inf"):
        raise ValueError(f"budget_bits={budget_bits!r}; allowed: finite numbers above 0")
    wanted = settings({"gemm": Float(8, 22), "first_last": "cast"}, {}, filter, seed)
    check_model(model)
    plan = make_plan(model, wanted)
    gradient = Gradient(model, batch, loss)
    sizes = _sizes(model, gradient, wanted, plan)
    plan = Plan(tuple(one for one in plan.gemms if one[1].name in sizes))
    costs, errors = [], []
    for index, target, _ in plan.gemms:
        measured = [
            _measure(model, gradient, wanted, (index, target, formats), sizes[target.name])
            for formats in formats_of.values()
        ]
        costs.append([cost for cost, _ in measured])
        errors.append([error**2 for _, error in measured])
    values = sum(sum(one.values()) for one in sizes.values())
    _check_budget(budget_bits, costs, errors, values)
    picked = within_budget(costs, errors, budget_bits * values, "bits")
    names = list(named)
    rows, layers = [], {}
    for (_, target, _), cost, error, one in zip(plan.gemms, costs, errors, picked, strict=True):
        layers[target.name] = names[one]
        bits = cost[one] / sum(sizes[target.name].values())
        rows.append([target.name, names[one], f"{bits:.2f}", f"{100 * error[one] ** 0.5:.3g} %"])
    spent = sum(cost[one] for cost, one in zip(costs, picked, strict=True))
    total = sum(error[one] for error, one in zip(errors, picked, strict=True)) ** 0.5
    return Choice(layers, named, spent / values, total, rows)


def _candidates(given: Any) -> dict[str, Any]:
    """By name: formats or dicts of a recipe's "gemm", and "exact"."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"candidates={given!r}; allowed: a list of formats, names and dicts, or a dict"
        )
    pairs = given.items() if isinstance(given, Mapping) else [(None, one) for one in given]
    found: dict[str, Any] = {}
    for key, one in pairs:
        own = one.get("name", one) if isinstance(one, Mapping) else one
        name = str(own if key is None else key)
        found[name] = "exact" if one == "exact" or one is None else _gemm(name, one)
    if len(found) < 2:
        raise ValueError(f"candidates={given!r}; allowed: at least two different ones")
    return found


def _gemm(name: str, one: Any) -> Any:
    if isinstance(one, str) and one.lower() not in presets():
        one = recipe(one)
    if isinstance(one, Mapping) and ({"name", "source"} & set(one)):
        if one.get("gemm") is None:
            raise ValueError(
                f"the candidate {name!r} has no formats of GEMMs; allowed: ones that do"
            )
        one = one["gemm"]
    return one


def _sizes(
    model: nn.Module, gradient: Gradient, wanted: Settings, plan: Plan
) -> dict[str, dict[str, int]]:
    """Values of the input, weight and gradient of each layer that the batch reaches."""
    with Emulation(model, None, wanted, plan) as emulation:
        gradient.error()
        totals = emulation.totals()
    found: dict[str, dict[str, int]] = {}
    for name, values in totals.items():
        layer, _, tensor = name.rpartition("/")
        found.setdefault(layer, {})[tensor.rpartition(".")[2]] = values
    return found


def _measure(
    model: nn.Module, gradient: Gradient, wanted: Settings, gemm: Any, sizes: dict[str, int]
) -> tuple[float, float]:
    """Bits of a layer's operands, and the gradient's error."""
    exact = _EXACT * sum(sizes.values())
    if gemm[2] is None:
        return exact, 0.0
    plan = Plan((gemm,))
    check_plan(plan)
    with Emulation(model, None, wanted, plan) as emulation:
        error = gradient.error()
        rows = emulation.ledger().rows
    return sum(_bits(rows, gemm[2], tensor, n) for tensor, n in sizes.items()), error


def _bits(rows: list[Entry], formats: GemmFormats, tensor: str, values: int) -> float:
    """Of one tensor: the mean over the GEMMs that have it."""
    uses = {"input": ("forward", "wgrad"), "weight": ("forward", "dgrad")}.get(tensor)
    noted = {row.tensor: row.after / max(row.values, 1) for row in rows}
    found = []
    for part in uses or ("dgrad", "wgrad"):
        name = f"{part}.{tensor}"
        if name not in formats.by_name:
            found.append(_EXACT)
        elif name in noted:
            found.append(noted[name])
        # else the same values as another GEMM's
    return values * sum(found) / max(len(found), 1)


def _check_budget(budget: float, costs: Any, errors: Any, values: int) -> None:
    least = sum(map(min, costs)) / values
    if budget < least:
        raise ValueError(
            f"budget_bits={budget}; allowed with these candidates: at least {least:.4g}"
        )
    for row in errors:
        for i, one in enumerate(row):  # a candidate that makes NaN is the last to take
            row[i] = min(one, 1e300)
