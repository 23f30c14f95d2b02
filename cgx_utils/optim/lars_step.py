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
        count = len(self._weights)
        scales: list[Any] = self._scales() if self._adapts else [self._lr] * count
        velocities: list[torch.Tensor | None] = [*self._velocities] or [None] * count
        for place, (weights, gradient) in enumerate(
            zip(self._weights, self._gradients, strict=True)
        ):
            if self._adapts and weights.dtype == gradient.dtype:
                self._step_in_place(weights, gradient, velocities[place], scales[place])
            else:
                self._step_rounded_once(weights, gradient, velocities[place], scales[place])

    def _step_in_place(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        velocity: torch.Tensor | None,
        scale: torch.Tensor,
    ) -> None:
        """Without temporary tensors, whose memory costs more time on a CPU than the arithmetic."""
        momentum = self._group["momentum"]
        sign = -1 if self._group["maximize"] else 1
        decay = scale * self._decay if self._decay else None
        if velocity is not None:
            velocity.mul_(momentum).addcmul_(gradient, scale, value=sign)
            if decay is not None:
                velocity.addcmul_(weights, decay)
            if not self._group["nesterov"]:
                weights.sub_(velocity)
                return
        if decay is not None:
            weights.addcmul_(weights, decay, value=-1)
        weights.addcmul_(gradient, scale, value=-sign)
        if velocity is not None:
            weights.sub_(velocity, alpha=momentum)

    def _step_rounded_once(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        velocity: torch.Tensor | None,
        scale: Any,
    ) -> None:
        """In the gradient's dtype, which is float32 for weights of 16 bits."""
        momentum = self._group["momentum"]
        change = -gradient if self._group["maximize"] else gradient
        if self._decay:
            change = change.add(weights, alpha=self._decay)
        change = change * scale
        if velocity is not None:
            moved = change.add(velocity, alpha=momentum)
            velocity.copy_(moved)
            change = change.add_(moved, alpha=momentum) if self._group["nesterov"] else moved
        weights.sub_(change)

    def _step_together(self) -> None:
        """As _step_rounded_once, each operation on all tensors."""
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
