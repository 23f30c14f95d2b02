"""Blocks of words at the ends of what they may be, and beyond, where no encoder writes them. Their
checksums are right.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch

from tests.bounded import forge, reader
from torch_cgx import bounded

N = 100  # values of a block
AT = (0, 70, N - 1)  # where the word is


class Case(NamedTuple):
    dtype: torch.dtype
    bound: dict[str, float]
    fields: dict[str, int | bytes]
    good: tuple[int, ...]
    bad: tuple[int, ...]


def _ends(least: int, greatest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (least, greatest), (least - 1, greatest + 1)


def _step(value: float) -> bytes:
    return struct.pack("<d", value)


def _origin(value: int) -> bytes:
    return struct.pack("<q", value)


_GRID = {"map": 3, "slot": _step(1.0)}
_CODES = sum(reader.codes(1e-2))  # of a binade
CASES = [
    Case(torch.float16, {"max_error": 0}, {}, *_ends(-(2**15), 2**15 - 1)),
    Case(torch.bfloat16, {"max_error": 0}, {"shift": 3}, *_ends(-(2**12), 2**12 - 1)),
    Case(torch.float32, {"max_error": 0}, {"shift": 5}, *_ends(-(2**26), 2**26 - 1)),
    Case(torch.float64, {"max_error": 0}, {"shift": 9}, *_ends(-(2**54), 2**54 - 1)),
    Case(torch.int8, {}, {}, *_ends(-128, 127)),
    Case(torch.uint8, {}, {"shift": 3}, *_ends(0, 31)),
    Case(torch.int16, {}, {"shift": 2}, *_ends(-(2**13), 2**13 - 1)),
    Case(torch.uint16, {}, {}, *_ends(0, 65535)),
    Case(torch.int32, {}, {"shift": 4}, *_ends(-(2**27), 2**27 - 1)),
    Case(torch.uint32, {}, {"shift": 4}, *_ends(-(2**27), 2**27 - 1)),
    Case(torch.int64, {}, {"shift": 7}, *_ends(-(2**56), 2**56 - 1)),
    Case(torch.bool, {}, {}, *_ends(0, 1)),
    Case(torch.float32, {"max_error": 0.5}, _GRID, (1 - 2**31, 2**31 - 1), (-(2**31),)),
    Case(torch.float64, {"max_error": 0.5}, _GRID, *_ends(-(2**51), 2**51)),
    Case(torch.float64, {"max_error": 0.5}, _GRID, (2**51,), (2**52 + 1, 2**62, -(2**63))),
    Case(
        torch.float32,
        {"max_error": 2.0**100},
        {"map": 3, "slot": _step(2.0**100)},
        *_ends(9 - 2**28, 2**28 - 9),
    ),
    Case(torch.float16, {"max_error": 40000.0}, {"map": 4}, *_ends(-1, 1)),
    Case(
        torch.float64,
        {"pointwise": 1e-2},
        {"map": 5, "slot": _origin(1000)},
        *_ends(-24 * _CODES, 24 * _CODES),
    ),
    Case(
        torch.float32,
        {"pointwise": 1e-2},
        {"map": 5, "slot": _origin(120)},
        *_ends(-8 * _CODES, 8 * _CODES),
    ),
    # 2^-151 becomes 0 in float32, 2^-149 is not.
    Case(
        torch.float32,
        {"pointwise": 1e-2},
        {"map": 5, "slot": _origin(-151)},
        (2 * _CODES + 1, -2 * _CODES - 1, 0),
        (1, -1),
    ),
]


def payloads(case: Case) -> list[tuple[bytes, bool]]:
    """Payloads with one such word each, and whether it stands for a value."""
    whole = torch.zeros(N, dtype=case.dtype)
    whole[0] = 1
    plain = bounded.compress(whole, **case.bound)
    size = 64 if case.dtype.itemsize == 8 else 32
    made = []
    for allowed, words in ((True, case.good), (False, case.bad)):
        for word in words:
            if not -(2 ** (size - 1)) <= word < 2 ** (size - 1):
                continue
            for at in AT:
                block = [0] * N
                block[at] = word
                made.append((forge.of_words(plain, block, **case.fields).payload(), allowed))
    return made
