"""Which module is running: read from the frames of the calls, since hooks on modules would break
graphs of torch.compile and slow all modules down.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType

import torch
from torch import nn

from torch_cgx.activations._weights import frozen_of, has_storage

_CALL = nn.Module._wrapped_call_impl.__code__


# Of the code that runs what torch.compile has made.
_COMPILED = "_aot_autograd"


def running() -> tuple[list[nn.Module], bool]:
    """The modules whose forward is running on this thread, the outermost first; and whether the
    innermost of them, or a function in it, is a compiled one.
    """
    found: list[nn.Module] = []
    compiled = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            found.append(frame.f_locals["self"])
        elif not found and _COMPILED in frame.f_code.co_filename:
            compiled = True
        frame = frame.f_back
    found.reverse()
    return found, compiled


def is_running(frame: FrameType) -> bool:
    """Whether a call is running on this thread."""
    now: FrameType | None = sys._getframe(1)
    while now is not None:
        if now is frame:
            return True
        now = now.f_back
    return False


def frame_of(module: nn.Module) -> FrameType | None:
    """The innermost call of the module that is running; None in compiled code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL and frame.f_locals["self"] is module:
            return frame
        frame = frame.f_back
    return None


class Names:
    """Qualified names of the modules in a root, and what of its memory is no activation. Looked up
    once for each root; a module that is added later has the name of the one around it.
    """

    def __init__(self, root: nn.Module):
        self._root = weakref.ref(root)
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        for name, module in root.named_modules():
            self._names[module] = name

    def of(self, stack: list[nn.Module]) -> str:
        for module in reversed(stack):
            name = self._names.get(module)
            if name is not None:
                return name
        return ""

    def any_of(self, stack: list[nn.Module]) -> bool:
        return any(module in self._names for module in stack)

    def all(self) -> list[str]:
        return list(self._names.values())

    def storages(self) -> set[int]:
        """Identities of the storages of parameters and buffers, as they are now."""
        return {one.untyped_storage()._cdata for one in self._held() if has_storage(one)}

    def frozen(self) -> dict[torch.Size, list[torch.Tensor]]:
        """The parameters and buffers that require no gradient, by shape."""
        return frozen_of(self._held())

    def _held(self) -> list[torch.Tensor]:
        root = self._root()
        return [] if root is None else [*root.parameters(), *root.buffers()]
