"""L2 norms of many tensors at once, of DTensors over all their shards."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch


def local_part(x: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor, in the same memory; any other tensor as it is."""
    sharded = _as_dtensor(x)
    return x if sharded is None else sharded.to_local()


def placed_as(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A DTensor with the placements of another one, which also adds up partial sums; any other
    tensor as it is.
    """
    found, wanted = _as_dtensor(x), _as_dtensor(other)
    if found is None or wanted is None or found.placements == wanted.placements:
        return x
    placed: torch.Tensor = found.redistribute(wanted.device_mesh, wanted.placements)
    return placed


def wide(dtype: torch.dtype) -> torch.dtype:
    """What values of a floating dtype are computed in: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The L2 norm of each tensor, of shape (), on its device and in `wide` of its dtype.

    Of a DTensor it is the norm of the whole tensor, alike on all ranks of its mesh, as a plain
    tensor: DTensors of a mesh that are sharded over the same dimensions of it share an all-reduce
    for each, of a float64 a tensor. The ranks of a mesh call it with the same DTensors.
    """
    local = [local_part(x) for x in tensors]
    alike = defaultdict(list)
    for place, x in enumerate(local):
        alike[x.device, x.dtype].append(place)
    found: list[Any] = [None] * len(local)
    for (_, dtype), places in alike.items():
        here = torch._foreach_norm([local[place] for place in places], 2, dtype=wide(dtype))
        for place, norm in zip(places, here, strict=True):
            found[place] = norm

    meshes = defaultdict(list)
    for place, x in enumerate(tensors):
        sharded = _as_dtensor(x)
        if sharded is not None and any(map(_is_split, sharded.placements)):
            split = tuple(map(_is_split, sharded.placements))
            meshes[sharded.device_mesh, split, found[place].dtype].append(place)
    for (mesh, split, _), places in meshes.items():
        joined = _joined([found[place] for place in places], mesh, split)
        for place, norm in zip(places, joined, strict=True):
            found[place] = norm
    return found


def _joined(shards: list[torch.Tensor], mesh: Any, split: Sequence[bool]) -> list[torch.Tensor]:
    """Norms of whole tensors from the norms of their shards. split: by dimension of the mesh."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    squares = torch.stack(shards).double().square()
    sums = [Partial() if one else Replicate() for one in split]
    whole = DTensor.from_local(squares, mesh, sums, run_check=False).full_tensor()
    return list(whole.sqrt().to(shards[0].dtype).unbind())


def _is_split(placement: Any) -> bool:
    return not placement.is_replicate()


def _as_dtensor(x: torch.Tensor) -> Any:
    """x if it is one, else None."""
    module: Any = sys.modules.get("torch.distributed.tensor")  # slow to import
    return x if module is not None and isinstance(x, module.DTensor) else None
