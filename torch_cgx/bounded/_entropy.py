"""The entropy stage: frames of the package zstandard.

Compressors are not thread-safe: a `Coder` belongs to one thread.
"""

from __future__ import annotations

from typing import Any

_zstd: Any = None

# Symbols that are nearly noise have Huffman codes and next to no repetition: the fastest level
# finds what there is. The others may have structure, which a deeper search finds.
_NOISE = 3.5
_LEVEL_NOISE, _LEVEL_STRUCTURE = 1, 3


def library() -> Any:
    """The module. ImportError: it is not installed."""
    global _zstd
    if _zstd is None:
        try:
            import zstandard
        except ImportError as error:
            raise ImportError(
                "torch_cgx.bounded needs the package zstandard: "
                'pip install "torch_cgx[bounded]", or pip install zstandard'
            ) from error
        _zstd = zstandard
    return _zstd


class Coder:
    def __init__(self) -> None:
        zstd = library()
        self._compressors = {
            level: zstd.ZstdCompressor(level=level, write_content_size=False)
            for level in (_LEVEL_NOISE, _LEVEL_STRUCTURE)
        }
        self._decompressor = zstd.ZstdDecompressor()
        self._zstd = zstd

    def compress(self, content: memoryview, entropy: float) -> bytes:
        """A frame, or b"" for no content. entropy: estimated bits of a byte."""
        if not content:
            return b""
        level = _LEVEL_NOISE if entropy > _NOISE else _LEVEL_STRUCTURE
        return self._compressors[level].compress(content)

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
