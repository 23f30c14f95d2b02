"""LARS: a learning rate for each layer, from the norms of its weights and of its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import compress
from numbers import Real
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from cgx_utils.optim.lars_step import Batch
from cgx_utils.optim.norms import local_part, norms, placed_as

Skip = Callable[[torch.Tensor], bool]
_NUMBERS = ("lr", "momentum", "weight_decay", "trust_coefficient")
_OPTIONS = (*_NUMBERS, "nesterov", "maximize", "foreach")
_FLAG = (True, False)


def biases_and_norms(parameter: torch.Tensor) -> bool:
    """Whether a parameter has at most one dimension, as biases and the scales of norms have."""
    return parameter.dim() <= 1


class LARS(Optimizer):
    """SGD with momentum in which the size of each layer's step follows the size of its weights::

        optimizer = LARS(model.parameters(), lr=1.6)

    For weights w with the gradient g, at each step::

        lambda = trust_coefficient * |w| / (|g| + weight_decay * |w|)
        v <- momentum * v + lr * lambda * (g + weight_decay * w)
        w <- w - v

    with L2 norms of the whole parameter. lambda is 1 where w or g is all zeros. v begins as zeros
    and holds lr: a new learning rate changes the new part only, other than in torch.optim.SGD.

    params: parameters or groups of them, as of every optimizer of torch.
    lr: at least 0; a float, or a tensor of one value, which a compiled step takes without compiling
        anew when it changes.
    momentum: at least 0. With 0 there is no v.
    weight_decay: at least 0. It also is in lambda.
    trust_coefficient: above 0.
    skip: skip(parameter) says which parameters have lambda = 1 and no weight decay. The default,
        `biases_and_norms`, skips parameters of at most one dimension, as the MLPerf rules for LARS
        do. None skips nothing, as in CPD. It is asked at each step, and is not in state_dict().
    nesterov: w <- w - (momentum * v + lr * lambda * (g + weight_decay * w)), with the new v.
    maximize: goes along the gradient, not against it.
    foreach: all tensors of a group in one call each, which needs memory for their sum. None: on
        CUDA and XPU.

    Norms and steps are computed in float32, or float64 for parameters of float64; v, which
    state_dict() has as "momentum_buffer", is of the parameter's dtype. Gradients whose squares
    vanish in float32 (all below 1e-23) count as zeros. Norms of DTensors (FSDP2, tensor
    parallelism) are of the whole parameter: the ranks of a mesh call step() together, and it sends
    16 bytes for each parameter that is not skipped, in one all-reduce for each sharded dimension
    of a mesh. GradScaler, schedulers of learning rates, and torch.compile of step() work.

    Errors: ValueError, TypeError for arguments or options of a group that are not allowed, for
    complex parameters, and for parameters that FSDP1 has flattened. TypeError from step() for
    sparse gradients; nothing is changed then. ValueError from load_state_dict() for the state of
    another optimizer.

    You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017
    (arXiv:1708.03888). The defaults are CPD's, which has lr in v as here.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        *,
        trust_coefficient: float = 0.001,
        skip: Skip | None = biases_and_norms,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ):
        if skip is not None and not callable(skip):
            raise TypeError(f"skip={skip!r}; allowed: a function of a parameter, None")
        self._skip = skip
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
        }
        _check_options(defaults)
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_skip": self._skip}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also what load_state_dict() calls."""
        for group in state["param_groups"]:
            missing = [name for name in _OPTIONS if name not in group]
            if missing:
                raise ValueError(
                    f"a group of the state lacks {', '.join(missing)}; allowed: what state_dict() "
                    "of LARS returned"
                )
        super().__setstate__(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            _check_options(added)
            for number, parameter in enumerate(added["params"]):
                label = _label(added, len(self.param_groups) - 1, number)
                if parameter.is_complex():
                    raise TypeError(f"{label} is complex; allowed: real parameters")
                if getattr(parameter, "_fsdp_flattened", False):
                    raise ValueError(
                        f"{label} is a flat part of FSDP1, which has no norms of layers; allowed: "
                        "torch.distributed.fsdp.fully_shard"
                    )
        except Exception:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """closure: computes the loss and gradients anew; its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        with_gradient = [
            (place, parameter)
            for place, group in enumerate(self.param_groups)
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        weights = [parameter for _, parameter in with_gradient]
        gradients = [placed_as(parameter.grad, parameter) for parameter in weights]
        adapts = [self._skip is None or not self._skip(parameter) for parameter in weights]
        measured = [*compress(weights, adapts), *compress(gradients, adapts)]
        # One call for all groups: DTensors have one all-reduce.
        found = norms(measured)
        half = len(found) // 2
        pairs = iter(zip(found[:half], found[half:], strict=True))
        batches: dict[Any, Batch] = {}
        for (place, parameter), gradient, adapted in zip(
            with_gradient, gradients, adapts, strict=True
        ):
            group, mine = self.param_groups[place], local_part(parameter)
            key = place, adapted, mine.device, mine.dtype
            if key not in batches:
                batches[key] = Batch(group, adapted)
            velocity = local_part(self._velocity(parameter)) if group["momentum"] else None
            batches[key].add(mine, local_part(gradient), velocity, next(pairs) if adapted else None)
        for batch in batches.values():
            batch.step()
        return loss

    def _velocity(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(
                parameter, memory_format=torch.preserve_format
            )
        found: torch.Tensor = state["momentum_buffer"]
        return found

    def _check_gradients(self) -> None:
        for place, group in enumerate(self.param_groups):
            for number, parameter in enumerate(group["params"]):
                if parameter.grad is not None and parameter.grad.layout != torch.strided:
                    raise TypeError(
                        f"the gradient of {_label(group, place, number)} is of the layout "
                        f"{parameter.grad.layout}; allowed: dense gradients"
                    )


def _label(group: dict[str, Any], place: int, number: int) -> str:
    names = group.get("param_names", ())
    name = f" {names[number]!r}" if number < len(names) else ""
    shape = tuple(group["params"][number].shape)
    return f"the parameter{name} of shape {shape}, number {number} of group {place},"


def _check_options(options: dict[str, Any]) -> None:
    for name in _NUMBERS:
        value = options[name]
        if name == "lr" and isinstance(value, torch.Tensor):
            if value.numel() != 1:
                shape = tuple(value.shape)
                raise ValueError(f"lr is a tensor of shape {shape}; allowed: one value")
            continue  # it may be on another device
        positive = name == "trust_coefficient"
        allowed = "numbers > 0" if positive else "numbers >= 0"
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name}={value!r}; allowed: {allowed}")
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            raise ValueError(f"{name}={value!r}; allowed: {allowed}")
    for name, choices in (("nesterov", _FLAG), ("maximize", _FLAG), ("foreach", (*_FLAG, None))):
        if not any(options[name] is choice for choice in choices):
            allowed = ", ".join(map(str, choices))
            raise TypeError(f"{name}={options[name]!r}; allowed: {allowed}")
    if options["nesterov"] and not options["momentum"]:
        raise ValueError("nesterov=True with momentum=0; allowed: nesterov with a momentum > 0")
