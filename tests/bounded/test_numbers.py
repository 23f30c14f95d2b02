"""Numbers that no encoder writes are refused, by the reader in numpy too. Others are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import forge, numbers, reader
from tests.bounded.forged import both_read, both_refuse
from torch_cgx import _C, bounded


@pytest.mark.parametrize("level", _C.cpu_levels().split(","))
def test_words(level: str) -> None:
    _C.set_cpu_level(level)
    try:
        for case in numbers.CASES:
            for payload, allowed in numbers.payloads(case):
                if allowed:
                    both_read(payload)
                else:
                    both_refuse(payload, r"^block 0: (value \d+ has the word|a bool is)")
    finally:
        _C.set_cpu_level("")


def plain(**bound: float) -> torch.Tensor:
    x = torch.linspace(-3, 5, numbers.N)
    x[7] = torch.nan
    return bounded.compress(x, **bound)


def altered(payload: torch.Tensor, at: int, value: bytes) -> bytes:
    parts = forge.taken_apart(payload)
    block = parts.blocks[0][:-4]
    parts.blocks[0] = forge.sealed(block[:at] + value + block[at + len(value) :])
    return parts.payload()


def test_a_symbol_of_an_outlier_that_is_missing() -> None:
    words = [3] * numbers.N
    good = forge.of_words(plain(max_error=0.5), words, map=3, slot=numbers._step(1.0))
    assert (both_read(good.payload()) == 3).all()
    for outliers in (0, 1, numbers.N - 1):
        block = bytearray(good.blocks[0][: 36 + numbers.N + 4 * outliers])
        block[24:28] = outliers.to_bytes(4, "little")
        block[32:36] = (numbers.N + 4 * outliers).to_bytes(4, "little")
        bad = forge.taken_apart(plain(max_error=0.5))
        bad.blocks[0] = forge.sealed(bytes(block))
        both_refuse(bad.payload(), "block 0: the block has fewer outliers than symbols of them")


@pytest.mark.parametrize("base", [2**31, -(2**31) - 1, 2**63 - 1])
def test_a_base_that_words_have_no_room_for(base: int) -> None:
    both_refuse(
        altered(plain(max_error=0.5), 8, base.to_bytes(8, "little", signed=True)),
        "the base of a block",
    )


def test_bits_of_no_value() -> None:
    n = 1100
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    noise = bounded.compress(x, max_error=1e-4)
    block = forge.taken_apart(noise).blocks[0]
    assert block[2] & 1 == 0 and block[3] % 8 > 0  # planes of bits, not coded
    both_read(altered(noise, len(block) - 4 - 144, bytes([block[-148] ^ 255])))
    for bit in range(n, 1152):
        at = len(block) - 4 - 144 + bit // 8  # in the last plane
        flipped = block[at] | 1 << bit % 8
        both_refuse(altered(noise, at, bytes([flipped])), "goes on behind the last value")


def test_codes_of_no_value() -> None:
    words = [0] * 97  # three codes of the last byte stand for none
    good = forge.of_words(bounded.compress(torch.ones(97), max_error=0.5), words)
    for code in range(4):
        for at in range(4):
            head = bytearray(good.blocks[0][:36])
            head[0:3], head[5], head[16:24] = bytes([3, 0, 8]), 9, numbers._step(1.0)
            head[24:28], head[32:36] = bytes(4), (25).to_bytes(4, "little")
            quads = bytes(24) + bytes([code << 2 * at])
            good.blocks[0] = forge.sealed(bytes(head) + quads)
            if code == 0 or (at == 0 and code != 3):
                both_read(good.payload())
            else:
                both_refuse(good.payload(), "do not fit its list")


def test_nodes_of_curves() -> None:
    x = torch.sin(torch.arange(1024, dtype=torch.float64) / 500)
    fields: dict[str, Any] = {"map": 3, "predictor": 4, "slot": numbers._step(1e-3)}
    parts = forge.of_words(bounded.compress(x, max_error=1e-3), [0] * 1024, **fields)
    block = parts.blocks[0]

    def with_node(node: int) -> bytes:
        # Its second difference, and what brings the next nodes back to 0.
        bends = [node, -2 * node, node, *[0] * 13]
        wrapped = [(bend + 2**31) % 2**32 - 2**31 for bend in bends]
        folded = [(bend << 1 ^ bend >> 63) & 0xFFFFFFFF for bend in wrapped]
        planes = b"".join(bytes(f >> 8 * k & 255 for f in folded) for k in range(4))
        content = block[36 : 36 + 1024] + planes + block[36 + 1024 : -4]
        head = block[:32] + len(content).to_bytes(4, "little")
        parts.blocks[0] = forge.sealed(head + content)
        return parts.payload()

    for node in (2**30, -(2**30)):
        both_read(with_node(node))
        both_refuse(with_node(node + (1 if node > 0 else -1)), "a node of a curve")


def test_far_words_of_version_1() -> None:
    """Earlier releases wrote words beyond 2^51 for these."""
    for value in (2.0**52 + 4, 1.7e18, 1e300, -1e300):
        word = int(np.float64(value + 1.5 * 2.0**52).view(np.int64)) - reader.ROUNDER
        word = (word + 2**63) % 2**64 - 2**63
        plain_of = bounded.compress(torch.arange(100, dtype=torch.float64), max_error=0.5)
        words = [word] + [0] * (numbers.N - 1)
        parts = forge.of_words(plain_of, words, map=3, slot=numbers._step(1.0))
        both_refuse(parts.payload(), "has the word")
        assert both_read(parts.set(version=1).payload())[0] == value
    words[0] = 0x7FF0000000000000 - reader.ROUNDER  # of an infinity
    parts = forge.of_words(plain_of, words, map=3, slot=numbers._step(1.0)).set(version=1)
    both_refuse(parts.payload(), "value 0 is not finite, and no special value")


def test_requested_bounds() -> None:
    for kind, dtype in (("max_error", torch.float32), ("pointwise", torch.float64)):
        # Of so many different words that version 2 has the same blocks.
        x = 10.0 ** (torch.rand(100, dtype=dtype) * 60 - 30)
        payload = bounded.compress(x if kind == "pointwise" else x % 1000, **{kind: 0.25})
        for asked in (0.125, np.nan, np.inf, -0.25):
            both_refuse(forge.taken_apart(payload, 2).set(asked=asked).payload(), "bound is")
    relative = bounded.compress(torch.rand(100), relative=0.001)
    for version in (2, 3):
        parts = forge.taken_apart(relative, version)
        both_read(parts.set(asked=0.125).payload())
        both_refuse(parts.set(asked=np.nan).payload(), "bound is")
