"""What every method is behind: one tensor at one bound, compressed and decompressed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
Payload = Any  # has a len() in bytes


class Compressor(ABC):
    """One method on one tensor at one bound. `compress` and `decompress` are timed; everything that
    a program would do once, such as making room for results, is done when the object is made.

    values: contiguous, on the CPU; max_error: absolute, 0 is lossless.
    """

    threads = 1

    def __init__(self, values: torch.Tensor, max_error: float):
        self.values = values
        self.max_error = max_error

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        """Whether the method knows this dtype and, with 0, how to lose nothing."""
        return True

    @abstractmethod
    def compress(self) -> Payload: ...

    @abstractmethod
    def decompress(self, payload: Payload) -> Any:
        """The values in their dtype, a tensor or an array of any shape; may be overwritten by the
        next call.
        """

    def nbytes(self, payload: Payload) -> int:
        """All that must be kept."""
        return len(payload)


def words_of(values: torch.Tensor) -> Array:
    """Flat; bfloat16, which NumPy has not, as uint16."""
    flat = values.reshape(-1)
    if values.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()
