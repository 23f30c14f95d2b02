"""A model whose forward pass torch.compile compiles as a whole, and that keeps a part for backward:
torch's own `activation_memory_budget`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_cgx._warnings import warn

_BACKEND = "inductor"
RANDOM = (
    "the model draws random numbers (dropout), and torch 2.13 draws others where it computes them "
    "again in the backward pass: the gradient is wrong (pytorch/pytorch#190758)"
)


class Compiled:
    """Stands in a model as its `forward`, in the object and not in the class: names of parameters,
    hooks and types stay. Copies and pickles of the model take it along, and compile again.

    share: of the activations, from 0 (all is computed again) to 1 (torch's choice for speed).
    warns: if the model draws random numbers, at the first pass of each mode.
    draws: whether it does, as far as passes have shown.
    """

    _function: Callable[..., Any] | None = None

    def __init__(self, module: nn.Module, share: float, warns: bool = True) -> None:
        self._module, self.share, self._warns = module, share, warns
        self.draws = False
        self._seen: set[bool] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self._module).forward(self._module, *args, **kwargs)
        import torch._functorch.config as settings

        if self._function is None:
            self._function = _compiled(self._module)
        # At each call: other shapes are compiled when they come.
        with settings.patch(activation_memory_budget=self.share):  # type: ignore[attr-defined]
            if self._module.training in self._seen:
                return self._function(*args, **kwargs)
            before = _random_states(self._module)
            result = self._function(*args, **kwargs)
        self._see(before)
        return result

    def _see(self, before: list[Tensor]) -> None:
        self._seen.add(self._module.training)
        pairs = zip(before, _random_states(self._module), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            self.draws = True
            if self._warns and self.share < 1:
                warn(f"a plan compiles the model with activation_memory_budget: {RANDOM}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}


def _random_states(module: nn.Module) -> list[Tensor]:
    """Of the generators of the CPU and of the model's GPUs."""
    gpus = {one.device.index for one in module.parameters() if one.is_cuda}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(one) for one in sorted(gpus))]


def _compiled(module: nn.Module) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return type(module).forward(module, *args, **kwargs)

    # torch.compile finds what it has compiled by the code object, whatever the settings.
    run.__code__ = run.__code__.replace()
    # Inductor draws the random numbers that eager mode draws, so that dropout has the masks of the
    # exact gradient.
    options: dict[str, Any] | None
    options = {"fallback_random": True} if _BACKEND == "inductor" else None
    function: Callable[..., Any] = torch.compile(run, backend=_BACKEND, options=options)
    return function


def set_compiled(module: nn.Module, compiled: Compiled) -> None:
    module.__dict__["forward"] = compiled


def remove_compiled(module: nn.Module) -> None:
    if isinstance(module.__dict__.get("forward"), Compiled):
        del module.__dict__["forward"]
