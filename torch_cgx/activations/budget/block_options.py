"""The options of blocks that are computed again in the backward pass: as a whole, with their input
as it is or encoded, or without the results of matrix products and attention, which are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch_cgx.activations.budget.applying import Changes
from torch_cgx.activations.budget.options import (
    CODINGS,
    FAR,
    NEAR,
    Costs,
    Option,
    name_of,
    scaled,
    useful,
)
from torch_cgx.activations.budget.plan import Settings
from torch_cgx.activations.budget.survey import Item, bytes_by_item, is_encodable
from torch_cgx.activations.budget.trials import Trials
from torch_cgx.activations.report.saves import Stored

_INPUTS = (*CODINGS[:4], FAR)  # codings of the input
_AGAIN = "computed again"
_SELECTIVE = "products kept, the rest computed again"


class BlockOptions:
    """Measures them, all blocks in one pass; the errors of encoded inputs for each block alone."""

    def __init__(self, trials: Trials, items: list[Item], blocks: list[str], costs: Costs) -> None:
        self._trials, self._items, self._blocks, self._costs = trials, items, blocks, costs
        self._outside = [n for n, item in enumerate(items) if item.block is None]
        # Here an item is a block: what it keeps when it is computed again.
        self._places = [*(items[n] for n in self._outside), *(Item((one,), []) for one in blocks)]
        self._step: Callable[[], Any] = trials.gradient.now
        self.crossing: list[int] = []

    def options(self) -> list[list[Option]]:
        """Of each block."""
        modules = self._trials.model.get_submodule
        forward = self._costs.timer.forward(
            [(one, modules(one)) for one in self._blocks], self._step
        )
        total = sum(forward.values()) or 1.0
        self._share = {name: seconds / total for name, seconds in forward.items()}
        found = [[*pair] for pair in zip(self._whole({}), self._selective(), strict=True)]
        encoded = self._encoded(found)
        return [useful([*one, *more]) for one, more in zip(found, encoded, strict=True)]

    def _whole(self, more: dict[str, Any]) -> list[Option]:
        settings = self._settings({"checkpoint": True, **more})
        report, _ = self._trials.kept(settings)
        names = {save.module for one in report.storages for save in one.saves}
        self.crossing = [n for n in self._outside if not names & set(self._items[n].names)]
        self._inputs = self._of_blocks(report.storages)
        return self._made(settings, _AGAIN, self._sizes(report.storages), self._longer(settings))

    def _selective(self) -> list[Option]:
        settings = self._settings({"checkpoint": "selective"})
        report, _ = self._trials.kept(settings)
        seconds = self._longer(settings)
        return self._made(settings, _SELECTIVE, self._sizes(report.storages), seconds)

    def _encoded(self, exact: list[list[Option]]) -> list[list[Option]]:
        found: list[list[Option]] = [[] for _ in self._blocks]
        noise: dict[str, dict[str, float]] = {}
        # A plan has one coding for all that a block gets.
        able = {name for name in self._blocks if is_encodable(self._inputs[name])}
        for config in _INPUTS if able else ():
            settings: Settings = {
                name: {"checkpoint": True, **({"saved": config} if name in able else {})}
                for name in self._blocks
            }
            what = f"{_AGAIN}, {name_of(config)}"
            report, noise[what] = self._trials.kept(settings)
            made = self._made(settings, what, self._sizes(report.storages), 0.0)
            for k, (name, one) in enumerate(zip(self._blocks, made, strict=True)):
                if name not in able:
                    continue
                seconds = self._costs.of_coding(config, self._inputs[name])
                time = exact[k][0].time + seconds / self._costs.step
                found[k].append(dataclasses.replace(one, time=time))
        references = [f"{_AGAIN}, {name_of(config)}" for config in (NEAR, FAR)]
        for k, name in enumerate(self._blocks):
            own = {what: one.get(name, 0.0) for what, one in noise.items()}
            known = {
                one.what: self._trials.error(one.settings)
                for one in found[k]
                if one.what in references and own[one.what] > 0
            }
            found[k] = [
                dataclasses.replace(one, error=scaled(one.what, own, known)) for one in found[k]
            ]
        return found

    def _settings(self, one: dict[str, Any]) -> Settings:
        return dict.fromkeys(self._blocks, one)

    def _made(
        self, settings: Settings, what: str, sizes: list[int], seconds: float
    ) -> list[Option]:
        """seconds: of all blocks together."""
        seconds /= self._costs.step
        return [
            Option((name,), what, {name: settings[name]}, size, 0.0, seconds * self._share[name])
            for name, size in zip(self._blocks, sizes, strict=True)
        ]

    def _sizes(self, stored: tuple[Stored, ...]) -> list[int]:
        return bytes_by_item(stored, self._places)[0][len(self._outside) :]

    def _of_blocks(self, stored: tuple[Stored, ...]) -> dict[str, list[Stored]]:
        found: dict[str, list[Stored]] = {name: [] for name in self._blocks}
        for one in stored:
            found.get(one.saves[0].module, []).append(one)
        return found

    def _longer(self, settings: Settings) -> float:
        """Seconds by which a step takes longer, which no noise makes less than nothing."""

        def other() -> Callable[[], Any]:
            changes = Changes(self._trials.model, settings)
            return changes.remove

        return max(self._costs.timer.longer(self._step, other), 0.0)
