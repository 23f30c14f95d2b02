"""Gradients over ranks: exact, or in the messages of the codec `float`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx._config import codec_of, defaults
from torch_cgx.emulate._formats import Float
from torch_cgx.emulate.comparison.recipes import Method


def config_of(recipe: Method) -> dict[str, Any]:
    """How messages have the numbers that a recipe sums gradients in: of its bits, rounded as IEEE
    does. ValueError: no codec sends them.
    """
    assert recipe.sums is not None
    format = recipe.sums.format
    if recipe.sums.kahan:
        raise ValueError(f"recipe {recipe.name}: kahan with ranks; ranks sum in float32")
    if not isinstance(format, Float):
        raise ValueError(f"recipe {recipe.name}: {format} with ranks; allowed: Float(e, m)")
    config = {"codec": "float", "exponent": format.exponent, "mantissa": format.mantissa}
    try:
        codec_of(config, defaults())
    except ValueError as error:
        raise ValueError(f"recipe {recipe.name} with ranks: {error}") from None
    return config


class Exchanged:
    """Means of gradients over the ranks of the default group. recipe: one that sums gradients in a
    format sends numbers of that format, with its shift; others are exact. ValueError: as above.
    """

    def __init__(self, recipe: Method):
        self._config: dict[str, Any] | None = None
        self._aps = False
        if recipe.sums is not None:
            self._config, self._aps = config_of(recipe), recipe.sums.aps

    def __call__(self, gradients: Sequence[torch.Tensor], loss: float) -> float:
        """Each parameter is a layer, so that it has a shift of its own; the loss is the last."""
        from torch_cgx._collectives import all_reduce

        last = torch.tensor([loss], dtype=torch.float32, device="cpu")
        flat = torch.cat([*(one.reshape(-1).float() for one in gradients), last])
        layers: list[tuple[int, Any]] = [(one.numel(), self._config) for one in gradients]
        all_reduce(flat, dist.ReduceOp.AVG, layers=[*layers, (1, None)], aps=self._aps)
        *means, mean = flat.split([*(one.numel() for one in gradients), 1])
        for gradient, values in zip(gradients, means, strict=True):
            gradient.copy_(values.view_as(gradient))
        return float(mean)
