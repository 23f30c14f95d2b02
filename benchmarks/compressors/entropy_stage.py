"""Libraries in the place of the entropy stage of torch_cgx.bounded: what they make of its blocks.

The stage gets the content of a block (symbols, and what belongs to them) as bytes. `zstandard,
chosen` is what the package does: the library's fast level, or one that looks for longer
repetitions, by the entropy of the symbols and a short trial.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.compressors.compressor import Array
from benchmarks.compressors.packers import Blosc2, Packer, Pcodec, Zstd
from torch_cgx import _C

CHOSEN = "zstandard, chosen"
CORPORA = ("N(0,.02)", "sine", "gradients")
_BLOCKS = 16  # at most, of a cell


class Zlib(Packer):
    def pack(self, words: Array) -> bytes:
        return zlib.compress(words.data, 1)

    def unpack(self, packed: bytes, out: Array) -> Array:
        return np.frombuffer(zlib.decompress(packed), out.dtype)


# By name: the package that is needed, and what makes the packer.
CODERS: dict[str, tuple[str, Callable[[], Packer]]] = {
    "zstandard 1": ("zstandard", lambda: Zstd(1)),
    "zstandard 3": ("zstandard", lambda: Zstd(3)),
    "zstandard 9": ("zstandard", lambda: Zstd(9)),
    "zlib 1": ("zlib", Zlib),
    "pcodec": ("pcodec", Pcodec),
    "blosc2 lz4 1": ("blosc2", lambda: Blosc2("NOFILTER", 1, "LZ4")),
    "blosc2 zstd 1": ("blosc2", lambda: Blosc2("NOFILTER", 1)),
    "blosc2 bitshuffle zstd 1": ("blosc2", lambda: Blosc2("BITSHUFFLE", 1)),
}


class Chosen(Packer):
    """As the package: knows the entropy of each block's symbols."""

    def __init__(self, known: list[tuple[float, bool]]):
        from torch_cgx.bounded._entropy import Coder

        self._coder, self._known, self._next = Coder(), known, 0

    def pack(self, words: Array) -> bytes:
        entropy, packed = self._known[self._next]
        self._next = (self._next + 1) % len(self._known)
        return self._coder.compress(words.data, entropy, packed)

    def unpack(self, packed: bytes, out: Array) -> Array:
        return np.frombuffer(self._coder.decompress(memoryview(packed), out.size), out.dtype)


class Stage:
    """The blocks of one tensor, and calls that send all of them through a coder."""

    def __init__(self, values: torch.Tensor, max_error: float):
        from torch_cgx.bounded import _bound, _dtypes

        maps = _C.BoundedMaps(_dtypes.ELEMENTS[values.dtype], _bound.ABSOLUTE, max_error)
        encoder, size = _C.BoundedEncoder(maps), _C.BOUNDED_BLOCK_VALUES
        self.nbytes = 0  # of the values
        self.rest = 0  # bytes of the blocks that no coder sees
        self._contents: list[Array] = []
        self._known: list[tuple[float, bool]] = []
        for first in range(0, min(values.numel(), _BLOCKS * size), size):
            n = min(size, values.numel() - first)
            encoder.encode(values, first, n)
            content = np.frombuffer(bytes(memoryview(encoder)), np.uint8)
            if content.size == 0 or encoder.is_raw(0):
                continue
            arena = _C.BoundedArena(1, 1, n * values.element_size() + 64)
            encoder.finish(b"", arena, 0)
            _C.bounded_write(
                _dtypes.ELEMENTS[values.dtype], False, _bound.ABSOLUTE, 0.0, max_error, [n], arena
            )
            self.nbytes += n * values.element_size()
            self.rest += memoryview(arena).nbytes - content.size
            self._contents.append(content)
            self._known.append((encoder.entropy, encoder.packed))

    def calls(self) -> dict[str, tuple[Callable[[], object], Callable[[], object], float]]:
        """By coder: compression and decompression of all blocks, and the ratio that it makes of the
        values. Without the packages that are missing. ValueError: a content came back altered.
        """
        made: dict[str, Packer] = {CHOSEN: Chosen(self._known)}
        for name, (package, make) in CODERS.items():
            if importlib.util.find_spec(package) is not None:
                made[name] = make()
        return {name: self._of(name, packer) for name, packer in made.items() if self._contents}

    def _of(
        self, name: str, packer: Packer
    ) -> tuple[Callable[[], object], Callable[[], object], float]:
        outs = [np.ones_like(content) for content in self._contents]
        packed = [packer.pack(content) for content in self._contents]
        for content, one, out in zip(self._contents, packed, outs, strict=True):
            if not np.array_equal(packer.unpack(one, out), content):
                raise ValueError(f"{name} has altered the content of a block")
        sizes = (min(len(one), c.size) for one, c in zip(packed, self._contents, strict=True))

        def compress() -> Any:
            for content in self._contents:
                packer.pack(content)

        def decompress() -> Any:
            for one, out in zip(packed, outs, strict=True):
                packer.unpack(one, out)

        return compress, decompress, self.nbytes / (self.rest + sum(sizes))
