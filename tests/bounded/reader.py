"""A second reader of payloads, from docs/bounded_format.md alone: numpy and zstandard. Its parts
are reader_bytes.py, reader_symbols.py, reader_fields.py, reader_frames.py, reader_values.py,
reader_maps.py and reader_own.py; files: reader_files.py.

An AssertionError says that a payload does not follow the format.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from tests.bounded.reader_bytes import Cursor, crc32c
from tests.bounded.reader_fields import EXACT, Field
from tests.bounded.reader_fields import GRID as FIELD_GRID
from tests.bounded.reader_fields import WORDS as FIELD_WORDS
from tests.bounded.reader_frames import frame_form, from_frame
from tests.bounded.reader_maps import codes, curve
from tests.bounded.reader_own import from_bytes, mostly, unframed
from tests.bounded.reader_symbols import windowed
from tests.bounded.reader_values import (
    BITS,
    GRID,
    LOSSLESS,
    ORDER,
    OWN,
    POINTWISE,
    RELATIVE,
    ROUNDER,
    check_map,
    exact,
    from_grid,
    from_words,
    word_bits,
)

BLOCK = 65536
RAW, CONSTANT = range(2)
FIELD, MOSTLY, BYTES = 6, 9, 10
NONE, MEAN, PREVIOUS, LINE, CURVE = range(5)
CODED_LOW, COMPRESSED, SIGNED_ZERO, PACKED, WINDOWED = 1, 2, 4, 8, 16
BLOCK_HEADER = struct.Struct("<BBBBBBHq8sIII")
__all__ = ["BITS", "BLOCK", "ROUNDER", "codes", "crc32c", "read"]


def read(payload: bytes) -> tuple[dict, np.ndarray]:
    """The header's fields, and the bits of all values, 1-D."""
    data = Cursor(payload)
    magic, version, kind_of_value, kind, dims = data.take(4), *data.take(4)
    crc = data.one("I")
    assert magic == b"CGXB" and version in (1, 2, 3) and dims <= 64
    framed, kind_of_value = divmod(kind_of_value, 128)
    element, parts = kind_of_value % 64, 2 if kind_of_value >= 64 else 1
    assert 1 <= element <= (3 if parts == 2 else 13) and kind <= POINTWISE
    assert not framed or version == 3
    if version < 3:
        assert data.one("I") == 16
        asked, bound = data.one("d"), data.one("d")
        shape = tuple(data.one("Q") for _ in range(dims))
    else:
        asked = data.one("d") if kind != LOSSLESS else 0.0
        bound = data.one("d") if kind == RELATIVE else asked
        shape = tuple(data.number() for _ in range(dims))
    assert np.isfinite(asked) and not np.signbit(asked)
    assert kind in (LOSSLESS, RELATIVE) or asked == bound
    assert kind == LOSSLESS or element <= 4
    count = parts
    for dim in shape:
        count *= dim
    blocks = -(-count // BLOCK)
    if framed:
        form = frame_form(data)
        length = data.number()
        places = [(0, length + 4)]
    elif version < 3:
        places = fixed_table(data, blocks)
    else:
        places = table(data, blocks)
    first, own = data.at, sorted(set(places))
    ends = b"".join(payload[first + max(b, e - 4) : first + e] for b, e in own)
    assert crc == crc32c(payload[:8] + payload[12:first] + ends)
    end = first + max([0, *(e for _, e in own)])
    out = np.zeros(count, BITS[element])
    least = -(-out.nbytes // 2**17) if version == 3 else 0
    assert payload[end:] == bytes(max(0, least - end))
    if framed:
        frame, stored = payload[first : end - 4], payload[end - 4 : end]
        assert struct.unpack("<I", stored)[0] == crc32c(frame)
        from_frame(frame, form, element, kind, bound, out)
        places = []
    for k, (b, e) in enumerate(places):
        values = out[k * BLOCK : (k + 1) * BLOCK]
        if b < e:
            read_block(payload[first + b : first + e], element, kind, bound, values, version)
    assert element != 13 or (out <= 1).all()
    fields = {"element": element, "kind": kind, "asked": asked, "bound": bound, "shape": shape}
    return fields, out


def fixed_table(data: Cursor, blocks: int) -> list[tuple[int, int]]:
    places, at = [], 0
    for _ in range(blocks):
        places.append((at, at + data.one("I")))
        at = places[-1][1]
    return places


def table(data: Cursor, blocks: int) -> list[tuple[int, int]]:
    places, at, before = [], 0, (0, 0)
    while len(places) < blocks:
        number = data.number()
        if number == 0:
            same = data.number()
            assert 1 <= same <= blocks - len(places)
            places += [before] * same
            continue
        before = (at, at + number - 1)
        places.append(before)
        at = before[1]
    return places


def read_block(
    block: bytes, element: int, kind: int, bound: float, out: np.ndarray, version: int
) -> None:
    assert len(block) > 4 and struct.unpack("<I", block[-4:])[0] == crc32c(block[:-4])
    body = Cursor(block[1:-4])
    if block[0] == RAW:
        out[:] = body.array(out.dtype, len(out))
    elif block[0] == CONSTANT:
        out[:] = body.array(out.dtype, 1)
    elif block[0] == FIELD:
        assert version == 3
        read_field(body, element, kind, bound, out, version)
    elif block[0] in (MOSTLY, BYTES):
        assert version == 3
        (mostly(body, out, element) if block[0] == MOSTLY else from_bytes(body, out))
    else:
        assert len(block) >= 36 + 4
        header = Header(*BLOCK_HEADER.unpack(block[:36]))
        read_words(header, Cursor(block[36:-4]), element, kind, bound, out, version)
        return
    assert body.left() == 0


class Header(NamedTuple):
    how: int
    predictor: int
    flags: int
    width: int
    shift: int
    center: int
    listed: int
    base: int
    slot: bytes
    outliers: int
    specials: int
    coded: int

    def origin(self) -> int:
        return struct.unpack("<q", self.slot)[0]

    def step(self) -> float:
        return struct.unpack("<d", self.slot)[0]

    def check(self, element: int, kind: int, bound: float, out: np.ndarray, version: int) -> int:
        """Returns the bytes of the map itself."""
        how = self.how, self.shift, self.origin()
        own = check_map(how, element, kind, bound, len(out), version)
        flags = self.flags
        assert self.predictor <= CURVE and (self.predictor != CURVE or self.how == GRID)
        assert word_bits(out) == 64 or -(2**31) <= self.base < 2**31
        assert flags < (32 if version == 3 else 16)
        assert not flags & CODED_LOW or (self.width and self.width % 8 == 0)
        assert not flags & WINDOWED or flags & ~(WINDOWED | SIGNED_ZERO) == 0
        assert not flags & SIGNED_ZERO or (
            self.how not in (ORDER, *OWN) and self.predictor != CURVE
        )
        assert flags & PACKED or (self.listed == 0 and (flags & WINDOWED or self.center == 0))
        assert self.width <= word_bits(out) - 8
        assert self.specials == 0 or self.how != ORDER
        assert max(self.listed, self.outliers, self.specials) <= len(out)
        return own


def read_words(
    header: Header,
    data: Cursor,
    element: int,
    kind: int,
    bound: float,
    out: np.ndarray,
    version: int,
) -> None:
    own = header.check(element, kind, bound, out, version)
    n, size, flags = len(out), out.itemsize, header.flags
    word = np.int64 if size == 8 else np.int32
    unsigned = np.uint64 if size == 8 else np.uint32
    coded, low = data.take(header.coded), data
    if flags & COMPRESSED:
        coded = unframed(coded, 40 * n + 1024)
    content = Cursor(coded)
    rest = header.outliers * word().itemsize + header.specials * (2 + size) + own
    rest += -(-n // 256) * 16 if header.predictor == CURVE else 0
    symbols = read_symbols(header, content, n, rest)
    residuals = symbols.astype(unsigned) << unsigned(header.width)
    planes = content if flags & CODED_LOW else low
    for j in range(header.width // 8):
        residuals |= planes.array(np.uint8, n).astype(unsigned) << unsigned(8 * j)
    for j in range(header.width // 8 * 8, header.width):
        bits = np.unpackbits(low.array(np.uint8, -(-n // 64) * 8), bitorder="little")
        assert not bits[n:].any()
        residuals |= bits[:n].astype(unsigned) << unsigned(j)
    assert low.left() == 0
    residuals += np.int64(header.base).astype(unsigned)
    drawn = curves(content, n) if header.predictor == CURVE else None
    assert (symbols == 255).sum() == header.outliers
    residuals[symbols == 255] = content.array(unsigned, header.outliers)
    words = residuals
    for _ in range({PREVIOUS: 1, LINE: 2}.get(header.predictor, 0)):
        words = np.cumsum(words, dtype=unsigned)
    words = words.view(word)
    negative = words < 0
    if flags & SIGNED_ZERO:
        words = words + negative.astype(word)
    places = content.array(np.uint16, header.specials)
    special = content.array(out.dtype, header.specials)
    of_map = content.take(own)
    assert (np.diff(places.astype(int)) > 0).all() and (places < n).all()
    if header.how == GRID:
        from_grid(header.step(), words, drawn, places, element, bound, out, version)
    else:
        how = header.how, header.shift, header.origin()
        from_words(how, words, element, kind, bound, out, version, of_map)
    if flags & SIGNED_ZERO:
        out[negative] |= out.dtype.type(1 << (8 * size - 1))
    out[places] = special
    assert content.left() == 0


def read_symbols(header: Header, content: Cursor, n: int, rest: int) -> np.ndarray:
    """rest: bytes of the coded part behind them, where they are windowed."""
    if header.flags & WINDOWED:
        return windowed(content.take(content.left() - rest), n, header.center)
    if not header.flags & PACKED:
        return content.array(np.uint8, n)
    codes = content.array(np.uint8, -(-n // 4))
    codes = (codes[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
    assert not codes[n:].any()
    codes = codes[:n]
    assert (codes == 3).sum() == header.listed
    symbols = (header.center + np.array([0, -1, 1, 0])[codes]).astype(np.uint8)
    symbols[codes == 3] = content.array(np.uint8, header.listed)
    return symbols


def curves(content: Cursor, n: int) -> np.ndarray:
    runs = -(-n // 256) * 4
    folded = content.array(np.uint8, 4 * runs).reshape(4, runs).astype(np.uint32)
    folded = folded[0] | folded[1] << 8 | folded[2] << 16 | folded[3] << 24
    bends = (folded >> 1) ^ -(folded & 1).astype(np.int32).astype(np.uint32)
    slopes = np.cumsum(bends, dtype=np.uint32)
    nodes = np.cumsum(slopes, dtype=np.uint32).view(np.int32).reshape(-1, 4)
    assert (np.abs(nodes.astype(np.int64)) <= 2**30).all()
    return np.concatenate([curve(four) for four in nodes])[:n]


def read_field(data, element, kind, bound, out, version):
    number = {1: np.float32, 2: np.float64}.get(element)
    how, lossless = None, exact(element, kind, bound)
    words_only = number is None or (kind == POINTWISE and not lossless)
    if words_only or data.peek() in OWN:
        how, wide, *how_far = data.byte(), data.byte(), data.byte(), data.one("q")
        how = how, *how_far
        assert how[0] != GRID
        of_map = data.take(check_map(how, element, kind, bound, len(out), version))
        assert wide in (4, 8)
        number = np.float32 if wide == 4 else np.float64
    field = Field(data, len(out), number, out.dtype)
    if how is None:
        assert field.kind in (FIELD_GRID, EXACT)
        if field.kind == FIELD_GRID:
            assert not lossless and 0 < field.step <= 2 * bound
        out[:] = field.numbers.view(out.dtype)
        out[field.holes] = field.fills[field.holes]
    else:
        assert field.kind == FIELD_WORDS and not field.holes.any()
        field.numbers[field.escapes] = 0
        end = 2.0**51 if word_bits(out) == 64 else 2.0**31
        assert ((-end <= field.numbers) & (field.numbers < end)).all()
        words = field.numbers.astype(np.int64 if word_bits(out) == 64 else np.int32)
        from_words(how, words, element, kind, bound, out, version, of_map)
    out[field.escapes] = field.escaped
