"""Scales of whole tensors that follow earlier tensors: Transformer Engine's delayed scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_cgx.emulate.gemm.formats import Scaled
from torch_cgx.emulate.gemm.operand import scale_of


class History:
    """The greatest magnitudes of the last tensors of one operand, in float32 on its device. Tensors
    with a NaN or an infinity count as zeros.
    """

    def __init__(self, format: Scaled):
        self._format = format
        self._amax = torch.zeros(format.history, dtype=torch.float32, device="cpu")
        self._next = 0
        self._scale = torch.ones((), dtype=torch.float32, device="cpu")  # of the last tensor

    @property
    def last(self) -> torch.Tensor:
        """The scale of the last tensor that counted: of a layer that runs again in the backward
        pass."""
        return self._scale

    def scale(self, x: torch.Tensor, counts: bool) -> torch.Tensor:
        """Of x, from the tensors before it; where all of these were zeros, the one before. counts:
        x is then one of them, as in a training.
        """
        if self._amax.device != x.device:
            self._amax, self._scale = self._amax.to(x.device), self._scale.to(x.device)
        greatest = self._amax.amax()
        scale = torch.where(greatest > 0, scale_of(greatest, self._format), self._scale)
        if not counts:
            return scale
        self._scale = scale
        amax = x.abs().amax().float() if x.numel() else self._amax.new_zeros(())
        self._amax[self._next] = torch.where(amax.isfinite(), amax, 0.0)
        self._next = (self._next + 1) % self._format.history
        return self._scale

    def state(self) -> dict[str, Any]:
        return {"amax": self._amax.clone(), "next": self._next, "scale": self._scale.clone()}

    def check(self, name: str, state: Any) -> None:
        """ValueError: no such state, or of another length."""
        if not isinstance(state, Mapping) or set(state) != {"amax", "next", "scale"}:
            found = sorted(state) if isinstance(state, Mapping) else repr(state)
            raise ValueError(f"scales of {name!r} are {found}; allowed: amax, next, scale")
        if state["amax"].shape != self._amax.shape:
            raise ValueError(
                f"scales of {name!r}: a history of {state['amax'].numel()} amaxes; allowed: "
                f"{self._format.history}"
            )

    def load(self, state: dict[str, Any]) -> None:
        """After `check`."""
        self._amax, self._next = state["amax"].clone(), int(state["next"])
        self._scale = state["scale"].clone()
