"""What each item and each block may keep: an option's bytes, error of the gradient, and time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.budget.survey import Item
from torch_cgx.activations.budget.timing import Timer
from torch_cgx.activations.report.saves import Stored

# Measured for each item alone; the errors of other codings follow from these two.
NEAR: dict[str, Any] = {"codec": "maxmin", "bits": 4}
FAR: dict[str, Any] = {"codec": "rotated", "bits": 2, "scale": "unbiased"}
CODINGS: tuple[dict[str, Any], ...] = (
    *({"codec": "maxmin", "bits": bits} for bits in (8, 6, 5)),
    NEAR,
    *({"codec": "rotated", "bits": bits, "scale": "unbiased"} for bits in (4, 3)),
    FAR,
    {"codec": "rotated", "bits": 1, "scale": "unbiased"},
    *({"codec": "maxmin", "bits": bits} for bits in (3, 2)),
)


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity: settings are dicts
class Option:
    """names: of modules. error: squared, relative, with this option alone. time: by which a step
    takes longer, relative to the exact one.
    """

    names: tuple[str, ...]
    what: str
    settings: Settings
    nbytes: int
    error: float
    time: float


@dataclasses.dataclass
class Rows:
    """items: options of each. blocks: of each, those that compute it again. inner: numbers of the
    items inside of each block. crossing: numbers of items in several blocks, which vanish where all
    blocks are computed again. fixed: bytes that no choice changes.
    """

    items: list[list[Option]]
    blocks: list[list[Option]]
    inner: list[list[int]]
    crossing: list[int]
    fixed: int


class Costs:
    """Times of codings. step: seconds of the exact step."""

    def __init__(self, timer: Timer, step: float) -> None:
        self.timer, self.step = timer, step
        self._factor = 1.0

    def calibrate(self, items: Iterable[Item], longer: Callable[[Settings], float]) -> None:
        """Measures the time that all items take with one coding, longer than without. It includes
        what hooks do with tensors that they leave as they are, and what the caches make of it.
        """
        able = [item for item in items if item.encodable]
        settings = {name: {"saved": NEAR} for item in able for name in item.names}
        predicted = sum(self.of_coding(NEAR, item.storages) for item in able)
        if settings and predicted > 0:
            self._factor = min(max(longer(settings) / predicted, 0.5), 8.0)

    def of_coding(self, config: Any, stored: Iterable[Stored], part: float = 1.0) -> float:
        """Seconds for a part of what the storages hold."""
        return self._factor * sum(
            self.timer.coding(config, max(int(part * one.numel), 1), one.dtype, one.device)
            for one in stored
            if one.dtype.is_floating_point
        )


def name_of(config: Mapping[str, Any]) -> str:
    return f"{config['codec']} {config['bits']} bits"


def scaled(what: str, noise: Mapping[str, float], known: Mapping[str, float]) -> float:
    """The gradient's error with a coding: proportional to that of the tensors, from the measured
    coding that is nearest. noise: of the tensors with each coding; known: measured.
    """
    own = noise.get(what, 0.0)
    if own == 0 or not known:
        return 0.0
    nearest = min(known, key=lambda one: abs(math.log(noise[one] / own)))
    return known[nearest] * own / noise[nearest]


def useful(options: list[Option]) -> list[Option]:
    """Without those that another one equals or beats in everything."""
    found: list[Option] = []
    for one in sorted(options, key=lambda o: (o.nbytes, o.error, o.time)):
        if not any(o.error <= one.error and o.time <= one.time for o in found):
            found.append(one)
    return found


def values_of(item: Item, name: str) -> tuple[torch.Size, torch.dtype, torch.device]:
    """Shape, type and device of what a module keeps first."""
    for one in item.storages:
        for save in one.saves:
            if save.module == name:
                return torch.Size(save.size), save.dtype, one.device
    raise ValueError(f"{name} keeps nothing; allowed: {', '.join(item.names)}")
