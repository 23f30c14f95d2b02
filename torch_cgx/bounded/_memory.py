"""Memory of results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _C

# Bytes from which large pages are worth asking for.
LARGE = 1 << 22


def new_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized CPU tensor. A large one asks for large pages: faults of small ones take
    longer than decoding.
    """
    fresh = torch.empty(tuple(shape), dtype=dtype)
    if fresh.nbytes >= LARGE:
        _C.prefer_large_pages(fresh.data_ptr(), fresh.nbytes)
    return fresh
