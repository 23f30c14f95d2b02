"""How often the gradients of `fully_shard` modules were reduced, which keys random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from cgx_utils.fsdp_layout import Unit
from torch_cgx import _steps
from torch_cgx._policy.names import clean_names

VERSION = 1
_KEYS = ("version", "units", "reductions", "number")


class StepsOfUnits:
    """The counts of one `compress`. Each unit has its own: a backward pass need not reach all."""

    def __init__(self, units: list[Unit]):
        self._units = units
        self._numbers = {id(unit): number for number, unit in enumerate(units)}
        self._counter = _steps.StepCounter("this cgx_utils.fsdp.compress")

    def reduction(self, unit: Unit, group: dist.ProcessGroup) -> dict[str, Any]:
        """Arguments of the backend that key a unit's next reduce-scatter."""
        key = self._key(unit, group)
        unit.reductions += 1
        return key

    def replicas(self, unit: Unit, group: dist.ProcessGroup) -> dict[str, Any]:
        """The same for the all-reduce over the replicas, after the reduce-scatter."""
        return self._key(unit, group, len(self._units))

    def _key(self, unit: Unit, group: dist.ProcessGroup, offset: int = 0) -> dict[str, Any]:
        from torch_cgx._backend import backend_of  # loads the engine

        backend = backend_of(group, unit.group.device)
        number = self._counter.tensor_number(backend, offset + self._numbers[id(unit)])
        return {"step": unit.reductions, "tensor_number": number}

    def _labels(self) -> list[str]:
        return [unit.names[0] for unit in self._units]

    def state_dict(self) -> dict[str, Any]:
        from torch_cgx._backend import backend_of

        unit = self._units[0]
        backend = backend_of(unit.shard_group, unit.group.device)
        self._counter.tensor_number(backend)  # chooses a number, where none is known
        return {
            "version": VERSION,
            "units": self._labels(),
            "reductions": [unit.reductions for unit in self._units],
            "number": self._counter.number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or set(state) != set(_KEYS):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"the state is {found}; allowed: a dict of {', '.join(_KEYS)}")
        if state["version"] != VERSION:
            raise ValueError(f"the state has version {state['version']!r}; allowed: {VERSION}")
        mine = self._labels()
        if clean_names(state["units"]) != mine:
            raise ValueError(
                f"the state is of another model, or of other fully_shard modules: {state['units']}"
                f"; here {mine}"
            )
        if len(state["reductions"]) != len(mine):
            raise ValueError(f"the state has reductions={state['reductions']!r} for {mine}")
        for count in state["reductions"]:
            _steps.check({"step": count, "number": state["number"]}, "the state's reductions")
        self._counter.load_state_dict({"step": 0, "number": state["number"]})
        for unit, count in zip(self._units, state["reductions"], strict=True):
            unit.reductions = count
