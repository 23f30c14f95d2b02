"""Whether all ranks of a group were given the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist


def compare(what: Mapping[str, Any], group: dist.ProcessGroup | None) -> None:
    """torch_cgx.MismatchError, on all ranks, that names the first entry which differs, unless all
    ranks of the group pass equal entries (compared by repr). Collective.
    """
    import torch_cgx

    mine = {key: repr(value) for key, value in what.items()}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    for key in mine:
        others = [rank for rank, one in enumerate(everyone) if one.get(key) != everyone[0].get(key)]
        if others:
            first, other = everyone[0].get(key), everyone[others[0]].get(key)
            raise torch_cgx.MismatchError(
                f"{key} differs between ranks: rank 0 has {_short(first, other)}, rank "
                f"{others[0]} has {_short(other, first)}; it has to be equal on all ranks"
            )


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """The SHA-256 of the tensors' bytes, shortened."""
    found = hashlib.sha256()
    for tensor in tensors:
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        found.update(raw.numpy().tobytes())
    return found.hexdigest()[:16]


def _short(text: Any, other: Any) -> str:
    """`text` from a little before where it differs from `other`."""
    text, other = str(text), str(other)
    pairs = zip(text, other, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))
    begin = max(0, same - 40)
    return ("..." if begin else "") + text[begin : begin + 120]
