"""An independent model of cuda_float_compress's format in numpy: bits as arrays of booleans.

Written from the description of the format. It knows nothing of how a step is chosen.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

BLOCK, RUN, GROUP = 32768, 128, 32


def original_quotients(x: Floats, step: np.float32) -> npt.NDArray[np.int64]:
    return np.rint(x * (np.float32(1) / step)).astype(np.int64)


def dequantised(q: npt.NDArray[np.int64], step: np.float32) -> Floats:
    with np.errstate(over="ignore"):
        return q.astype(np.float32) * step


def quotients(x: Floats, step: np.float32, max_error: float) -> npt.NDArray[np.int64]:
    """The original's, or where those break the bound, the first nearest of them, -1 and +1."""
    q = original_quotients(x, step)
    choices = np.stack([q, q - 1, q + 1])
    errors = np.abs(x.astype(np.float64) - dequantised(choices, step))
    best = choices[np.argmin(errors, axis=0), np.arange(x.size)]
    return np.where(errors[0] <= max_error, q, best)


def zigzag_of(q: npt.NDArray[np.int64]) -> Words:
    """Of deltas, padded with zeros to whole blocks."""
    before = np.concatenate([[0], q[:-1]]) if q.size else q
    before = np.where(np.arange(q.size) % RUN == 0, 0, before)
    d = ((q - before + 2**31) % 2**32) - 2**31
    u = np.where(d >= 0, 2 * d, -2 * d - 1)
    padded = np.zeros(-(-q.size // BLOCK) * BLOCK, np.uint32)
    padded[: q.size] = u
    return padded


def shuffled(u: Words) -> Words:
    bits = np.unpackbits(u.view(np.uint8), bitorder="little").reshape(-1, 1024, 2, 16, 16, 2)
    # block, group, half, value, field, bit -> block, field, half, group, value, bit
    words = bits.transpose(0, 4, 2, 1, 3, 5)
    return np.packbits(np.ascontiguousarray(words).reshape(-1), bitorder="little").view(np.uint32)


def unshuffled(raw: Words) -> Words:
    bits = np.unpackbits(raw.view(np.uint8), bitorder="little").reshape(-1, 16, 2, 1024, 16, 2)
    words = bits.transpose(0, 3, 2, 4, 1, 5)
    return np.packbits(np.ascontiguousarray(words).reshape(-1), bitorder="little").view(np.uint32)


def raw_words(x: Floats, step: np.float32, max_error: float) -> Words:
    return shuffled(zigzag_of(quotients(x, step, max_error)))


def decoded(raw: Words, n: int, step: np.float32) -> Floats:
    u = unshuffled(raw)[:n].astype(np.int64)
    d = np.where(u % 2 == 0, u // 2, -(u + 1) // 2)
    padded = np.zeros(-(-n // RUN) * RUN, np.int64)
    padded[:n] = d
    q = np.cumsum(padded.reshape(-1, RUN), axis=1).reshape(-1)[:n]
    return dequantised(((q + 2**31) % 2**32) - 2**31, step)


def header(n: int, step: Any) -> bytes:
    return bytes([3, 2, 1, 0]) + struct.pack("<If", n, step)


def payload(raw: Words, n: int, step: Any) -> bytes:
    """As the original writes it: one call of the entropy coder, and no checksum."""
    return header(n, step) + zstandard.ZstdCompressor(level=1).compress(raw.tobytes())


def parts(data: bytes) -> tuple[int, np.float32, Words]:
    """Count, step and words of a payload."""
    assert data[:4] == bytes([3, 2, 1, 0])
    n, step = struct.unpack("<If", data[4:12])
    raw = zstandard.ZstdDecompressor().decompress(data[12:], allow_extra_data=False)
    return n, np.float32(step), np.frombuffer(raw, np.uint32)
