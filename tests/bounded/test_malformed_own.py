"""Forged palettes and multiples: their checksums are right, and they are refused, by the second
reader too.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import forge
from tests.bounded.forge import number, sealed
from tests.bounded.forged import N, both_read, both_refuse, plain, with_block
from tests.bounded.helpers import same_bits
from torch_cgx import bounded


def palette(*numbers: int, count: int | None = None) -> bytes:
    """The first place, and the differences less 1."""
    return b"".join(map(number, [len(numbers) if count is None else count, *numbers]))


def multiples(*units: float, way: int = 0, width: int = 0, start: int = 0) -> bytes:
    return bytes([way]) + number(width) + number(start) + struct.pack(f"<{len(units)}d", *units)


def words_of(own: bytes, words: list[int], dtype: torch.dtype, how: int, **fields: Any) -> bytes:
    return forge.of_words(plain(dtype, len(words)), words, own=own, map=how, **fields).payload()


# ---- palettes

TOP = {torch.float32: 2**32, torch.bfloat16: 2**16, torch.int16: 2**16, torch.int64: 2**64}


@pytest.mark.parametrize("dtype", TOP, ids=str)
def test_palettes(dtype: torch.dtype) -> None:
    top, words = TOP[dtype], [0, 1] * 50

    def of(own: bytes, some: list[int] = words, **fields: Any) -> bytes:
        return words_of(own, some, dtype, 7, **fields)

    for own in (palette(0, 0), palette(0, top - 2), palette(top - 2, 0), palette(5, 7, 9)):
        both_read(of(own))
    y = both_read(of(palette(0, top - 2)))
    if dtype.is_floating_point:
        assert y.isnan().all() and torch.signbit(y).tolist() == [True, False] * 50
    else:
        info = torch.iinfo(dtype)
        assert y.tolist() == [info.min, info.max] * 50
    for own, text in (
        (palette(0, top - 1), "a value that its type does not have"),
        (palette(top - 1, 0), "a value that its type does not have"),
        (palette(0, top - 2, 0), "a value that its type does not have"),
        (palette(top), "a value that its type does not have|more than 64 bits"),
        (palette(2**64 - 1, 2**64 - 1), "a value that its type does not have"),
        (palette(count=0), "a palette has 0 values"),
        (palette(*[0] * 99, count=65537), "a palette has 65537 values"),
        (palette(0, 0, count=2**64 - 1), "a palette has"),
        (palette(0, 0, count=3), "is cut"),
        (palette(0, 0, 0, count=2), "a block goes on behind its palette"),
        (palette(0, 0)[:-1] + b"\x80", "is cut"),
        (b"\xff" * 10, "more than 64 bits"),
        (bytes([2]) + b"\xff" * 11, "more than 64 bits"),
    ):
        both_refuse(of(own), text)
    for word in (-1, 2, 2**31 - 1, -(2**31)):
        for at in (0, 50, N - 1):
            both_refuse(of(palette(0, 0), [*words[:at], word, *words[at + 1 :]]), "has the word")


def test_headers_of_palettes() -> None:
    words, own = [0, 1] * 50, palette(3, 4)

    def refused(
        text: str, own: bytes = own, dtype: torch.dtype = torch.float32, **fields: Any
    ) -> None:
        both_refuse(words_of(own, words, dtype, 7, **fields), text)

    for length in (0, -1, -(2**63), 10 * N + 33, 2**62):
        refused("the length of a block's map", slot=struct.pack("<q", length))
    for length in (len(own) - 1, len(own) + 1, 10 * N + 32):
        refused("its header says", slot=struct.pack("<q", length))
    refused("the shift of a block", shift=1)
    refused("the predictor of a block", predictor=4)
    for flags in (4, 32, 64, 255):
        refused("the flags of a block", flags=flags)
    refused("its header says", specials=1)
    refused("special values", specials=N + 1)
    for version in (1, 2):
        parts = forge.of_words(plain(), words, version, own=own, map=7)
        both_refuse(parts.payload(), "the map of a block is 7")
    for bound in ({"max_error": 0.5}, {"relative": 0.5}, {"pointwise": 0.1}):
        parts = forge.of_words(plain(torch.float32, N, **bound), words, own=own, map=7)
        both_read(parts.payload())


def test_a_bool_of_a_palette() -> None:
    for value, good in ((1, True), (2, False), (255, False)):
        payload = words_of(palette(0, value - 1), [0, 1] * 50, torch.bool, 7)
        if good:
            both_read(payload)
        else:
            both_refuse(payload, "a bool is")


# ---- multiples


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_multiples(dtype: torch.dtype) -> None:
    words = [3, -2] * 50

    def of(own: bytes, some: list[int] = words, **fields: Any) -> bytes:
        return words_of(own, some, dtype, 8, **fields)

    assert both_read(of(multiples(0.5))).tolist() == [1.5, -1.0] * 50
    assert both_read(of(multiples(4.0, way=1))).tolist() == [0.75, -0.5] * 50
    assert both_read(of(multiples(5e-324))).abs().max() <= 2e-323
    rows = both_read(of(multiples(1, 2, 4, width=40, start=3)))
    assert rows[36:38].tolist() == [3, -4] and rows[77] == -8
    both_read(of(multiples(*[1.0] * N, width=1)))
    both_read(of(multiples(1.0, width=2 * N, start=N)))
    both_read(of(multiples(1.0, 2.0, width=2 * N, start=2 * N - 1)))
    for unit in (0.0, -0.0, -1.0, np.nan, np.inf, -np.inf):
        both_refuse(of(multiples(unit)), "multiples have the unit")
        both_refuse(of(multiples(1, 2, unit, width=40, start=3)), "multiples have the unit")
    for own, text in (
        (multiples(1.0, way=2), "written in the way 2"),
        (multiples(1.0, way=255), "written in the way 255"),
        (multiples(1.0, width=2 * N + 1), "in rows of 201 values"),
        (multiples(1.0, width=2**32), "in rows of 4294967296 values"),
        (multiples(1.0, width=2**64 - 1), "in rows of 18446744073709551615 values"),
        (multiples(1.0, start=1), "from 1 on"),
        (multiples(1.0, start=2**64 - 1), "from 18446744073709551615 on"),
        (multiples(1, 2, 4, width=40, start=40), "from 40 on"),
        (multiples(), "units of multiples have 0 bytes, allowed: 8"),
        (multiples(1.0, 2.0), "units of multiples have 16 bytes, allowed: 8"),
        (multiples(1, 2, width=40), "units of multiples have 16 bytes, allowed: 24"),
        (multiples(1, 2, 3, width=40, start=39), "allowed: 32"),
        (multiples(1.0)[:-1], "units of multiples have 7 bytes"),
        (bytes(1), "is cut"),
        (bytes([0]) + b"\xff" * 20, "more than 64 bits"),
    ):
        both_refuse(of(own), text)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_words_of_multiples_that_are_no_numbers(dtype: torch.dtype) -> None:
    """Each row has its own unit, so the same word may be a number in another row."""
    great = float(torch.finfo(dtype).max) / 2
    words, n = [2] * 3000, 3000
    units = [1.0] * 30
    both_read(words_of(multiples(*units, width=N), words, dtype, 8))
    for row in (0, 7, 29):
        units = [1.0] * 30
        units[row] = great
        good = list(words)
        both_read(words_of(multiples(*units, width=N), good, dtype, 8))
        for at in (0, N - 1):
            bad = list(words)
            bad[row * N + at] = 3
            text = f"value {row * N + at} has the word 3, which stands for no number"
            both_refuse(words_of(multiples(*units, width=N), bad, dtype, 8), text)
    tiny = float(torch.finfo(dtype).tiny)
    bad = [2**31 - 1] * n
    both_refuse(words_of(multiples(tiny / 2**20, way=1), bad, torch.float32, 8), "has the word")


def test_types_without_multiples() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool):
        payload = words_of(multiples(1.0), [0, 1] * 50, dtype, 8)
        both_refuse(payload, "the map of a block is 8")
    with_bound = forge.of_words(plain(max_error=0.5), [1] * N, own=multiples(1.0), map=8)
    assert (both_read(with_bound.payload()) == 1).all()


# ---- fields of words


def field_block(x: torch.Tensor) -> bytes:
    block = forge.taken_apart(bounded.compress(x, max_error=0)).blocks[0]
    assert block[0] == 6
    return block[:-4]


def waves() -> torch.Tensor:
    i, j = torch.arange(60.0).view(-1, 1), torch.arange(100.0)
    return torch.sin(i / 9) + torch.cos(j / 11) + torch.sin((i + j) / 30)


def test_fields_with_their_own_map() -> None:
    x = (waves() * 4000).round() / 100
    block = field_block(x)
    assert block[1] == 8

    def of(*pieces: bytes, **fields: Any) -> bytes:
        return with_block(b"\6" + b"".join(pieces), n=6000, **fields)

    head, own, rest = block[1:4], block[4:12], block[12:]
    length = struct.unpack("<q", own)[0]
    assert same_bits(both_read(of(block[1:])), x.view(-1))
    for wrong in (0, -1, 10 * 6000 + 33, 2**63 - 1):
        both_refuse(of(head, struct.pack("<q", wrong), rest), "the length of a block's map")
    for wrong in (1, length - 1, length + 1, 10 * 6000 + 32):
        both_refuse(of(head, struct.pack("<q", wrong), rest), "block 0: ")
    for how in (2, 3, 4, 5, 6, 9, 10, 255):
        both_refuse(of(bytes([how]), head[1:], own, rest), "map|origin|a field")
        both_refuse(of(bytes([how]), head[1:], bytes(8), rest[length:]), "map|origin|a field")
    both_refuse(of(head[:1], bytes([5]), head[2:], own, rest), "numbers of 5 bytes")
    both_refuse(of(head[:2], bytes([1]), own, rest), "the shift of a block")
    both_refuse(of(head, own, bytes([255]), rest[1:]), "block 0: ")
    for cut in range(1, 12 + length):
        both_refuse(of(block[1 : 1 + cut]), "block 0: ")


def test_fields_of_words_of_other_maps() -> None:
    """Numbers of float32 that have no log grid are no words of the order or of the grid."""
    wave = waves()
    words = (wave * 400).round().to(torch.int32)
    block = forge.taken_apart(bounded.compress(words)).blocks[0][:-4]
    assert block[:2] == b"\6\2"
    for bound in ({"max_error": 0}, {"max_error": 1e-3}, {"relative": 1e-3}):
        parts = forge.taken_apart(plain(torch.float32, 6000, **bound))
        for how in (2, 3):
            parts.blocks = [sealed(b"\6" + bytes([how]) + block[2:])]
            both_refuse(parts.payload(), "block 0: a field")
    exact = sealed(field_block(wave))
    assert exact[1] == 1
    parts = forge.taken_apart(plain(torch.float32, 6000, pointwise=1e-3))
    both_refuse(parts.set(blocks=[exact]).payload(), "the map of a block is 1")
