"""A step of LARS on tensors whose norms are known."""

from __future__ import annotations

from typing import Any

import torch

from cgx_utils.optim.norms import wide

_MANY = ("cuda", "xpu")  # devices on which a launch costs more than the work on a small tensor


class Batch:
    """Tensors of one group, device and dtype that take a step together.

    group: the options of LARS. adapts: whether they have a lambda, and weight decay.
    """

    def __init__(self, group: dict[str, Any], adapts: bool):
        self._group, self._adapts = group, adapts
        self._weights: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []
        self._norms: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._velocities: list[torch.Tensor] = []

    def add(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        velocity: torch.Tensor | None,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        """weights and velocity change in the step. velocity: None without momentum. norms: of the
        weights and the gradient, of shape (); None unless they are adapted.
        """
        self._weights.append(weights)
        self._gradients.append(gradient.to(wide(weights.dtype)))
        if velocity is not None:
            self._velocities.append(velocity)
        if norms is not None:
            self._norms.append(norms)

    def step(self) -> None:
        foreach = self._group["foreach"]
        if foreach is None:
            foreach = self._weights[0].device.type in _MANY
        if foreach:
            self._step_together()
        else:
            self._step_one_by_one()

    @property
    def _lr(self) -> Any:
        lr = self._group["lr"]
        return lr.reshape(()) if isinstance(lr, torch.Tensor) else lr

    @property
    def _decay(self) -> float:
        decay: float = self._group["weight_decay"] if self._adapts else 0.0
        return decay

    def _scales(self) -> list[torch.Tensor]:
        """lr * lambda of each tensor, of shape ()."""
        w, g = (torch.stack(found) for found in zip(*self._norms, strict=True))
        trust = self._group["trust_coefficient"] * w / (g + self._decay * w)
        return list((self._lr * torch.where((w > 0) & (g > 0), trust, 1.0)).unbind())

    def _step_one_by_one(self) -> None:
        momentum = self._group["momentum"]
        scales: list[Any] = self._scales() if self._adapts else [self._lr] * len(self._weights)
        for place, (weights, scale) in enumerate(zip(self._weights, scales, strict=True)):
            change = self._gradients[place]
            if self._group["maximize"]:
                change = -change
            if self._decay:
                change = change.add(weights, alpha=self._decay)
            change = change * scale
            if momentum:
                velocity = change.add(self._velocities[place], alpha=momentum)
                self._velocities[place].copy_(velocity)
                if self._group["nesterov"]:
                    velocity = change.add_(velocity, alpha=momentum)
                change = velocity
            weights.sub_(change)

    def _step_together(self) -> None:
        """The same operations, each of them on all tensors."""
        momentum = self._group["momentum"]
        changes: Any = self._gradients
        if self._group["maximize"]:
            changes = torch._foreach_neg(changes)
        if self._decay:
            changes = torch._foreach_add(changes, self._weights, alpha=self._decay)
        changes = torch._foreach_mul(changes, self._scales() if self._adapts else self._lr)
        if momentum:
            velocities: Any = torch._foreach_add(changes, self._velocities, alpha=momentum)
            torch._foreach_copy_(self._velocities, velocities)
            if self._group["nesterov"]:
                torch._foreach_add_(changes, velocities, alpha=momentum)
            else:
                changes = velocities
        torch._foreach_sub_(self._weights, changes)
