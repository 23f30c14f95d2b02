"""Runs a model and leaves it as it was: gradients, buffers and random numbers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np
import torch


class Unchanged:
    """Inside a `with`, gradients are None, and afterwards what they were: the same tensors.

    Hooks that run after a gradient is accumulated (of an optimizer in the backward pass) are off
    inside. Buffers get their objects and values back, modules their attributes; torch's, Python's
    and NumPy's random numbers go on as if nothing had run. All this after an exception too. What
    a forward pass changes inside of other objects, such as lists, stays.
    """

    def __init__(self, model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None:
        self._model = model
        self._given = [*model.parameters(), *tensors]
        self._leaves: dict[int, tuple[torch.Tensor, Any]] = {}
        self._hooks: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._values: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Unchanged:
        for module in self._model.modules():
            for names in (module.__dict__, module._buffers):
                self._attributes.append((names, dict(names)))
        self._values = [(buffer, buffer.detach().clone()) for buffer in self._model.buffers()]
        every = [*self._given, *self._model.buffers()]
        gpus = sorted({t.device.index or 0 for t in every if t.device.type == "cuda"})
        self._stack.enter_context(torch.random.fork_rng(devices=gpus))
        self._stack.callback(random.setstate, random.getstate())
        self._stack.callback(np.random.set_state, np.random.get_state())
        for tensor in self._given:
            self.leaf(tensor)
        return self

    def leaf(self, tensor: torch.Tensor) -> None:
        """From here on this tensor's gradient is kept too, if it is a leaf that has one."""
        if not (tensor.is_leaf and tensor.requires_grad) or id(tensor) in self._leaves:
            return
        self._leaves[id(tensor)] = tensor, tensor.grad
        tensor.grad = None
        hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
        if hooks:
            self._hooks.append((hooks, dict(hooks)))
            hooks.clear()

    def gradients(self) -> list[torch.Tensor]:
        """Those that the run has made so far."""
        grads = (tensor.grad for tensor, _ in self._leaves.values())
        return [grad for grad in grads if grad is not None]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._restore()
        finally:
            self._stack.close()

    def _restore(self) -> None:
        for tensor, grad in self._leaves.values():
            tensor.grad = grad
        for hooks, kept in self._hooks:
            hooks.update(kept)
        for names, attributes in self._attributes:
            for name in names.keys() - attributes.keys():
                del names[name]
            names.update(attributes)
        for buffer, value in self._values:
            # By .data, which counts no version: a graph of the caller may have saved the buffer.
            if not buffer.is_meta:
                buffer.data.copy_(value)
