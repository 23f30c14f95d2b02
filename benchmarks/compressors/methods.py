"""The error-bounded compressors that are compared, one class each behind one interface.

General-purpose compressors (zstd, pcodec, blosc2) get what a program does by hand with NumPy: int32
of rint(x / step), whose time counts in both directions. Where nothing may be lost, they get the
values' own bits. zfp and SZ3 bound the error themselves.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from torch_cgx import _C

Array = np.ndarray[Any, Any]
Payload = Any  # has a len() in bytes

OURS, TWO_THREADS, CUDA, ORIGINAL = "cgx", "cgx, 2 threads", "cgx, CUDA", "original format"


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


class Zfp(Compressor):
    """Fixed accuracy, or reversible; the shape of the values is known to it."""

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype == torch.float32

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
    """algorithm: a name of pysz.szAlgorithm; INTERP_LORENZO is its default."""

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype == torch.float32 and max_error > 0

    def __init__(self, values: torch.Tensor, max_error: float, algorithm: str):
        super().__init__(values, max_error)
        import pysz  # type: ignore[import-not-found]

        self._sz = pysz.sz
        self._config = pysz.szConfig(tuple(values.shape))
        self._config.errorBoundMode = pysz.szErrorBoundMode.ABS
        self._config.absErrorBound = max_error
        self._config.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
        self._config.openmp = False

    def compress(self) -> Payload:
        return self._sz.compress(self.values.numpy(), self._config)[0]

    def decompress(self, payload: Payload) -> Any:
        return self._sz.decompress(payload, np.float32, tuple(self.values.shape))[0]


# ---- general-purpose compressors


class Packer(ABC):
    """Compresses words without loss."""

    @abstractmethod
    def pack(self, words: Array) -> bytes: ...

    @abstractmethod
    def unpack(self, packed: bytes, out: Array) -> Array:
        """The words, in `out` or elsewhere. out: has their number and dtype."""


class Zstd(Packer):
    def __init__(self, level: int):
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=level)
        self._decompressor = zstandard.ZstdDecompressor()

    def pack(self, words: Array) -> bytes:
        return self._compressor.compress(words.data)

    def unpack(self, packed: bytes, out: Array) -> Array:
        return np.frombuffer(self._decompressor.decompress(packed), out.dtype)


class Pcodec(Packer):
    """With its defaults: it looks for the best mode and differences itself."""

    def __init__(self) -> None:
        import pcodec  # type: ignore[import-not-found]
        from pcodec import standalone

        self._standalone = standalone
        self._config = pcodec.ChunkConfig(enable_8_bit=True)

    def pack(self, words: Array) -> bytes:
        return bytes(self._standalone.simple_compress(words, self._config))

    def unpack(self, packed: bytes, out: Array) -> Array:
        self._standalone.simple_decompress_into(packed, out)
        return out


class Blosc2(Packer):
    """filter_name: of blosc2.Filter; codec: of blosc2.Codec, which comes after it."""

    def __init__(self, filter_name: str, level: int, codec: str = "ZSTD"):
        import blosc2  # type: ignore[import-not-found]

        self._blosc2 = blosc2
        self._options = {
            "codec": getattr(blosc2.Codec, codec),
            "clevel": level,
            "filters": [getattr(blosc2.Filter, filter_name)],
            "filters_meta": [0],
            "nthreads": 1,
        }

    def pack(self, words: Array) -> bytes:
        return bytes(self._blosc2.compress2(words, typesize=words.itemsize, **self._options))

    def unpack(self, packed: bytes, out: Array) -> Array:
        self._blosc2.decompress2(packed, dst=out, nthreads=1)
        return out


class Words(Compressor):
    """Integers by NumPy, and a general-purpose compressor for them."""

    MARGINS = (0, 1, 2, 4)
    HEADER = 16  # bytes of the step and the number of values, which a program must keep, too

    @staticmethod
    def takes(values: torch.Tensor, max_error: float) -> bool:
        return values.dtype == torch.float32 or max_error == 0

    def __init__(self, values: torch.Tensor, max_error: float, make_packer: Callable[[], Packer]):
        super().__init__(values, max_error)
        self._packer = make_packer()
        self._x = words_of(values)
        # Floats on their way to integers, and in the end.
        self._out = _room("floats", self._x.size, self._x.dtype)
        if max_error > 0:
            self._q = _room("integers", self._x.size, np.int32)
            self._restored = _room("integers again", self._x.size, np.int32)
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
        np.multiply(self._x, np.float32(1 / self._step), out=self._out)
        np.rint(self._out, out=self._out)
        np.copyto(self._q, self._out, casting="unsafe")

    def _dequantise(self, q: Array) -> Array:
        np.multiply(q, np.float32(self._step), out=self._out, dtype=np.float32, casting="unsafe")
        return self._out

    def _widest_step(self) -> float:
        """2 max_error, or so much less that float32's rounding, too, stays within the bound: what a
        program that knows its data does. Not timed.
        """
        ulp = float(np.spacing(np.abs(self._x).max()))
        for margin in self.MARGINS:
            self._step = 2 * (self.max_error - margin * ulp)
            if self._step <= 0:
                break
            self._quantise()
            error = np.abs(self._dequantise(self._q).astype(np.float64) - self._x).max()
            if error <= self.max_error:
                return self._step
        return 2 * self.max_error  # the row says that the bound is missed


_rooms: dict[str, Array] = {}


def _room(name: str, size: int, dtype: Any) -> Array:
    """Memory that is written already, the same for all methods; only the last size is kept."""
    if name not in _rooms or (_rooms[name].size, _rooms[name].dtype) != (size, dtype):
        _rooms[name] = np.zeros(size, dtype)
        _rooms[name].fill(1)
    return _rooms[name]


def words_of(values: torch.Tensor) -> Array:
    """Flat; bfloat16, which NumPy has not, as uint16."""
    flat = values.reshape(-1)
    if values.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


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
    "zstd 1": _words("zstandard", lambda: Zstd(1)),
    "zstd 3": _words("zstandard", lambda: Zstd(3)),
    "pcodec": _words("pcodec", Pcodec),
    "blosc2 bitshuffle 1": _words("blosc2", lambda: Blosc2("BITSHUFFLE", 1)),
    "blosc2 bitshuffle 5": _words("blosc2", lambda: Blosc2("BITSHUFFLE", 5)),
    "blosc2 shuffle 1": _words("blosc2", lambda: Blosc2("SHUFFLE", 1)),
}
