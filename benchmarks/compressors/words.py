"""General-purpose compressors with a bound: integers by NumPy, as a program makes them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.compressors.compressor import Array, Compressor, Payload, words_of
from benchmarks.compressors.packers import Packer


class Words(Compressor):
    """A value that stands for "no value" is a number of its own below all others, as in a program
    that knows its data: it would widen the range of the integers, or fit none.
    """

    MARGINS = (0, 1, 2, 4)
    # Bytes of the step, the number of values and their fill, which a program must keep, too.
    HEADER = 16

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype in (torch.float32, torch.float64) or max_error == 0

    def __init__(self, values: torch.Tensor, max_error: float, make_packer: Callable[[], Packer]):
        super().__init__(values, max_error)
        self._packer = make_packer()
        self._x = words_of(values)
        # Floats on their way to integers, and in the end.
        self._out = _room("floats", self._x.size, self._x.dtype)
        if max_error > 0:
            self._q = _room("integers", self._x.size, np.int32)
            self._restored = _room("integers again", self._x.size, np.int32)
            self._fill = fill_of(self._x)
            self._code = 0
            self._step = self._widest_step()

    def compress(self) -> Payload:
        if self.max_error == 0:
            return self._packer.pack(self._x)
        self._quantise()
        return self._packer.pack(self._q)

    def decompress(self, payload: Payload) -> Any:
        if self.max_error == 0:
            return self._packer.unpack(payload, self._out)
        return self._dequantise(self._packer.unpack(payload, self._restored))

    def nbytes(self, payload: Payload) -> int:
        return len(payload) + self.HEADER

    def _quantise(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # what fits no integer misses the bound
            np.multiply(self._x, self._x.dtype.type(1 / self._step), out=self._out)
            np.rint(self._out, out=self._out)
            if self._fill is not None:
                np.copyto(self._out, self._code, where=_is(self._x, self._fill))
            np.copyto(self._q, self._out, casting="unsafe")

    def _dequantise(self, q: Array) -> Array:
        kind = self._x.dtype
        np.multiply(q, kind.type(self._step), out=self._out, dtype=kind, casting="unsafe")
        if self._fill is not None:
            np.copyto(self._out, self._fill, where=q == self._code)
        return self._out

    def _widest_step(self) -> float:
        """2 max_error, or so much less that the rounding of floats, too, stays within the bound:
        what a program that knows its data does. Not timed.
        """
        valid = slice(None) if self._fill is None else ~_is(self._x, self._fill)
        x = self._x[valid]
        ulp = float(np.spacing(np.abs(x).max()))
        for margin in self.MARGINS:
            self._step = 2 * (self.max_error - margin * ulp)
            if not self._step > 0:
                break
            self._code = int(max(np.rint(float(x.min()) / self._step) - 1, -(2**31)))
            self._quantise()
            error = np.abs(self._dequantise(self._q)[valid].astype(np.float64) - x).max()
            if error <= self.max_error:
                return self._step
        self._step = 2 * self.max_error  # the row says that the bound is missed
        return self._step


def fill_of(x: Array) -> float | None:
    """The value that stands for "no value": NaN, or the least or greatest value where it is
    infinite, or comes again and is farther from the others than these are from each other. None:
    there is none.
    """
    missing = np.isnan(x)
    if missing.any():
        return None if missing.all() else float("nan")
    for extreme in (x.min(), x.max()):
        others = x[x != extreme]
        if others.size == 0 or (np.isfinite(extreme) and x.size - others.size < 2):
            continue
        low, high = float(others.min()), float(others.max())
        away = low - float(extreme) if extreme < low else float(extreme) - high
        if 0 < high - low < away:
            return float(extreme)
    return None


def _is(x: Array, fill: float) -> Array:
    return np.isnan(x) if fill != fill else x == x.dtype.type(fill)


_rooms: dict[str, Array] = {}


def _room(name: str, size: int, dtype: Any) -> Array:
    """Memory that is written already, the same for all methods; only the last size is kept."""
    if name not in _rooms or (_rooms[name].size, _rooms[name].dtype) != (size, dtype):
        _rooms[name] = np.zeros(size, dtype)
        _rooms[name].fill(1)
    return _rooms[name]
