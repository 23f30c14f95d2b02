"""The stages of cuda_float_compress's format beside its entropy coder: on the CPU, or by kernels on
a GPU, with the same words, values and misfits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from torch_cgx import _C
from torch_cgx.bounded._memory import pinned

_ops = torch.ops.torch_cgx
Words = npt.NDArray[np.uint32] | npt.NDArray[np.int32]

BLOCK = 32768  # values that are shuffled together; also the words of the largest Zstandard block
ON_CPU = 4 * BLOCK  # values that are processed at once on the CPU: they fit the cache
ON_GPU = 128 * BLOCK  # the same on a GPU, where launches take time: 16 MiB
PART = _C.CUDA_FLOAT_COMPRESS_PART  # words that share an entry of the misfits
_NO_MISFIT = 2**31 - 1


def raw_words(n: int) -> int:
    return -(-n // BLOCK) * BLOCK


def _new_words(values: int, device: torch.device | str) -> torch.Tensor:
    """Room for the words of so many values."""
    return torch.empty(raw_words(values), dtype=torch.int32, device=device)


def _encode(
    values: torch.Tensor, step: float, bound: float, keep_going: bool, raw: torch.Tensor
) -> int:
    """The index of the first misfit, or _NO_MISFIT. Waits for the device."""
    misfits = torch.empty(raw.numel() // PART, dtype=torch.int32, device=values.device)
    _ops.cuda_float_compress_encode(values, step, bound, keep_going, words=raw, misfits=misfits)
    return int(misfits.min()) if misfits.numel() > 0 else _NO_MISFIT


class OnCpu:
    """The values of a float32 tensor, copied to the CPU if they are on another device."""

    at_once = ON_CPU

    def __init__(self, tensor: torch.Tensor) -> None:
        x = tensor.detach().resolve_neg().cpu().contiguous().view(-1)
        # Views of storages of bytes may start anywhere.
        self._x = x if x.data_ptr() % 4 == 0 else x.clone()
        self.size = self._x.numel()
        self._raw = _new_words(min(self.size, self.at_once), "cpu")

    def encode(
        self, start: int, step: float, bound: float, keep_going: bool
    ) -> tuple[Words, int | None]:
        """The words of `at_once` values from `start`, valid until the next call; and the index of
        the first value that does not fit, or None. If a value does not fit, the words are not
        complete. With `keep_going`, values may miss the bound.
        """
        values = self._x[start : start + self.at_once]
        raw = self._raw[: raw_words(values.numel())]
        misfit = _encode(values, step, bound, keep_going, raw)
        return raw.numpy(), None if misfit == _NO_MISFIT else start + misfit

    def first_out_of_range(self, step: float) -> tuple[int, float]:
        """The first value that is NaN, infinite or of 2^31 steps and more, size for none; the
        largest magnitude, if there is none.
        """
        return _C.cuda_float_compress_range(self._x, step)

    def value(self, index: int) -> np.float32:
        return np.float32(self._x[index].item())


class OnGpu:
    """As OnCpu, on the tensor's device and its current stream."""

    at_once = ON_GPU

    def __init__(self, tensor: torch.Tensor) -> None:
        x = tensor.detach().resolve_neg().contiguous().view(-1)
        # Views of storages of bytes may start anywhere.
        self._x = x if x.data_ptr() % 4 == 0 else x.clone()
        self.size = x.numel()
        words = raw_words(min(self.size, self.at_once))
        self._raw = pinned((words,), torch.int32)

    def encode(
        self, start: int, step: float, bound: float, keep_going: bool
    ) -> tuple[Words, int | None]:
        values = self._x[start : start + self.at_once]
        raw = _new_words(values.numel(), self._x.device)
        misfit = _encode(values, step, bound, keep_going, raw)
        if misfit != _NO_MISFIT:
            return self._raw.numpy(), start + misfit
        return self._raw[: raw.numel()].copy_(raw).numpy(), None

    def first_out_of_range(self, step: float) -> tuple[int, float]:
        starts = range(0, self.size, self.at_once)
        # The bits of magnitudes compare as the magnitudes do, and the bits of NaN are the greatest.
        # The CPU examines the greatest of each `at_once` values, then the first run of values that
        # has one out of range.
        largest = torch.empty(len(starts), dtype=torch.int32, device=self._x.device)
        for number, start in enumerate(starts):
            bits = self._x[start : start + self.at_once].view(torch.int32)
            largest[number] = bits.bitwise_and(0x7FFFFFFF).max()
        number, most = OnCpu(largest.view(torch.float32)).first_out_of_range(step)
        if number == len(starts):
            return self.size, most
        start = number * self.at_once
        values = OnCpu(self._x[start : start + self.at_once])
        return start + values.first_out_of_range(step)[0], most

    def value(self, index: int) -> np.float32:
        return np.float32(self._x[index].item())


def decode(read: Callable[[Words], None], step: float, y: torch.Tensor) -> None:
    """Writes all values of a contiguous float32 tensor. `read` fills arrays with the words of all
    blocks, one after the other.
    """
    (_decode_on_gpu if y.is_cuda else _decode_on_cpu)(read, step, y)


def _decode_on_cpu(read: Callable[[Words], None], step: float, y: torch.Tensor) -> None:
    words = _new_words(min(y.numel(), ON_CPU), "cpu")
    for start in range(0, y.numel(), ON_CPU):
        values = y[start : start + ON_CPU]
        raw = words[: raw_words(values.numel())]
        read(raw.numpy())
        _ops.cuda_float_compress_decode(raw, step, out=values)


def _decode_on_gpu(read: Callable[[Words], None], step: float, y: torch.Tensor) -> None:
    for start in range(0, y.numel(), ON_GPU):
        values = y[start : start + ON_GPU]
        # New memory, as the copy of the former values may not have ended; torch keeps it until
        # then.
        host = pinned((raw_words(values.numel()),), torch.int32)
        read(host.numpy())
        raw = host.to(y.device, non_blocking=True)
        _ops.cuda_float_compress_decode(raw, step, out=values)
