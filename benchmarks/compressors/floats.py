"""Compressors of others that are made for floating-point values: zfp, SZ3, fpzip, zipnn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.compressors.compressor import Compressor, Payload, words_of

_FLOATS = (torch.float32, torch.float64)


class Zfp(Compressor):
    """Fixed accuracy, or reversible; the shape of the values is known to it."""

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype in _FLOATS

    def __init__(self, values: torch.Tensor, max_error: float):
        super().__init__(values, max_error)
        import zfpy  # type: ignore[import-not-found]

        self._zfp = zfpy
        self._options = {"tolerance": max_error} if max_error > 0 else {}

    def compress(self) -> Payload:
        return self._zfp.compress_numpy(self.values.numpy(), write_header=True, **self._options)

    def decompress(self, payload: Payload) -> Any:
        return self._zfp.decompress_numpy(payload)


class Sz3(Compressor):
    """algorithm: a name of pysz.szAlgorithm; INTERP_LORENZO is its default. The shape of the values
    is known to it.
    """

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype in _FLOATS and max_error > 0

    def __init__(self, values: torch.Tensor, max_error: float, algorithm: str):
        super().__init__(values, max_error)
        import pysz  # type: ignore[import-not-found]

        self._sz = pysz.sz
        self._dtype = values.numpy().dtype
        self._config = pysz.szConfig(tuple(values.shape))
        self._config.errorBoundMode = pysz.szErrorBoundMode.ABS
        self._config.absErrorBound = max_error
        self._config.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
        self._config.openmp = False

    def compress(self) -> Payload:
        return self._sz.compress(self.values.numpy(), self._config)[0]

    def decompress(self, payload: Payload) -> Any:
        return self._sz.decompress(payload, self._dtype, tuple(self.values.shape))[0]


class Fpzip(Compressor):
    """Lossless; the shape of the values is known to it, as far as its four dimensions go."""

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype in _FLOATS and max_error == 0

    def __init__(self, values: torch.Tensor, max_error: float):
        super().__init__(values, max_error)
        import fpzip  # type: ignore[import-not-found]

        self._fpzip = fpzip
        last = tuple(values.shape)[-3:]
        self._x = values.numpy().reshape(-1, *(1,) * (3 - len(last)), *last)

    def compress(self) -> Payload:
        return self._fpzip.compress(self._x, order="C")

    def decompress(self, payload: Payload) -> Any:
        return self._fpzip.decompress(payload, order="C")


class ZipNn(Compressor):
    """Lossless, for weights. It alters the bytes that it is given, so it gets a copy each time, as
    in a program that goes on with its values.
    """

    NAMES = {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
    }

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype in ZipNn.NAMES and max_error == 0

    def __init__(self, values: torch.Tensor, max_error: float):
        super().__init__(values, max_error)
        import zipnn  # type: ignore[import-not-found]

        self._x = words_of(values)
        name = self.NAMES[values.dtype]
        self._zipnn = zipnn.ZipNN(input_format="byte", bytearray_dtype=name, threads=1)

    def compress(self) -> Payload:
        return self._zipnn.compress(bytearray(self._x.data))

    def decompress(self, payload: Payload) -> Any:
        return np.frombuffer(self._zipnn.decompress(payload), self._x.dtype)
