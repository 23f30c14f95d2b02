"""What settings do to a model: the bytes that it keeps, and the error of its gradient."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from torch_cgx._gradient import Gradient
from torch_cgx.activations.budget.applying import Changes
from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.projection.function import projected
from torch_cgx.activations.projection.modules import Linear
from torch_cgx.activations.report.memory import memory
from torch_cgx.activations.report.report import Report

LARGEST = 1e300  # an error that is not finite is the last to take


class Trials:
    """Sets a model up, measures, and takes it back. Errors are squares of relative L2."""

    def __init__(self, model: nn.Module, batch: tuple[Any, Any], loss: Any) -> None:
        self.model = model
        self._batch, self._loss = batch, loss
        self.gradient: Gradient
        self.parameters: dict[int, str] = {}

    def start(self) -> None:
        """Takes the gradient of now as the exact one. ValueError: as of Gradient."""
        args, kwargs = self._batch
        self.gradient = Gradient(self.model, kwargs if kwargs else args, self._loss)
        self.parameters = {id(p): name for name, p in self.model.named_parameters()}

    def memory(self) -> Report:
        """Of the model as it is."""
        args, kwargs = self._batch
        return memory(self.model, *args, loss=self._loss, **kwargs)

    def kept(self, settings: Settings) -> tuple[Report, dict[str, float]]:
        """And the squared relative error of what each module saves: the mean over its tensors."""
        changes = Changes(self.model, settings, measure=True)
        try:
            report = self.memory()
            compression = changes.compression
            found = {} if compression is None else compression.errors
        finally:
            changes.remove()
        squares: dict[str, list[float]] = {}
        for label, error in found.items():
            squares.setdefault(label.partition("#")[0], []).append(error**2)
        return report, {name: sum(one) / len(one) for name, one in squares.items()}

    def error(self, settings: Settings) -> float:
        """Of the whole gradient."""
        return _finite(self.gradient.relative(self._now(settings)) ** 2)

    def errors(self, settings: Settings, groups: Iterable[Iterable[str]]) -> list[float]:
        """Of the parameters that each group of modules holds itself. What several groups hold
        counts in equal parts."""
        now = self._now(settings)
        owned = [self._names(group) for group in groups]
        holders: dict[str, int] = {}
        for names in owned:
            for name in names:
                holders[name] = holders.get(name, 0) + 1
        return [
            _finite(sum(self.gradient.relative({n: now[n]}) ** 2 / holders[n] for n in names))
            for names in owned
        ]

    def _names(self, modules: Iterable[str]) -> set[str]:
        found = set()
        for module in modules:
            for parameter in self.model.get_submodule(module).parameters(recurse=False):
                name = self.parameters.get(id(parameter))
                if name in self.gradient.exact:
                    found.add(name)
        return found

    def _now(self, settings: Settings) -> dict[str, torch.Tensor]:
        changes = Changes(self.model, settings)
        try:
            with _own_keys(self.model):
                return self.gradient.now()
        finally:
            changes.remove()


@contextlib.contextmanager
def _own_keys(model: nn.Module) -> Iterator[None]:
    """Inside, linear layers that sample take no number from torch's generator: the masks of
    dropout stay those of the exact gradient."""
    chosen = [one for one in model.modules() if type(one) is Linear]
    chosen = [one for one in chosen if "forward" not in one.__dict__]
    try:
        for number, one in enumerate(chosen):
            key = torch.tensor(number + 1, dtype=torch.int64, device="cpu")
            one.__dict__["forward"] = functools.partial(_with_key, one, key)
        yield
    finally:
        for one in chosen:
            one.__dict__.pop("forward", None)


def _with_key(layer: Linear, key: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    return projected(input, layer.weight, layer.bias, layer.settings, key)


def merged(*several: Settings) -> Settings:
    """Settings of all; of one module, the keys of each."""
    found: Settings = {}
    for settings in several:
        for name, one in settings.items():
            found[name] = {**found.get(name, {}), **one}
    return found


def _finite(value: float) -> float:
    return value if value < LARGEST else LARGEST


Run = Callable[[], Any]
