"""General-purpose compressors, which lose nothing of what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from benchmarks.compressors.compressor import Array


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
