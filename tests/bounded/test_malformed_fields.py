"""Fields and windowed symbols that are altered or forged: the decoder and the reader in numpy
refuse the same, and what both take has the same values. Native tests do it with sanitizers.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import forge, reader
from tests.bounded.adversary import bits_of
from tests.bounded.images import image, mask
from tests.bounded.test_numbers import both_read, both_refuse
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError

SHAPE = (32, 33)
# Of a field of a float32 grid, behind the map: kind, width, height, begin, step, middle.
STEP, MIDDLE, WEIGHTS = 5, 13, 17


def fields() -> list[forge.Parts]:
    made = []
    for dtype in (torch.float32, torch.float64):
        x = image(SHAPE, dtype)
        holes = x.masked_fill(mask(SHAPE, 0.2, True), torch.nan)
        mixed = holes.masked_fill(mask(SHAPE, 0.05, False), 1e20)
        mixed[3, 4] = -0.0
        for bound in (1e-2, 1e-4, 0.0):
            made += [bounded.compress(some, max_error=bound) for some in (x, holes, mixed)]
        made.append(bounded.compress(x, pointwise=1e-3))
    made += [bounded.compress(image(SHAPE, torch.int16)), bounded.compress(image(SHAPE).short())]
    return [forge.taken_apart(payload) for payload in made]


def heaps() -> list[forge.Parts]:
    """Symbols whose neighbours are as large as they are."""
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(0)).view(-1, 5)
    place = torch.arange(4000).view(-1, 5)
    waves = noise * torch.exp(4 * torch.sin(place / 300))
    sparse = noise * (place % 2000 < 300)
    made = [bounded.compress(waves, max_error=bound) for bound in (1e-2, 1.0, 0)]
    made += [bounded.compress(waves, pointwise=1e-2), bounded.compress(sparse, max_error=1e-2)]
    return [forge.taken_apart(payload) for payload in made]


def altered(rng: np.random.Generator, block: bytes) -> bytes:
    """Most alterations are near the beginning, where other things are than tokens."""
    made = bytearray(block)
    at = int(rng.integers(len(made) if rng.integers(2) else min(len(made), 140)))
    match rng.integers(4):
        case 0:
            made[at] = int(rng.integers(256))
        case 1:
            made[at] ^= 1 << int(rng.integers(8))
        case 2:
            del made[at : at + int(rng.integers(1, 4))]
        case _:
            made[at:at] = rng.bytes(int(rng.integers(1, 3)))
    return bytes(made)


@pytest.mark.parametrize(("kind", "count"), [(fields, 300), (heaps, 300)])
def test_both_readers_refuse_the_same(kind: Any, count: int) -> None:
    rng = np.random.default_rng(7)
    taken, cases = 0, kind()
    assert {parts.blocks[0][0] for parts in cases} >= ({6} if kind is fields else {2, 3})
    for _ in range(count):
        parts = cases[rng.integers(len(cases))]
        block = forge.sealed(altered(rng, parts.blocks[0][:-4]))
        payload = parts.set(blocks=[block]).payload()
        try:
            found = bounded.decompress(payload)
        except PayloadError as error:
            if "too much memory" in str(error):
                continue  # which Zstandard's Python module has
            with pytest.raises(AssertionError):
                reader.read(payload)
            continue
        taken += 1
        _, bits = reader.read(payload)
        whole = bits_of(found).astype(f"i{found.element_size()}").view(bits.dtype)
        np.testing.assert_array_equal(whole, bits)
    assert 0.05 * count < taken < 0.6 * count


def test_earlier_versions_have_neither() -> None:
    for parts, text in ((fields()[0], "block is a field"), (heaps()[0], "the flags of a block")):
        both_read(parts.payload())
        for version in (1, 2):
            both_refuse(parts.set(version=version).payload(), f"^block 0: .*{text}")


def with_bytes(parts: forge.Parts, at: int, value: bytes) -> bytes:
    """at: behind the map."""
    block = parts.blocks[0][:-4]
    made = block[: 1 + at] + value + block[1 + at + len(value) :]
    return parts.set(blocks=[forge.sealed(made)]).payload()


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, b"\3", "a field is of the kind 3, allowed: 0 to 2"),
        (0, b"\2", ""),
        (1, b"\0", "has planes of 32 rows of 0 values"),
        (2, b"\0", "has planes of 0 rows"),
        (1, b"\x7f\x7f", "has planes of 127 rows of 127 values"),
        (3, b"\x7f", ""),
        (STEP - 1, struct.pack("<d", 0.0), "step 0, allowed: above 0"),
        (STEP - 1, struct.pack("<d", -1.0), "step -1"),
        (STEP - 1, struct.pack("<d", math.nan), "step nan"),
        (STEP - 1, struct.pack("<d", math.inf), "step inf"),
        (STEP - 1, struct.pack("<d", 0.0200001), "which the bound 0.01 does not allow"),
        (MIDDLE - 1, struct.pack("<f", math.nan), "the middle of a field is nan, allowed: finite"),
        (MIDDLE - 1, struct.pack("<f", -math.inf), "the middle of a field is -inf"),
        (WEIGHTS - 1, b"\x40", "a field has the weights 64"),
    ],
    ids=str,
)
def test_forged_heads(at: int, value: bytes, text: str) -> None:
    parts = forge.taken_apart(bounded.compress(image(SHAPE), max_error=1e-2))
    head = parts.blocks[0][:4]
    assert head == bytes([6, 0, 33, 32]) and parts.blocks[0][4] == 0
    both_refuse(with_bytes(parts, at, value), "^block 0: .*" + text)


def test_a_field_may_only_be_where_its_values_are() -> None:
    """Words in place of numbers, a grid without a bound."""
    grid = forge.taken_apart(bounded.compress(image(SHAPE), max_error=1e-2))
    both_refuse(grid.set(kind=0).payload(), "which the bound 0 does not allow")
    words = forge.taken_apart(bounded.compress(image(SHAPE), pointwise=1e-3))
    assert words.blocks[0][:3] == bytes([6, 5, 4])
    both_refuse(words.set(kind=1).payload(), "block 0: ")
    for wide in (0, 1, 3, 16):
        both_refuse(with_bytes(words, 1, bytes([wide])), f"numbers of {wide} bytes, allowed: 4, 8")
    for number in (0, 1, 3, 4, 6):
        both_refuse(with_bytes(words, 0, bytes([number])), "the map of a block|the shift|origin")


def test_forged_fields_take_no_memory() -> None:
    """Planes of more places than 4 for each value; lists that are longer than the block."""
    parts = forge.taken_apart(bounded.compress(image(SHAPE), max_error=1e-2))
    block = parts.blocks[0][:-4]
    large = forge.number(2**31)
    for sizes in ((large, b"\1"), (b"\1", large), (forge.number(2112), forge.number(2112))):
        made = block[:2] + b"".join(sizes) + block[4:]
        both_refuse(parts.set(blocks=[forge.sealed(made)]).payload(), "has planes of")
    both_read(parts.set(blocks=[forge.sealed(block)]).payload())
