"""`compress`: compress_saved around each forward pass of a model."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from torch_cgx.activations.saved.codings import DEFAULT
from torch_cgx.activations.saved.context import compress_saved
from torch_cgx.activations.saved.modules import frame_of, is_running
from torch_cgx.activations.saved.rules import Config, Filter


class Compression:
    """What `compress` has set up. step: the number of the next forward pass; state_dict() and
    load_state_dict() keep it, so that a resumed run rounds as one that was never stopped.
    """

    def __init__(self, model: nn.Module, context: compress_saved):
        self._context = context
        self.step = 0
        self._unsaved = 0  # forward passes of a training under no_grad, as of checkpoints
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
        self._hooks, self._unsaved = state["hooks"], 0
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
        """The model saves everything as it is again. What was saved already stays. Idempotent.
        RuntimeError: its forward pass is running on this thread.
        """
        self._leave_interrupted()
        if self._entries():
            raise RuntimeError(
                "remove() is called while the model's forward pass is running; call it afterwards"
            )
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

    def _entries(self) -> list[tuple[bool, FrameType | None]]:
        """Of this thread's forward passes: whether the context was entered, and the call."""
        if not hasattr(self._entered, "stack"):
            self._entered.stack = []
        found: list[tuple[bool, FrameType | None]] = self._entered.stack
        return found

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._leave_interrupted()
        entered, frame = torch.is_grad_enabled(), frame_of(module)
        if entered:
            self._context._model = weakref.ref(module)  # of a copy, another one
            self._context._step = self._key()
            self._context.__enter__()
            self._context.only_in(frame)
        elif module.training:
            self._unsaved += 1
        self._entries().append((entered, frame))

    def _key(self) -> int:
        """The number of this forward pass. A checkpoint runs one again in the backward pass, with
        the number of the one before, or with a new one if that has saved nothing, under no_grad.
        """
        again = torch._C._current_graph_task_id() != -1
        if again and not self._unsaved:
            return max(self.step - 1, 0)
        if again:
            self._unsaved -= 1
        self.step += 1
        return self.step - 1

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._entries() and self._entries().pop()[0]:
            self._context.__exit__(None, None, None)

    def _leave_interrupted(self) -> None:
        """Leaves what a forward pass has entered that ended with KeyboardInterrupt."""
        while self._entries() and not self._is_running(self._entries()[-1][1]):
            self._leave(*(None,) * 3)  # type: ignore[arg-type]

    @staticmethod
    def _is_running(frame: FrameType | None) -> bool:
        return frame is not None and is_running(frame)


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
    """Enters `compress_saved`, which describes the arguments, in each forward pass of a model,
    until remove() is called. `overrides` match the names of `model.named_modules()`.
    What torch.compile has compiled so far is compiled again at its next call.
    """
    context = compress_saved(config, min_size, filter, overrides, model=model, measure=measure)
    return Compression(model, context)
