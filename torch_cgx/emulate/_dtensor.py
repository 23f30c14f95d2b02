"""Casts of DTensors: each shard by itself, where values do not depend on each other."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch_cgx.emulate._format import Format


def is_dtensor(x: object) -> bool:
    """Without an import of torch.distributed.tensor, which takes a second."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def take_dtensors(x: Any, format: Format) -> None:
    """Makes the operators take DTensors. ValueError: a shard's values depend on other shards."""
    apart = any(not p.is_replicate() for p in x.placements)
    if apart and not format.elementwise:
        raise ValueError(
            f"x is a DTensor with the placements {x.placements}, and {format} shares scales "
            "between values: cast x.to_local(), or a replicated DTensor"
        )
    if apart and format.stochastic:
        raise ValueError(
            f"x is a DTensor with the placements {x.placements}, and {format} draws random numbers "
            "by a value's place in its shard, the same in each one: cast x.to_local() with a seed "
            "of each rank's own, or a replicated DTensor"
        )
    _register()


@functools.cache
def _register() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def shardings(x: Any, *others: Any) -> list[Any]:
        rest = [None] * len(others)
        kept: list[Any] = [Replicate(), *(Shard(d) for d in range(len(x.shape)))]
        return [([one], [one, *rest]) for one in kept]

    register_sharding(torch.ops.torch_cgx.cast.default)(shardings)
