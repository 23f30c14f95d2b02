"""The entropy stage: frames of the package zstandard."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

_zstd: Any = None

# Symbols that are nearly noise take the fastest level, which still finds long repetitions. With
# less entropy it also takes accidental ones, which cost more than Huffman codes: matches must be
# long, or the data so regular that a deeper search pays; a part of the block tells.
_NOISE = 4.5
_PROBE = 8192
_CLEARLY = 0.98
# Packed symbols (csrc/codec/bounded/quads.h): regular from this entropy of a symbol down.
_REGULAR = 1.0
# The content of a block is shorter. A frame may ask its reader for this much memory beside it.
_WINDOW = 1 << 21


def library(user: str = "torch_cgx.bounded") -> Any:
    """The module. ImportError: it is not installed; user: who needs it."""
    global _zstd
    if _zstd is None:
        try:
            import zstandard
        except ImportError as error:
            raise ImportError(
                f"{user} needs the package zstandard: "
                'pip install "torch_cgx[bounded]", or pip install zstandard'
            ) from error
        _zstd = zstandard
    return _zstd


class Coder:
    """Zstandard compressors and a decompressor for one thread; lent by `lent()`."""

    def __init__(self) -> None:
        zstd = library()
        plain = {"write_content_size": False}
        self._fast = zstd.ZstdCompressor(level=1, **plain)
        self._deep = zstd.ZstdCompressor(level=3, **plain)
        self._long = zstd.ZstdCompressor(
            compression_params=zstd.ZstdCompressionParameters.from_level(
                1, window_log=17, hash_log=10, min_match=7, **plain
            )
        )
        self._decompressor = zstd.ZstdDecompressor(max_window_size=_WINDOW)
        self._zstd = zstd

    def compress(self, content: memoryview, entropy: float, packed: bool) -> bytes:
        """A frame, or b"" for no content. entropy: estimated bits of a symbol. packed: four symbols
        are one byte.
        """
        if not content:
            return b""
        if packed:
            coder = self._deep if entropy < _REGULAR else self._fast
        elif entropy >= _NOISE:
            coder = self._fast
        else:
            part = content[:_PROBE]
            deep, long = len(self._deep.compress(part)), len(self._long.compress(part))
            coder = self._deep if deep < _CLEARLY * long else self._long
        return coder.compress(content)

    def decompress(self, frame: memoryview, size: int) -> bytes:
        """What the frame holds: `size` bytes. ValueError: it does not, or is no frame."""
        zstd = self._zstd
        try:
            declared = zstd.frame_content_size(frame)
            if declared not in (-1, size):
                raise ValueError(f"the frame declares {declared} bytes, expected {size}")
            content = self._decompressor.decompress(
                frame, max_output_size=size, allow_extra_data=False
            )
        except zstd.ZstdError as error:
            raise ValueError(f"the entropy coder refuses its frame: {error}") from None
        if len(content) != size:
            raise ValueError(f"the frame holds {len(content)} bytes, expected {size}")
        return content


_idle: collections.deque[Coder] = collections.deque()


@contextlib.contextmanager
def lent() -> Iterator[Coder]:
    """A coder for one thread: its parts are not thread-safe, and take longer to make than a small
    tensor, so they are kept. No lock, which a forked process could find taken.
    """
    library()
    try:
        coder = _idle.pop()
    except IndexError:
        coder = Coder()
    try:
        yield coder
    finally:
        _idle.append(coder)
