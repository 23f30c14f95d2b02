"""`compress`: compress_saved around each forward pass of a model."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torch_cgx.activations.saved.codings import DEFAULT
from torch_cgx.activations.saved.context import Config, Filter, compress_saved


class Compression:
    """What `compress` has set up. step: the number of the next forward pass; state_dict() and
    load_state_dict() keep it, so that a resumed run rounds as one that was never stopped.
    """

    def __init__(self, model: nn.Module, context: compress_saved):
        self._context = context
        self.step = 0
        self._entered = threading.local()
        _forget_compiled()
        _outside_of_graphs()
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self, "_enter"), prepend=True),
            model.register_forward_hook(_Hook(self, "_leave"), always_call=True),
        ]

    def __getstate__(self) -> dict[str, Any]:
        """For copies of the model, and for pickled ones, each of which has its own."""
        return {"context": self._context, "step": self.step, "hooks": self._hooks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._context, self.step = state["context"], state["step"]
        self._hooks = state["hooks"]
        self._entered = threading.local()

    @property
    def errors(self) -> dict[str, float]:
        """As of compress_saved, of the last forward pass."""
        return self._context.errors

    @property
    def measure(self) -> bool:
        """Whether forward passes measure errors: may be set between them."""
        return self._context.measure

    @measure.setter
    def measure(self, value: bool) -> None:
        self._context.measure = value

    @property
    def bytes_saved(self) -> int:
        return self._context.bytes_saved

    @property
    def bytes_kept(self) -> int:
        return self._context.bytes_kept

    def remove(self) -> None:
        """The model saves everything as it is again. What was saved already stays. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            _forget_compiled()
        _outside_of_graphs()
        self._hooks = []

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """ValueError, TypeError unless state_dict() can have returned it."""
        if not isinstance(state, Mapping) or set(state) != {"step"}:
            found = sorted(state) if isinstance(state, Mapping) else repr(state)
            raise ValueError(f"the state holds {found}; allowed: a dict with step")
        step = state["step"]
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
            raise ValueError(f"step={step!r}; allowed: integers of 0 to 2**63 - 1")
        self.step = step

    def _depth(self) -> list[bool]:
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        found: list[bool] = self._entered.stack
        return found

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        entered = torch.is_grad_enabled()
        if entered:
            self._context._model = weakref.ref(module)  # of a copy, another one
            self._context._step = self.step
            self._context.__enter__()
            # A checkpoint that runs the forward pass again does so in the backward pass.
            if torch._C._current_graph_task_id() == -1:
                self.step += 1
        self._depth().append(entered)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._depth() and self._depth().pop():
            self._context.__exit__(None, None, None)


class _Hook:
    """A hook of a module that can be copied and pickled with it."""

    def __init__(self, compression: Compression, name: str):
        self._compression, self._name = compression, name

    def __call__(self, *arguments: Any) -> None:
        _outside_of_graphs()(self._compression, self._name, arguments)


def _run(compression: Compression, name: str, arguments: tuple[Any, ...]) -> None:
    getattr(compression, name)(*arguments)


@functools.cache
def _outside_of_graphs() -> Callable[..., None]:
    """torch.compile breaks its graph at the hooks, and compiles the forward pass between them."""
    reason = "hooks of torch_cgx.activations.compress run outside of compiled graphs"
    made: Callable[..., None] = torch.compiler.disable(_run, reason=reason)
    return made


def _forget_compiled() -> None:
    """torch.compile does not look at hooks again: what it has compiled for this module, or another
    one of its class, would go on without them.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def compress(
    model: nn.Module,
    config: Config = DEFAULT,
    min_size: int = 1024,
    filter: Filter | None = None,
    overrides: Mapping[str, Config | None] | None = None,
    *,
    measure: bool = False,
) -> Compression:
    """Enters `compress_saved` in each forward pass of a model, until remove() is called. Arguments
    are as there; names in `overrides` are those of `model.named_modules()`. Returns a Compression.
    What torch.compile has compiled so far is compiled again at its next call.
    """
    context = compress_saved(config, min_size, filter, overrides, model=model, measure=measure)
    return Compression(model, context)
