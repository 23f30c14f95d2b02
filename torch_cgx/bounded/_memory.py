"""Memory of results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes

# Bytes from which large pages are worth asking for.
LARGE = 1 << 22
CPU = torch.device("cpu")


class Memory:
    """The memory of a contiguous tensor on the CPU, for native code, which takes addresses. It
    keeps the tensor: who has this may use its addresses, on any thread.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._start = tensor.data_ptr()

    def at(self, offset: int) -> int:
        """The address of the byte with that number."""
        return self._start + offset


def new_tensor(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device = CPU
) -> torch.Tensor:
    """An uninitialized tensor on the CPU, or on a CUDA device. A large one on the CPU asks for
    large pages: faults of small ones take longer than decoding. ValueError: torch makes fake
    tensors.
    """
    where = device if device.type == "cuda" else CPU
    fresh = torch.empty(tuple(shape), dtype=dtype, device=where)
    _dtypes.check_memory(fresh, "cannot be the result")
    if where == CPU and fresh.nbytes >= LARGE:
        _C.prefer_large_pages(fresh.data_ptr(), fresh.nbytes)
    return fresh


def pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized CPU tensor that a GPU copies from and to."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)
