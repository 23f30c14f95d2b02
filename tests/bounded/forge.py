"""Payloads with other bytes, and the checksums that a reader expects (docs/bounded_format.md)."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import torch

from tests import _machinery
from tests.bounded.reader_bytes import Cursor

LOSSLESS, RELATIVE = 0, 2
NEWEST = 3


def crc(data: bytes) -> bytes:
    return struct.pack("<I", _machinery.crc32c(data))


def sealed(block: bytes) -> bytes:
    """A block's bytes with their checksum."""
    return block + crc(block)


def number(value: int) -> bytes:
    """In 7 bits a byte."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@dataclasses.dataclass
class Parts:
    """A payload in pieces, to be put together again."""

    version: int
    type: int
    kind: int
    asked: float
    bound: float
    shape: list[int]
    blocks: list[bytes]  # the same object as the one before: stored once
    table: list[int] | None = None  # other lengths than the blocks'; version 3: its numbers
    dims: int | None = None  # another number than the shape has
    block_bits: int = 16  # before version 3
    padding: int | None = None  # other than the values need

    def set(self, **fields: Any) -> Parts:
        return dataclasses.replace(self, **fields)

    def payload(self) -> bytes:
        body, ends, at = b"".join(self._own()), b"", 0
        for length in self._lengths():  # as far as they lead
            at += length
            ends += body[at - min(length, 4) : at]
        dims = len(self.shape) if self.dims is None else self.dims
        first = b"CGXB" + bytes([self.version, self.type, self.kind, dims])
        rest = self._fixed() if self.version < 3 else self._numbers()
        whole = first + crc(first + rest + ends) + rest + body
        return whole + bytes(self.zeros(len(whole)) if self.padding is None else self.padding)

    def _own(self) -> list[bytes]:
        before = b""
        own = []
        for block in self.blocks:
            if self.version < 3 or block is not before:
                own.append(block)
            before = block
        return own

    def _lengths(self) -> list[int]:
        if self.table is None:
            return [len(block) for block in self._own()]
        if self.version < 3:
            return self.table
        lengths, numbers = [], iter(self.table)
        for some in numbers:
            if some == 0:
                next(numbers, None)
            else:
                lengths.append(some - 1)
        return lengths

    def _fixed(self) -> bytes:
        fixed = struct.pack("<Idd", self.block_bits, self.asked, self.bound)
        lengths = self._lengths()
        return fixed + struct.pack(f"<{len(self.shape)}Q{len(lengths)}I", *self.shape, *lengths)

    def _numbers(self) -> bytes:
        bounds = b"" if self.kind == LOSSLESS else struct.pack("<d", self.asked)
        bounds += struct.pack("<d", self.bound) if self.kind == RELATIVE else b""
        table: list[int] = []
        before = b""
        for block in self.blocks:
            if block is before and table[-2:-1] == [0]:
                table[-1] += 1
            elif block is before:
                table += [0, 1]
            else:
                table.append(len(block) + 1)
            before = block
        table = table if self.table is None else self.table
        return bounds + b"".join(map(number, [*self.shape, *table]))

    def zeros(self, length: int) -> int:
        sizes = {1: 4, 2: 8, 3: 2, 4: 2, 5: 1, 6: 1, 7: 2, 8: 2, 9: 4, 10: 4, 11: 8, 12: 8, 13: 1}
        values = self.values() * sizes.get(self.type % 64, 1)
        return max(0, -(-values // 2**17) - length) if self.version >= 3 and values < 2**40 else 0

    def values(self) -> int:
        values = 2 if self.type >= 64 else 1
        for dim in self.shape:
            values *= dim
        return values


def taken_apart(payload: torch.Tensor, version: int = NEWEST) -> Parts:
    """To be put together in that version."""
    data = payload.numpy().tobytes()
    cursor = Cursor(data)
    _, made, kind_of_value, kind, dims = cursor.take(4), *cursor.take(4)
    assert made == NEWEST
    cursor.take(4)
    asked = 0.0 if kind == LOSSLESS else cursor.one("d")
    bound = cursor.one("d") if kind == RELATIVE else asked
    shape = [cursor.number() for _ in range(dims)]
    parts = Parts(version, kind_of_value, kind, asked, bound, shape, [])
    count = -(-parts.values() // 65536)
    places: list[int] = []  # of each block, in `lengths`
    lengths: list[int] = []
    while len(places) < count:
        found = cursor.number()
        if found == 0:
            places += [len(lengths) - 1] * cursor.number()
            continue
        places.append(len(lengths))
        lengths.append(found - 1)
    own = [cursor.take(length) for length in lengths]
    parts.blocks = [own[k] if k >= 0 else b"" for k in places]
    assert not any(cursor.take(cursor.left()))
    return parts


def of_words(
    payload: torch.Tensor,
    words: list[int],
    version: int = NEWEST,
    own: bytes = b"",
    **fields: int | bytes,
) -> Parts:
    """The payload with another first block: these words, each an outlier. own: the map itself,
    where the block has it. fields: of its header, by the names in docs/bounded_format.md.
    """
    parts = taken_apart(payload, version)
    element = parts.type % 64
    size = 8 if element in (2, 11, 12) else 4
    n = len(words)
    header = {
        "map": 2, "predictor": 0, "flags": 0, "width": 0, "shift": 0, "center": 0, "listed": 0,
        "base": 0, "slot": struct.pack("<q", len(own)), "outliers": n, "specials": 0, **fields,
    }  # fmt: skip
    content = b"\xff" * n + b"".join(word.to_bytes(size, "little", signed=True) for word in words)
    content += own
    head = struct.pack("<BBBBBBHq8sIII", *header.values(), len(content))
    parts.blocks[0] = sealed(head + content)
    return parts


def framed(
    element: int, shape: list[int], frame: bytes, *, kind: int = LOSSLESS, **other: Any
) -> bytes:
    """A payload of one frame. other: its version, its bound, what says how it holds the values, the
    frame's length and crc, and the padding.
    """
    parts = Parts(NEWEST, element % 128, LOSSLESS, 0.0, 0.0, shape, [])
    first = b"CGXB" + bytes([other.get("version", NEWEST), element | 128, kind, len(shape)])
    rest = struct.pack("<d", other.get("bound", 0.5)) if kind != LOSSLESS else b""
    rest += rest if kind == RELATIVE else b""
    rest += b"".join(map(number, shape)) + other.get("form", b"\0")
    rest += number(other.get("length", len(frame)))
    stored = other.get("crc", crc(frame))
    whole = first + crc(first + rest + stored) + rest + frame + stored
    padding = other.get("padding")
    return whole + bytes(parts.zeros(len(whole)) if padding is None else padding)
