"""The entropy coder: frames of the package zstandard."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

_zstd: Any = None

# Symbols that are nearly noise are coded at the fastest level, which still finds long repetitions.
# With less entropy, that level also codes accidental repetitions, which take more bytes than
# Huffman codes. Then only long matches are allowed, or, for regular data, a deeper search pays off;
# the beginning of the block decides.
_NOISE = 4.5
_PROBE = 8192
_CLEARLY = 0.98
# Windowed symbols are looked at beside a frame where the beginning is not longer than that.
_PERHAPS = 1.02
# Packed symbols (csrc/codec/bounded/quads.h): regular from this entropy of a symbol down.
_REGULAR = 1.0
# Orders of the bytes of values, and bytes of such a block beside its frame.
_WAYS, _BESIDE = 3, 6
# Values by which these orders are judged; one may do better than they say, or be as good as the
# best.
_TRIED, _HOPEFUL, _NEARLY = 8192, 1.1, 1.05
# Most bytes of memory that a frame may ask of its reader; the content of a block is shorter.
_WINDOW = 1 << 21


def library(user: str = "torch_cgx.bounded") -> Any:
    """The module zstandard. ImportError: it is not installed; user: the module that needs it."""
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
    """Zstandard compressors and a decompressor. For one thread: `lent()` returns one."""

    def __init__(self) -> None:
        zstd = library()
        plain = {"write_content_size": False}
        self._fast = zstd.ZstdCompressor(level=1, **plain)
        self._deep = zstd.ZstdCompressor(level=3, **plain)
        self._deepest = zstd.ZstdCompressor(
            compression_params=zstd.ZstdCompressionParameters.from_level(
                13,
                window_log=21,
                hash_log=20,
                chain_log=20,
                search_log=1,
                min_match=5,
                strategy=zstd.STRATEGY_BTLAZY2,
                **plain,
            )
        )
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
            probe = content[:_PROBE]
            deep, long = len(self._deep.compress(probe)), len(self._long.compress(probe))
            coder = self._deep if deep < _CLEARLY * long else self._long
        return coder.compress(content)

    def compress_bytes(self, values: memoryview) -> bytes:
        """A frame of bytes that repeat."""
        return self._deep.compress(values)

    def compress_again(self, values: memoryview, frame: bytes) -> bytes:
        """Returns the shortest of `frame` and two other frames of the same bytes. A deeper search
        finds more repetitions; a fast one describes long repetitions in fewer bytes.
        """
        return min((frame, self._fast.compress(values), self._deepest.compress(values)), key=len)

    def frame_of(self, encoder: Any) -> bytes:
        """The frame of an encoder's block; b"" for a block that has none, or whose symbols are
        coded by those before them instead, which finds no repetitions: a probe decides.
        """
        content = memoryview(encoder)
        windowed = encoder.windowed
        if not windowed:
            return self.compress(content, encoder.entropy, encoder.packed)
        probe = content[:_PROBE]
        share = len(probe) / len(content)
        if len(self._deep.compress(probe)) < _PERHAPS * share * windowed:
            frame = self.compress(content, encoder.entropy, encoder.packed)
            if len(frame) < windowed:
                return frame
        encoder.use_windows()
        return b""

    def finish(self, encoder: Any, arena: Any, number: int) -> None:
        """Codes an encoder's block and puts it into the arena."""
        frame = self.frame_of(encoder)
        if encoder.again:
            # Perhaps the values are there again, in one of these orders of their bytes.
            least, best = encoder.bytes_with(len(frame)), None
            for way in self._promising(encoder, least):
                packed = self._deep.compress(encoder.rearranged(way))
                if len(packed) + _BESIDE < least:
                    least, best = len(packed) + _BESIDE, (way, packed)
            if best is not None:
                encoder.finish_bytes(*best, arena, number)
                return
        encoder.finish(frame, arena, number)

    def _promising(self, encoder: Any, least: int) -> list[int]:
        """Orders of the bytes of an encoder's values in which these may take less than that. The
        first values say so, unless the others repeat them.
        """
        whole = encoder.value_bytes
        if encoder.again_far:
            return list(range(_WAYS))
        found = {}
        for way in range(_WAYS):
            values = encoder.rearranged(way, _TRIED)
            found[way] = len(self._deep.compress(values)) * whole / values.nbytes
        most = min(_HOPEFUL * least, _NEARLY * min(found.values()))
        return [way for way, size in found.items() if size < most]

    def decompress(self, frame: memoryview, size: int) -> bytes:
        """The content of a frame. ValueError: not a frame, or not of `size` bytes."""
        zstd = self._zstd
        try:
            declared = zstd.frame_content_size(frame)
            if declared not in (-1, size):
                raise ValueError(f"the frame declares {declared} bytes, expected {size}")
            content = self._decompressor.decompress(
                frame, max_output_size=size, allow_extra_data=False
            )
        except zstd.ZstdError as error:
            raise ValueError(f"the entropy coder refuses the frame: {error}") from None
        if len(content) != size:
            raise ValueError(f"the frame holds {len(content)} bytes, expected {size}")
        return content


_idle: collections.deque[Coder] = collections.deque()


@contextlib.contextmanager
def lent() -> Iterator[Coder]:
    """A coder for one thread. Coders are kept and lent again, as making one takes longer than
    compressing a small tensor. There is no lock, as a forked process could find it held.
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
