"""BDI in plain Python, by its description (torch_cgx.bounded.bdi, docs/bdi.md): an oracle.

Words are ints from 0 to 2**32 - 1, streams of bits are long ints. Slow, so for short tensors.
"""

from __future__ import annotations

import dataclasses
import struct

from tests.oracle import splitmix64

DTYPES = ("int32", "uint32", "float32")
_M32 = (1 << 32) - 1


@dataclasses.dataclass(frozen=True)
class Model:
    configs: tuple[tuple[int, int, int], ...]  # bases, bits of a base, bits of a delta
    batch: int = 64
    immediates: tuple[int, ...] = (0,)
    init: int = 0
    base: int = 0
    delta: int = 0
    stochastic: bool = False
    zero_mask: bool = True
    random_bases: bool = False
    seed: int = 0
    dtype: str = "uint32"


@dataclasses.dataclass(frozen=True)
class Chunk:
    choice: int  # -1: raw
    bits: int  # as accounted
    words: list[int]  # as decoded
    mask: list[bool]  # not zero
    bases: list[int]
    selectors: list[int]
    deltas: list[int]


def crc32c(data: bytes) -> int:
    """RFC 3720, bit by bit."""
    crc = _M32
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ _M32


def random_bits(seed: int, sequence: int, stage: int, counter: int) -> int:
    """csrc/codec/ops/random.h, for counters below 2**32."""
    state = splitmix64(splitmix64(splitmix64(seed) ^ sequence) ^ stage << 32)
    x = (state + counter * 0x9E3779B9) & _M32
    x ^= x >> 16 ^ state >> 32
    x = x * 0x7FEB352D & _M32
    x ^= x >> 15
    return x * 0x846CA68B & _M32


def kind(dtype: str, word: int) -> str:
    sign = "-" if word >> 31 else "+"
    if dtype == "uint32":
        return ""
    if dtype == "int32":
        return sign
    size = word & 0x7FFFFFFF
    return sign + ("nan" if size > 0x7F800000 else "inf" if size == 0x7F800000 else "finite")


def chunks(model: Model, words: list[int]) -> list[Chunk]:
    return [
        _chunk(model, words[at : at + model.batch], at // model.batch)
        for at in range(0, len(words), model.batch)
    ]


def decoded(model: Model, words: list[int]) -> list[int]:
    return [word for chunk in chunks(model, words) for word in chunk.words]


def _chunk(model: Model, words: list[int], number: int) -> Chunk:
    shifted = [word >> model.init for word in words]
    mask = [
        not model.zero_mask
        or s >> model.delta != 0
        or (model.dtype == "float32" and kind("float32", word) != "+finite")
        for s, word in zip(shifted, words, strict=True)
    ]
    found = [
        chunk
        for index in range(len(model.configs))
        if (chunk := _with(model, index, words, shifted, mask, number)) is not None
    ]
    raw = Chunk(-1, 32 * len(words), words, [], [], [], [])
    return min(found, key=lambda chunk: chunk.bits, default=raw)


def _with(
    model: Model, index: int, words: list[int], shifted: list[int], mask: list[bool], number: int
) -> Chunk | None:
    most_bases, base_bits, delta_bits = model.configs[index]
    free = [i for i, taken in enumerate(mask) if taken]
    owner: dict[int, int] = {}
    bases: list[int] = []  # immediates first

    def take(base: int) -> None:
        for i in [*free]:
            if shifted[i] >= base and (shifted[i] - base) >> model.delta < 1 << delta_bits:
                owner[i] = len(bases)
                free.remove(i)
        bases.append(base)

    for immediate in model.immediates:
        take(immediate)
    for k in range(most_bases):
        fitting = [i for i in free if shifted[i] >> model.base < 1 << base_bits]
        if not fitting:
            break
        place = fitting[0]
        if model.random_bases:
            draw = random_bits(model.seed, index, 1, number * 64 + k)
            place = fitting[len(fitting) * draw >> 32]
        take(shifted[place] >> model.base << model.base)
    if free:
        return None
    deltas, out = [], [0] * len(words)
    for i, word in enumerate(words):
        if not mask[i]:
            continue
        base = bases[owner[i]]
        delta = (shifted[i] - base) >> model.delta
        rest = (shifted[i] - base) % (1 << model.delta)
        up = base + (delta + 1 << model.delta) << model.init
        if model.stochastic and rest and delta + 1 < 1 << delta_bits:
            draw = random_bits(model.seed, 0, 0, number * model.batch + i)
            chance = draw >> (32 - model.delta) < rest
            if chance and up <= _M32 and kind(model.dtype, up) == kind(model.dtype, word):
                delta += 1
        out[i] = base + (delta << model.delta) << model.init
        if kind(model.dtype, out[i]) != kind(model.dtype, word):
            return None
        deltas.append(delta)
    bits = len(words) * model.zero_mask + most_bases * base_bits + len(deltas) * delta_bits
    selectors = [owner[i] for i in range(len(words)) if mask[i]]
    used = bases[len(model.immediates) :]
    return Chunk(index, bits, out, mask, used, selectors, deltas)


def _stream(fields: list[tuple[int, int]]) -> bytes:
    """(value, width) to bytes, lowest bit first."""
    number = at = 0
    for value, width in fields:
        assert 0 <= value < 1 << width or value == width == 0
        number |= value << at
        at += width
    return number.to_bytes((at + 7) // 8, "little")


def _body(model: Model, words: list[int], chunk: Chunk) -> bytes:
    if chunk.choice < 0:
        return struct.pack(f"<{len(words)}I", *words)
    most_bases, base_bits, delta_bits = model.configs[chunk.choice]
    choices = len(model.immediates) + len(chunk.bases)
    selector_bits = max(choices - 1, 0).bit_length()
    fields = [(int(bit), 1) for bit in chunk.mask] if model.zero_mask else []
    fields.append((len(chunk.bases), most_bases.bit_length()))
    fields += [(base >> model.base, base_bits) for base in chunk.bases]
    fields += [(selector, selector_bits) for selector in chunk.selectors]
    fields += [(delta, delta_bits) for delta in chunk.deltas]
    return _stream(fields)


def payload(model: Model, words: list[int], shape: tuple[int, ...]) -> bytes:
    found = chunks(model, words)
    width = len(model.configs).bit_length()
    rest = struct.pack(f"<{len(shape)}Q", *shape)
    rest += struct.pack(f"<{len(model.immediates)}I", *model.immediates)
    rest += bytes(field for config in model.configs for field in config)
    rest += _stream([(chunk.choice + 1, width) for chunk in found])
    for i, chunk in enumerate(found):
        rest += _body(model, words[i * model.batch : (i + 1) * model.batch], chunk)
    head = struct.pack(
        "<4sHBBQHBBBBBB",
        b"CGXI",
        1,
        DTYPES.index(model.dtype),
        int(model.zero_mask),
        24 + len(rest) + 4,
        model.batch,
        model.init,
        model.base,
        model.delta,
        len(shape),
        len(model.immediates),
        len(model.configs),
    )
    return head + rest + struct.pack("<I", crc32c(head + rest))
