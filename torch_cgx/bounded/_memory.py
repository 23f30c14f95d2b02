"""Memory of tensors: large pages, pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes

# Results of at least this number of bytes ask for large pages.
LARGE = 1 << 22
CPU = torch.device("cpu")


def new_tensor(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device = CPU
) -> torch.Tensor:
    """An uninitialized tensor, on `device` if that is a CUDA device, else on the CPU. A large
    tensor on the CPU asks for large pages, as the page faults of small ones take longer than
    decoding. ValueError: torch returned a FakeTensor.
    """
    where = device if device.type == "cuda" else CPU
    fresh = torch.empty(tuple(shape), dtype=dtype, device=where)
    _dtypes.check_memory(fresh, "cannot be the result")
    if where == CPU and fresh.nbytes >= LARGE:
        _C.prefer_large_pages(fresh)
    return fresh


def pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized CPU tensor in pinned memory, for copies from and to a GPU."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)
