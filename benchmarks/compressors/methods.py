"""The compressors that are compared, one class each behind one interface (`compressor.py`).

General-purpose compressors (zstd, pcodec, blosc2) get what a program does by hand with NumPy: int32
of rint(x / step), whose time counts in both directions. Where nothing may be lost, they get the
values' own bits. zfp and SZ3 bound the error themselves; fpzip and zipnn lose nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.compressors.compressor import Compressor, Payload
from benchmarks.compressors.floats import Fpzip, Sz3, Zfp, ZipNn
from benchmarks.compressors.packers import Blosc2, Packer, Pcodec, Zstd
from benchmarks.compressors.words import Words
from torch_cgx import _C

OURS, TWO_THREADS, CUDA, ORIGINAL = "cgx", "cgx, 2 threads", "cgx, CUDA", "original format"
OWN = (OURS, TWO_THREADS, CUDA)


def stage_alone(values: torch.Tensor, max_error: float) -> Callable[[], object]:
    """A call of everything that cgx does before the entropy stage: choose, quantise, predict and
    shuffle, block by block, into the same memory.
    """
    from torch_cgx.bounded import _bound, _dtypes

    size, count = _C.BOUNDED_BLOCK_VALUES, values.numel()
    maps = _C.BoundedMaps(_dtypes.ELEMENTS[values.dtype], _bound.ABSOLUTE, max_error)
    encoder = _C.BoundedEncoder(maps)

    def run() -> None:
        for first in range(0, count, size):
            encoder.encode(values, first, min(size, count - first))

    return run


class Ours(Compressor):
    """device: where the values are, and come back; payloads are on the CPU."""

    def __init__(
        self, values: torch.Tensor, max_error: float, threads: int = 1, device: str = "cpu"
    ):
        super().__init__(values.to(device), max_error)
        from torch_cgx import bounded

        self.threads = threads
        self._bounded = bounded
        self._out = torch.zeros_like(self.values)

    def compress(self) -> Payload:
        return self._bounded.compress(self.values, max_error=self.max_error)

    def decompress(self, payload: Payload) -> Any:
        self._bounded.decompress(payload, out=self._out)
        if self._out.is_cuda:
            torch.cuda.synchronize()
        return self._out


class Original(Compressor):
    """The format of cuda_float_compress as it was written: the original's quotients, and one call
    of zstd at level 1. The stages are torch_cgx.compat's, on the CPU.
    """

    HEADER = 12
    BLOCK = 32768  # values
    ANY_ERROR = 3e38  # no quotient is mended

    def __init__(self, values: torch.Tensor, max_error: float):
        super().__init__(values, max_error)
        import zstandard

        self._step = float(np.float32(2 * max_error))
        words = -(-values.numel() // self.BLOCK) * self.BLOCK
        self._raw = torch.zeros(words, dtype=torch.int32)
        self._misfits = torch.zeros(words // _C.CUDA_FLOAT_COMPRESS_PART, dtype=torch.int32)
        self._out = torch.zeros_like(values)
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype == torch.float32 and max_error > 0

    def compress(self) -> Payload:
        torch.ops.torch_cgx.cuda_float_compress_encode(
            self.values,
            self._step,
            self.ANY_ERROR,
            True,
            words=self._raw,
            misfits=self._misfits,
        )
        return self._compressor.compress(self._raw.numpy().data)

    def decompress(self, payload: Payload) -> Any:
        words = bytearray(self._decompressor.decompress(payload))
        raw = torch.frombuffer(words, dtype=torch.int32)
        torch.ops.torch_cgx.cuda_float_compress_decode(raw, self._step, out=self._out)
        return self._out

    def nbytes(self, payload: Payload) -> int:
        return len(payload) + self.HEADER


# ---- all of them


@dataclass(frozen=True)
class Method:
    """package: what it needs besides torch_cgx; make: from values and bound."""

    make: Callable[[torch.Tensor, float], Compressor]
    takes: Callable[[torch.Tensor, float], bool]
    package: str = ""
    threads: int = 1
    cuda: bool = False

    def missing(self) -> str:
        """Why it cannot be measured here, and how to get it; "" where it can."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed: make bench-peers"
        if self.cuda and not torch.cuda.is_available():
            return "needs a CUDA device"
        return ""


def _words(package: str, make_packer: Callable[[], Packer]) -> Method:
    return Method(partial(Words, make_packer=make_packer), Words.takes, package)


METHODS = {
    OURS: Method(Ours, Ours.takes),
    TWO_THREADS: Method(partial(Ours, threads=2), Ours.takes, threads=2),
    CUDA: Method(partial(Ours, device="cuda"), Ours.takes, cuda=True),
    ORIGINAL: Method(Original, Original.takes),
    "zfp": Method(Zfp, Zfp.takes, "zfpy"),
    "SZ3": Method(partial(Sz3, algorithm="INTERP_LORENZO"), Sz3.takes, "pysz"),
    "SZ3 no prediction": Method(partial(Sz3, algorithm="NOPRED"), Sz3.takes, "pysz"),
    "fpzip": Method(Fpzip, Fpzip.takes, "fpzip"),
    "zipnn": Method(ZipNn, ZipNn.takes, "zipnn"),
    "zstd 1": _words("zstandard", lambda: Zstd(1)),
    "zstd 3": _words("zstandard", lambda: Zstd(3)),
    "pcodec": _words("pcodec", Pcodec),
    "blosc2 bitshuffle 1": _words("blosc2", lambda: Blosc2("BITSHUFFLE", 1)),
    "blosc2 bitshuffle 5": _words("blosc2", lambda: Blosc2("BITSHUFFLE", 5)),
    "blosc2 shuffle 1": _words("blosc2", lambda: Blosc2("SHUFFLE", 1)),
}
