"""Checks what `CGXState.load_state_dict` is given, before any of it is taken over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cgx_utils import schedule
from torch_cgx import _steps

VERSION = 1  # of what CGXState.state_dict() returns
_ADAPTIVE = {"step": int, "due": int, "bits": dict, "errors": dict, "model": dict}


def check_saved(state: Any) -> Mapping[str, Any]:
    """The state itself. TypeError or ValueError if `CGXState.state_dict()` cannot have made it."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"load_state_dict was given {type(state).__name__}; allowed: what "
            "CGXState.state_dict() returned"
        )
    version = state.get("version")
    if version != VERSION:
        raise ValueError(f"the restored state has version {version!r}; allowed: {VERSION}")
    if "schedule" in state:
        schedule.check(state["schedule"])
    if not isinstance(state.get("aps", False), bool):
        raise ValueError(
            f"load_state_dict of a CGXState: aps is {state['aps']!r}; allowed: True, False"
        )
    if "steps" in state:
        _steps.check(state["steps"], "load_state_dict of a CGXState: steps")
    return state


def check_residuals(section: Any) -> None:
    """TypeError or ValueError if the section "error_feedback" is not what state_dict() writes."""
    wanted = {"memory", "rank", "world_size", "sequence", "residuals"}
    if not isinstance(section, Mapping) or set(section) != wanted:
        got = sorted(section) if isinstance(section, Mapping) else repr(section)
        raise ValueError(
            f"load_state_dict of a CGXState: error_feedback holds {got}; allowed: a dict with "
            f"{', '.join(sorted(wanted))}"
        )
    residuals = section["residuals"]
    if not isinstance(residuals, Mapping):
        raise TypeError(f"error_feedback: residuals={residuals!r}; allowed: a dict by name")
    for name, saved in residuals.items():
        ok = isinstance(saved, torch.Tensor) and saved.dtype in (torch.float32, torch.bfloat16)
        if not ok:
            what = saved.dtype if isinstance(saved, torch.Tensor) else type(saved).__name__
            raise TypeError(
                f"error_feedback: the residual of {name!r} is {what}; allowed: tensors of "
                "float32 or bfloat16"
            )
        check_finite(name, saved)
    for key in ("rank", "world_size", "sequence"):
        if isinstance(section[key], bool) or not isinstance(section[key], int):
            raise TypeError(f"error_feedback: {key}={section[key]!r}; allowed: integers >= 0")
        if section[key] < 0:
            raise ValueError(f"error_feedback: {key}={section[key]}; allowed: integers >= 0")


def check_finite(name: str, residual: torch.Tensor) -> None:
    """ValueError if a saved residual holds a NaN or Inf, which it would add to every gradient."""
    if not bool(torch.isfinite(residual).all()):
        raise ValueError(
            f"error_feedback: the residual of {name!r} holds a NaN or Inf; allowed: finite values"
        )


def check_adaptive(section: Any, candidates: Iterable[int]) -> None:
    """ValueError if the section "adaptive" lacks a key, or has bits that are no candidate."""
    for key, kind in _ADAPTIVE.items():
        value = section.get(key) if isinstance(section, Mapping) else None
        if not isinstance(value, kind):
            raise ValueError(
                f"the restored state's section 'adaptive' has {key}={value!r}; allowed: "
                f"{kind.__name__}, as CGXState.state_dict() writes it"
            )
    for name, bits in section["bits"].items():
        if bits not in candidates:
            raise ValueError(
                f"the restored state has {bits!r} bits for {name!r}; allowed: the candidates "
                f"{candidates}"
            )


def check_model(saved: Mapping[str, int], pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
    """ValueError unless the saved model, {name: number of values}, is the one with these (name,
    parameter) pairs. No check where either is not known.
    """
    found = {name: parameter.numel() for name, parameter in pairs}
    if not saved or not found:
        return
    for name in [*saved, *found]:
        if saved.get(name) != found.get(name):
            raise ValueError(
                f"the restored state is of another model: there {_describe(name, saved)}, here "
                f"{_describe(name, found)}; allowed: a state of a model with the same parameters"
            )


def _describe(name: str, model: Mapping[str, int]) -> str:
    if name not in model:
        return f"no parameter is named {name!r}"
    return f"{name!r} has {model[name]} values"
