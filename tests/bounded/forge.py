"""Payloads with other bytes, and the checksums that a reader expects (docs/bounded_format.md)."""

from __future__ import annotations

import dataclasses
import struct

import torch

from tests import _machinery

FIXED = 32


def crc(data: bytes) -> bytes:
    return struct.pack("<I", _machinery.crc32c(data))


def sealed(block: bytes) -> bytes:
    """A block's bytes with their checksum."""
    return block + crc(block)


@dataclasses.dataclass
class Parts:
    """A payload in pieces, to be put together again. fixed: the header without the shape."""

    fixed: bytearray
    shape: list[int]
    blocks: list[bytes]
    table: list[int] | None = None  # other lengths than the blocks'

    def set(self, at: int, layout: str, value: float) -> Parts:
        struct.pack_into("<" + layout, self.fixed, at, value)
        return self

    def payload(self) -> bytes:
        lengths = [len(block) for block in self.blocks] if self.table is None else self.table
        rest = struct.pack(f"<{len(self.shape)}Q{len(lengths)}I", *self.shape, *lengths)
        self.fixed[7] = len(self.shape)
        body, ends, at = b"".join(self.blocks), b"", 0
        for length in lengths:  # as far as they lead
            at += length
            ends += body[at - min(length, 4) : at]
        self.fixed[8:12] = crc(bytes(self.fixed[:8] + self.fixed[12:]) + rest + ends)
        return bytes(self.fixed) + rest + body


def taken_apart(payload: torch.Tensor) -> Parts:
    data = payload.numpy().tobytes()
    dims = data[7]
    shape = list(struct.unpack_from(f"<{dims}Q", data, FIXED))
    values = 2 if data[5] >= 64 else 1
    for dim in shape:
        values *= dim
    count = -(-values // 65536)
    lengths = struct.unpack_from(f"<{count}I", data, FIXED + 8 * dims)
    at, blocks = FIXED + 8 * dims + 4 * count, []
    for length in lengths:
        blocks.append(data[at : at + length])
        at += length
    assert at == len(data)
    return Parts(bytearray(data[:FIXED]), shape, blocks)


def of_words(payload: torch.Tensor, words: list[int], **fields: int | bytes) -> Parts:
    """The payload with another first block: these words, each an outlier. fields: of its header, by
    the names in docs/bounded_format.md.
    """
    parts = taken_apart(payload)
    element = parts.fixed[5] % 64
    size = 8 if element in (2, 11, 12) else 4
    n = len(words)
    header = {
        "map": 2, "predictor": 0, "flags": 0, "width": 0, "shift": 0, "center": 0, "listed": 0,
        "base": 0, "slot": bytes(8), "outliers": n, "specials": 0, **fields,
    }  # fmt: skip
    content = b"\xff" * n + b"".join(word.to_bytes(size, "little", signed=True) for word in words)
    head = struct.pack("<BBBBBBHq8sIII", *header.values(), len(content))
    parts.blocks[0] = sealed(head + content)
    return parts
