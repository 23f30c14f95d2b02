"""The index of a file of bounded.save: the place of each payload, and the state dict around them.

    0    4   "CGXF"
    4    1   version, 2
    5    1   1: the index is JSON and its CRC-32; 0: it is a lossless payload of JSON
    6    2   zeros
    8    8   where the index begins, little-endian
    16   8   bytes of the index: the file ends with it
    24       payloads of the tensors, one after another
    ...      index

The JSON is {"tensors": [[bytes, checksum, dtype, shape, name], ...], "state": ...}. An entry has
the length of a payload, the checksum in the payload's header (it covers the checksums of the
blocks), and the dtype, the shape and the first name of the tensor. "state" is the nested state
(_tree.py). The payloads leave no gaps. A payload that was moved, or comes from an older file, does
not match its entry.

A short payload can decompress to much JSON, and short JSON to many values. A reader therefore
compares both numbers with the file's length before it decompresses and parses (`_check_room`). A
writer whose index would exceed these limits writes it as plain JSON.

Version 1: entries are [bytes, dtype], the dtype is null or one of _dtypes.BYTES; byte 5 is 0.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol

import torch

from torch_cgx.bounded import _dtypes, _tree
from torch_cgx.bounded._compress import compress
from torch_cgx.bounded._decompress import decompress
from torch_cgx.bounded._dtypes import BYTES, EIGHTHS
from torch_cgx.bounded._payload import Payload, PayloadError, open_payload

HEADER = struct.Struct("<4sBB2sQQ")
_MAGIC, _VERSION = b"CGXF", 2
_VERSIONS = (1, 2)
_CRC = struct.Struct("<I")
_CHECKSUM = slice(8, 12)  # bytes of a payload's checksum: docs/bounded_format.md
_DTYPES = {_dtypes.name(dtype): dtype for dtype in (*_dtypes.ELEMENTS, *_dtypes.REAL_TYPES)} | BYTES
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SHOWN = 200  # a name in an error is cut to this length
_MOST_NUMEL = 1 << 58  # values of a view, strides of 0 included: its bytes fit 63 bits


class _Room(NamedTuple):
    """Limits for the index of a short file: bytes of JSON, and values in the JSON."""

    bytes: int
    values: int


# Version 1 had no plain index, so its limits are larger: in its files, a number of a list of equal
# numbers may take less than a bit.
_ROOM = {1: _Room(1 << 21, 1 << 18), 2: _Room(1 << 16, 1 << 14)}
_MOST_BYTES, _MOST_VALUES = 16, 1  # added to the limits for each byte of the file


class Source(Protocol):
    """The bytes of a file, wherever they are."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> bytes | memoryview:
        """`length` bytes from `start`. PayloadError: the source ends before."""


class File:
    """An open file as a Source."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.size = file, size

    def read(self, start: int, length: int) -> bytes:
        self._file.seek(start)
        data = self._file.read(length)
        if len(data) != length:
            raise PayloadError(f"the file ends at {start + len(data)} while it is read: it was cut")
        return data


class Memory:
    """Bytes as a Source."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.size = data, len(data)

    def read(self, start: int, length: int) -> memoryview:
        return self._data[start : start + length]


@dataclass(frozen=True)
class Entry:
    """A payload and its tensor. In version 1, checksum, shape and name are None, and dtype is None
    unless it is one of BYTES.
    """

    bytes: int
    checksum: int | None
    dtype: torch.dtype | None
    shape: tuple[int, ...] | None
    name: str | None

    @classmethod
    def of(cls, payload: torch.Tensor, tensor: torch.Tensor, name: str) -> Entry:
        checksum = int.from_bytes(payload[_CHECKSUM].numpy().tobytes(), "little")
        return cls(payload.numel(), checksum, tensor.dtype, tuple(tensor.shape), name)

    def listed(self) -> list[Any]:
        assert self.dtype is not None and self.shape is not None
        return [self.bytes, self.checksum, _NAMES[self.dtype], list(self.shape), self.name]

    def check(self, payload: Payload) -> None:
        """PayloadError: the payload belongs to another tensor."""
        if self.checksum is None or self.dtype is None:
            return
        dtype = torch.uint8 if self.dtype in EIGHTHS else self.dtype
        if (payload.dtype, payload.shape) != (dtype, self.shape):
            raise PayloadError(
                f"the payload is {_dtypes.name(payload.dtype)} {list(payload.shape)}, expected "
                f"{_NAMES[self.dtype]} {list(self.shape or ())}, as in the index: the payload "
                "belongs elsewhere"
            )
        if int.from_bytes(payload.data[_CHECKSUM], "little") != self.checksum:
            raise PayloadError(
                "the payload's checksum differs from the one in the index: the payload belongs to "
                "another tensor or to another file"
            )


@dataclass(frozen=True)
class Index:
    """starts: where each payload begins, and where the last one ends."""

    entries: list[Entry]
    starts: list[int]
    state: Any

    def name(self, number: int) -> str:
        """The name of a tensor, for error messages."""
        name = self.entries[number].name
        if name is None:
            name = _tree.name_of(self.state, number)
        return name[:_SHOWN] + ("..." if len(name) > _SHOWN else "") or f"tensor {number}"

    def payload(self, source: Source, number: int) -> Payload:
        """The payload, opened and compared with its entry. PayloadError."""
        start, entry = self.starts[number], self.entries[number]
        payload = open_payload(source.read(start, entry.bytes))
        entry.check(payload)
        return payload


# ---- writing


def write_index(entries: Sequence[Entry], state: bytes, start: int) -> tuple[bytes, bytes]:
    """The header of a file and its index. start: where the index begins. state: of Tree.json."""
    listed = json.dumps([entry.listed() for entry in entries], separators=(",", ":")).encode()
    text = b'{"tensors":%b,"state":%b}' % (listed, state)
    index = compress(torch.frombuffer(bytearray(text), dtype=torch.uint8)).numpy().tobytes()
    try:
        _check_room(_VERSION, start + len(index), len(text), _values(text))
        plain = False
    except PayloadError:
        plain, index = True, text + _CRC.pack(zlib.crc32(text))
    return HEADER.pack(_MAGIC, _VERSION, plain, bytes(2), start, len(index)), index


# ---- reading


def read_index(source: Source) -> Index:
    """PayloadError: not a file of `save`, or the file was cut or altered."""
    size = source.size
    header = bytes(source.read(0, min(size, HEADER.size)))
    if header[:4] != _MAGIC[: len(header)] or not header:
        raise PayloadError(
            f"not a file of bounded.save: it begins with {header[:4]!r}, expected {_MAGIC!r}"
        )
    if len(header) < HEADER.size:
        raise PayloadError(f"the file has {size} bytes, the header alone takes {HEADER.size}")
    _, version, plain, zeros, start, length = HEADER.unpack(header)
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise PayloadError(f"the version is {version}, this reader knows {known}")
    if any(zeros) or plain > version - 1 or start < HEADER.size or start + length != size:
        raise PayloadError(
            f"the header says that an index of {length} bytes begins at {start}, the file has "
            f"{size} bytes: it was cut or altered"
        )
    data = source.read(start, length)
    try:
        text = _plain(bytes(data)) if plain else _unpacked(data, version, size)
        if not plain:
            _check_room(version, size, len(text), _values(text))
    except PayloadError as error:
        raise PayloadError(f"the index: {error}") from None
    return _parse(text, start, version)


def _plain(data: bytes) -> bytes:
    text, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(text):
        raise PayloadError("its checksum is wrong, so it was altered")
    return text


def _unpacked(data: bytes | memoryview, version: int, size: int) -> bytes:
    opened = open_payload(data)
    if opened.dtype != torch.uint8 or len(opened.shape) != 1:
        raise PayloadError(
            f"it holds a {len(opened.shape)}-D tensor of {_dtypes.name(opened.dtype)}, expected a "
            "1-D tensor of uint8"
        )
    _check_room(version, size, opened.reals, 0)
    return decompress(data).numpy().tobytes()


def _values(text: bytes) -> int:
    """An upper limit of the values in JSON. In memory, an empty list takes 30 times the bytes of
    its two letters.
    """
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _check_room(version: int, file: int, length: int, values: int) -> None:
    """PayloadError: a file of `file` bytes may not have JSON of `length` bytes or of `values`
    values.
    """
    room = _ROOM[version]
    for what, found, most in (
        ("bytes", length, room.bytes + _MOST_BYTES * file),
        ("values", values, room.values + _MOST_VALUES * file),
    ):
        if found > most:
            raise PayloadError(
                f"it expands to {found} {what}, allowed for a file of {file} bytes: {most}"
            )


def _parse(text: bytes, end: int, version: int) -> Index:
    content = _tree.parse(text)
    if not isinstance(content, dict) or list(content) != ["tensors", "state"]:
        raise PayloadError('the index has not the keys "tensors" and "state"')
    listed = content["tensors"]
    entry_of = _entry_of_version_1 if version == 1 else _entry
    entries: list[Entry] = []
    starts = [HEADER.size]
    for one in listed if isinstance(listed, list) else [None]:
        entry = entry_of(one) if isinstance(one, list) else None
        if entry is None:
            raise PayloadError(f"the index has {reprlib.repr(one)} where an entry is expected")
        entries.append(entry)
        starts.append(starts[-1] + entry.bytes)
    if starts[-1] != end:
        raise PayloadError(
            f"the payloads of the index end at {starts[-1]}, the index begins at {end}"
        )
    return Index(entries, starts, content["state"])


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _entry(one: list[Any]) -> Entry | None:
    """The entry; None: the list does not follow the format."""
    if len(one) != 5:
        return None
    length, checksum, dtype, shape, name = one
    known = isinstance(dtype, str) and dtype in _DTYPES and isinstance(name, str)
    if not (known and _is_count(length) and _is_count(checksum) and isinstance(shape, list)):
        return None
    if len(shape) > _dtypes.MOST_DIMS or not all(_is_count(n) for n in shape):
        return None
    return Entry(length, checksum, _DTYPES[dtype], tuple(shape), name)


def _entry_of_version_1(one: list[Any]) -> Entry | None:
    if len(one) != 2 or not _is_count(one[0]):
        return None
    length, dtype = one
    if dtype is not None and not (isinstance(dtype, str) and dtype in BYTES):
        return None
    return Entry(length, None, None if dtype is None else BYTES[dtype], None, None)


def tensor_of(payload: Payload, entry: Entry, device: torch.device | None) -> torch.Tensor:
    """Decompresses a payload to the dtype of its entry. PayloadError."""
    tensor = decompress(payload.data, device=device)
    if entry.dtype is None or entry.dtype not in EIGHTHS:
        return tensor
    try:
        return tensor.view(entry.dtype)
    except RuntimeError as error:  # entries of version 1 do not have the payload's dtype
        raise PayloadError(str(error)) from None


def view_of(base: torch.Tensor, place: _tree.View) -> torch.Tensor:
    """A tensor in the memory of `base`, as torch.load makes views. PayloadError: the view is not
    inside of `base`.
    """
    last = sum(step * (size - 1) for size, step in zip(place.shape, place.stride, strict=True))
    numel = math.prod(place.shape)
    end = place.offset + (last + 1 if numel > 0 else 0)
    greatest = max(numel, *place.shape, *place.stride, 0)
    if base.dim() != 1 or end > base.numel() or greatest >= _MOST_NUMEL:
        raise PayloadError(
            f"the index has a view of shape {list(place.shape)} at {place.offset} of "
            f"{base.numel()} values"
        )
    fresh = torch.empty(0, dtype=base.dtype, device=base.device)
    return fresh.set_(base.untyped_storage(), place.offset, place.shape, place.stride)
