"""Checks of the arguments of `DiLoCo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_cgx._policy.names import named_of

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_arguments(
    model: Any, inner: Any, outer: Any, every: Any, error_feedback: Any, nonfinite: Any
) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is of type {type(model).__name__}; allowed: torch.nn.Module")
    for name, optimizer in (("inner", inner), ("outer", outer)):
        if isinstance(optimizer, torch.optim.Optimizer) or (name, optimizer) == ("outer", None):
            continue
        raise TypeError(
            f"{name} is of type {type(optimizer).__name__}; allowed: torch.optim.Optimizer"
            + (", None" if name == "outer" else "")
        )
    if inner is outer:
        raise ValueError("inner and outer are the same optimizer; allowed: one for each")
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every={every!r}; allowed: integers >= 1")
    if every < 1:
        raise ValueError(f"every={every}; allowed: integers >= 1")
    if not isinstance(error_feedback, bool):
        raise TypeError(f"error_feedback={error_feedback!r}; allowed: True, False")
    if nonfinite not in ("raise", "skip"):
        raise ValueError(f"nonfinite={nonfinite!r}; allowed: 'raise', 'skip'")


def check_outer(outer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]) -> None:
    """ValueError unless `outer` has all the model's parameters, and no others."""
    has = {id(p) for group in outer.param_groups for p in group["params"]}
    for name, parameter in named.items():
        if id(parameter) not in has:
            raise ValueError(
                f"outer does not have the model's parameter {name!r}, which would never change; "
                "needed: all that require a gradient, as model.parameters()"
            )
    more = len(has - {id(p) for p in named.values()})
    if more:
        raise ValueError(
            f"outer has {more} tensors beside the model's parameters that require a gradient; "
            "allowed: only these parameters"
        )


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that take part, by name; TypeError or ValueError names one that cannot."""
    from torch.distributed.tensor import DTensor  # slow to import

    every = [(one.name, one.parameter) for one in named_of(model)]
    found = {n: p for n, p in every if isinstance(p, torch.nn.Parameter) and p.requires_grad}
    if not found:
        raise ValueError(
            "the model has no parameter that requires a gradient; needed: at least one"
        )
    device = next(iter(found.values())).device
    for name, parameter in found.items():
        if isinstance(parameter, DTensor):
            raise TypeError(
                f"the parameter {name!r} is a DTensor; allowed: plain tensors (a sharded model is "
                "for cgx_utils.fsdp)"
            )
        if parameter.dtype not in _DTYPES:
            raise TypeError(
                f"the parameter {name!r} is {parameter.dtype}; allowed: "
                f"{', '.join(map(str, _DTYPES))}"
            )
        if parameter.device != device:
            raise ValueError(
                f"the parameter {name!r} is on {parameter.device}, others are on {device}; "
                "allowed: one device"
            )
    return found
