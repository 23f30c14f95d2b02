"""Bytes and bits as docs/bounded_format.md writes them: a part of the second reader."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


class Cursor:
    """Reads bytes from the first on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        assert 0 <= count <= self.left(), "cut"
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def peek(self) -> int:
        """The next byte, which stays."""
        assert self.left() > 0, "cut"
        return self.data[self.at]

    def one(self, layout: str) -> Any:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0]

    def array(self, dtype: Any, count: int) -> np.ndarray:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def number(self) -> int:
        """Of 7 bits a byte."""
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            assert shift <= 70
            if byte < 128:
                assert value < 2**64
                return value


class Bits:
    """Reads bits, the lowest of a byte first."""

    def __init__(self, data: bytes) -> None:
        self.value, self.count, self.at = int.from_bytes(data, "little"), 8 * len(data), 0

    def take(self, count: int) -> int:
        assert self.at + count <= self.count, "cut"
        found = self.value >> self.at & ((1 << count) - 1)
        self.at += count
        return found

    def bytes_read(self) -> int:
        """Whole bytes; the bits after the last one that was read are 0."""
        end = -(-self.at // 8)
        assert self.value >> self.at & ((1 << (8 * end - self.at)) - 1) == 0
        return end
