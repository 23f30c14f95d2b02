"""The state_dict() of a `DiLoCo`: its checks, and the state of the outer optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cgx_utils.resharding import RANKS, ByRank, sections_of
from cgx_utils.saved import check_finite
from torch_cgx._policy.names import Named, translate

_COUNTS = ("local_steps", "rounds", "rank", "world_size")
_KEYS = ("start", "outer", "residuals", *_COUNTS)
_LATER = ("number", "outer_stepped", RANKS)  # keys that earlier versions did not write


@dataclass(frozen=True)
class SavedDiLoCo:
    """A state that was checked: `DiLoCo.state_dict()` says what its keys hold. Names are of this
    model. outer_stepped: False if the state of the outer optimizer is a stand-in. residuals: by
    rank and name. ranks: how many saved. number: None in states of earlier versions.
    """

    start: Mapping[str, torch.Tensor]
    outer: Mapping[str, Any]
    outer_stepped: bool
    residuals: ByRank
    local_steps: int
    rounds: int
    ranks: int
    number: int | None

    @classmethod
    def of(
        cls, state: Any, named: Mapping[str, torch.nn.Parameter], model: Sequence[Named]
    ) -> SavedDiLoCo:
        """named: the parameters of the model that are trained. ValueError: the state is not of a
        DiLoCo, or of another model.
        """
        if not isinstance(state, Mapping) or set(state) - set(_LATER) != set(_KEYS):
            found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"the state is {found}; allowed: a dict of {', '.join(_KEYS)}")
        start = _by_own_names("start", state["start"], model)
        _check_tensors("start", start, named)
        for key in (*_COUNTS, "number"):
            value = state.get(key, 0)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"the state has {key}={value!r}; allowed: an integer >= 0")
        by_rank = sections_of(state)
        if by_rank is None:
            by_rank = {str(state["rank"]): {"residuals": state["residuals"]}}
        residuals = {}
        for rank, section in by_rank.items():
            if section.get("residuals") is None:
                continue
            own = residuals[rank] = _by_own_names("residuals", section["residuals"], model)
            _check_tensors("residuals", own, named, flat=True)
            for name, residual in own.items():
                check_finite(name, residual)
        return cls(
            start,
            state["outer"],
            state.get("outer_stepped", True),
            residuals,
            state["local_steps"],
            state["rounds"],
            state["world_size"],
            state.get("number"),
        )

    def load_outer(self, outer: torch.optim.Optimizer) -> None:
        """torch.distributed.checkpoint turns the numbers of parameters into texts."""
        kept: dict[int, dict[str, Any]] = {}
        for number, one in self.outer["state"].items() if self.outer_stepped else ():
            kept.setdefault(int(number), {}).update(one)
        outer.load_state_dict({**self.outer, "state": kept})


def outer_state(outer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state_dict() of the outer optimizer. Before its first step, the tensors that the step
    will create stand in: torch.distributed.checkpoint loads only into tensors that exist.
    """
    found = outer.state_dict()
    if not outer.state:
        stand_in = copy.deepcopy(outer)
        for group in stand_in.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        stand_in.step()
        found["state"] = stand_in.state_dict()["state"]
    return found


def _by_own_names(what: str, saved: Any, model: Sequence[Named]) -> Any:
    if not isinstance(saved, Mapping):
        return saved
    return translate(saved, model, f"the state's {what!r}")


def _check_tensors(
    what: str, given: Any, named: Mapping[str, torch.nn.Parameter], flat: bool = False
) -> None:
    """ValueError unless `given` has a tensor of each parameter's shape, or size, under its name."""
    if not isinstance(given, Mapping) or set(given) != set(named):
        names = set(given) ^ set(named) if isinstance(given, Mapping) else {type(given).__name__}
        raise ValueError(
            f"the state's {what!r} is of another model: it differs in {sorted(map(str, names))[:3]}"
        )
    for name, parameter in named.items():
        shape = (parameter.numel(),) if flat else tuple(parameter.shape)
        if not isinstance(given[name], torch.Tensor) or not given[name].is_floating_point():
            found = getattr(given[name], "dtype", type(given[name]).__name__)
            raise ValueError(
                f"the state's {what!r} has {found} for {name!r}; allowed: a tensor of floats"
            )
        if tuple(given[name].shape) != shape:
            raise ValueError(
                f"the state's {what!r} is of another model: {name!r} has the shape "
                f"{tuple(given[name].shape)}, the model's {shape}"
            )
