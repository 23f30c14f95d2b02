"""The options of items, without recomputation.

Bytes come from passes in which all items take the same option. Errors come from three kinds of
passes:

- The input of a layer that only the gradient of its own weight needs changes no other gradient:
  with all of them encoded, one pass gives the error of each layer.
- Every other tensor is encoded alone, with two codings. The errors with the other codings are
  predicted from the errors of the tensor itself.
- Every few-bit function is tried alone, at 3 bits. At other bits its error is multiplied by the
  ratio of the errors of all functions together at these bits and at 3.
"""

from __future__ import annotations

from typing import Any

from torch_cgx.activations.budget.options import (
    CODINGS,
    FAR,
    NEAR,
    Costs,
    Option,
    name_of,
    scaled,
    useful,
    values_of,
)
from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.budget.survey import Calls, Item, bytes_by_item, rows_of
from torch_cgx.activations.budget.trials import Trials, merged
from torch_cgx.activations.report.report import Report

_BITS = (4, 3, 2, 1)  # of few-bit functions
_ALONE = 3
_KEEPS = (0.2, 0.05)  # of the rows of a linear layer's input
_SAMPLES: tuple[dict[str, Any] | None, ...] = (None, FAR)  # codings of the kept rows


class ItemOptions:
    """Measures them."""

    def __init__(self, trials: Trials, items: list[Item], calls: Calls, costs: Costs) -> None:
        self._trials, self._items, self._calls, self._costs = trials, items, calls, costs
        self._modules = dict(trials.model.named_modules())
        self._found: list[list[Option]] = []

    def options(self, base: Report) -> list[list[Option]]:
        """Of each item. base: of the model as it is."""
        nbytes, _ = bytes_by_item(base.storages, self._items)
        self._found = [
            [Option(item.names, "as it is", {}, size, 0.0, 0.0)]
            for item, size in zip(self._items, nbytes, strict=True)
        ]
        self._encoded()
        self._layers()
        self._functions()
        return [useful(one) for one in self._found]

    def _add(
        self, n: int, what: str, settings: Settings, nbytes: int, error: float, seconds: float
    ) -> None:
        time = seconds / self._costs.step
        self._found[n].append(Option(self._items[n].names, what, settings, nbytes, error, time))

    # ---- encoded as they are

    def _encoded(self) -> None:
        numbers = [n for n, item in enumerate(self._items) if item.encodable]
        layers = [n for n in numbers if self._items[n].weights]
        others = [n for n in numbers if not self._items[n].weights]
        sizes: dict[str, list[int]] = {}
        noise: dict[str, dict[str, float]] = {}
        for config in CODINGS if numbers else ():
            what, one = name_of(config), {"saved": config}
            settings = {n: self._settings(self._items[n], one) for n in numbers}
            report, noise[what] = self._trials.kept(merged(*settings.values()))
            sizes[what], _ = bytes_by_item(report.storages, self._items)
            if layers:
                self._together(layers, one, what, sizes[what])
        for n in others:
            own = {what: self._mean(n, one) for what, one in noise.items()}
            known = {
                name_of(config): self._trials.error(self._saved(n, config))
                for config in (NEAR, FAR)
                if own[name_of(config)] > 0
            }
            for config in CODINGS:
                what = name_of(config)
                seconds = self._costs.of_coding(config, self._items[n].storages)
                error = scaled(what, own, known)
                self._add(n, what, self._saved(n, config), sizes[what][n], error, seconds)

    def _saved(self, n: int, config: dict[str, Any]) -> Settings:
        return {name: {"saved": config} for name in self._items[n].names}

    def _mean(self, n: int, noise: dict[str, float]) -> float:
        found = [noise[name] for name in self._items[n].names if name in noise]
        return sum(found) / len(found) if found else 0.0

    # ---- the input of layers that only their own weight's gradient needs

    def _layers(self) -> None:
        numbers = [n for n, item in enumerate(self._items) if item.weights and item.encodable]
        with_steps = [n for n in numbers if self._items[n].steps]
        self._together(with_steps, {}, "step function, 1 bit")
        for keep in _KEEPS:
            able = [n for n in numbers if self._takes(self._items[n], keep)]
            what = f"{100 * keep:g} % of the rows"
            linear: dict[str, Any] = {"linear": {"keep": keep, "method": "wta"}}
            for sample in _SAMPLES:
                if sample is None:
                    self._together(able, linear, what)
                else:
                    self._together(able, {**linear, "saved": sample}, f"{what}, {name_of(sample)}")

    @staticmethod
    def _takes(item: Item, keep: float) -> bool:
        saves = [save for one in item.storages for save in one.saves]
        rows = [rows_of(save) for save in saves if save.module in item.weights]
        return item.linears == item.weights and int(keep * min(rows)) > 0

    def _together(
        self, numbers: list[int], one: dict[str, Any], what: str, sizes: list[int] | None = None
    ) -> None:
        """An option of several items, in one pass. one: settings of each layer. sizes: of all
        items with it, if they are known."""
        if not numbers:
            return
        settings = {n: self._settings(self._items[n], one) for n in numbers}
        everything = merged(*settings.values())
        if sizes is None:
            report, _ = self._trials.kept(everything)
            sizes, _ = bytes_by_item(report.storages, self._items)
        errors = self._trials.errors(everything, [self._items[n].weights for n in numbers])
        for n, error in zip(numbers, errors, strict=True):
            seconds = self._seconds(self._items[n], one)
            self._add(n, what, settings[n], sizes[n], error, seconds)

    @staticmethod
    def _settings(item: Item, one: dict[str, Any]) -> Settings:
        """Of all modules; of layers, with few-bit forms of step functions, which are exact."""
        if not item.weights:
            return dict.fromkeys(item.names, one)
        steps = {name: {"activation": 1} for name in item.steps}
        return {**(dict.fromkeys(item.weights, one) if one else {}), **steps}

    def _seconds(self, item: Item, one: dict[str, Any]) -> float:
        timer, seconds = self._costs.timer, 0.0
        for name in item.steps:
            seconds += timer.activation(self._modules[name], 1, values_of(item, name))
        if "linear" in one:
            for name in item.linears:
                given = self._calls.inputs[name]
                seconds += timer.linear(self._modules[name], one["linear"], given)
        if "saved" in one:
            part = one["linear"]["keep"] if "linear" in one else 1.0
            seconds += self._costs.of_coding(one["saved"], item.storages, part)
        return seconds

    # ---- few-bit functions

    def _functions(self) -> None:
        items = list(enumerate(self._items))
        self._few_bit([n for n, one in items if one.smooth], _ALONE, _BITS)
        steps = [n for n, one in items if one.steps and not (one.smooth or one.weights)]
        self._few_bit(steps, 1, (1,))

    def _few_bit(self, numbers: list[int], alone: int, every: tuple[int, ...]) -> None:
        """alone: bits with which each item is measured. every: bits to choose from."""
        if not numbers:
            return
        own = [self._trials.error(self._few(n, alone)) for n in numbers]
        reference = self._trials.error(merged(*(self._few(n, alone) for n in numbers)))
        for bits in every:
            everything = merged(*(self._few(n, bits) for n in numbers))
            report, _ = self._trials.kept(everything)
            nbytes, _ = bytes_by_item(report.storages, self._items)
            factor = self._trials.error(everything) / reference if reference else 1.0
            for n, error in zip(numbers, own, strict=True):
                seconds = sum(
                    self._costs.timer.activation(
                        self._modules[name], bits, values_of(self._items[n], name)
                    )
                    for name in self._items[n].names
                )
                what = f"few-bit function, {bits} bit{'s' if bits > 1 else ''}"
                self._add(n, what, self._few(n, bits), nbytes[n], error * factor, seconds)

    def _few(self, n: int, bits: int) -> Settings:
        return {name: {"activation": bits} for name in self._items[n].names}
