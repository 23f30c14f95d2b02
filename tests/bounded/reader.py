"""A second reader of payloads and files, from docs/bounded_format.md alone: numpy and zstandard.

An AssertionError says that a payload does not follow the format.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib

import numpy as np
import zstandard

BLOCK = 65536
# Element: bytes, numpy dtype of the bits.
BITS = {
    1: np.uint32, 2: np.uint64, 3: np.uint16, 4: np.uint16, 5: np.uint8, 6: np.uint8, 7: np.uint16,
    8: np.uint16, 9: np.uint32, 10: np.uint32, 11: np.uint64, 12: np.uint64, 13: np.uint8,
}  # fmt: skip
ROUNDER = 0x4338000000000000  # the bits of 1.5 * 2^52
RAW, CONSTANT, ORDER, GRID, LATTICE, LOG_GRID = range(6)
NONE, MEAN, PREVIOUS, LINE, CURVE = range(5)
LOSSLESS, MAX_ERROR, RELATIVE, POINTWISE = range(4)
HEADER = struct.Struct("<4sBBBBIIdd")
BLOCK_HEADER = struct.Struct("<BBBBBBHq8sIII")


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def read(payload: bytes) -> tuple[dict, np.ndarray]:
    """The header's fields, and the bits of all values, 1-D."""
    magic, version, kind_of_value, kind, dims, crc, bits, asked, bound = HEADER.unpack_from(payload)
    assert (magic, bits) == (b"CGXB", 16) and version in (1, 2)
    assert np.isfinite(asked) and not np.signbit(asked)
    assert kind in (LOSSLESS, RELATIVE) or asked == bound
    shape = struct.unpack_from(f"<{dims}Q", payload, 32)
    element, parts = kind_of_value % 64, 2 if kind_of_value >= 64 else 1
    count = int(np.prod(shape, dtype=np.int64)) * parts
    blocks = -(-count // BLOCK)
    table = 32 + 8 * dims
    sizes = struct.unpack_from(f"<{blocks}I", payload, table)
    at = table + 4 * blocks
    ends, end = b"", at
    for size in sizes:
        end += size
        ends += payload[end - min(size, 4) : end]
    assert crc == crc32c(payload[:8] + payload[12:at] + ends)
    out = np.zeros(count, BITS[element])
    for k, size in enumerate(sizes):
        values = out[k * BLOCK : (k + 1) * BLOCK]
        if size:
            read_block(payload[at : at + size], element, kind, bound, values, version)
        at += size
    assert at == len(payload)
    assert element != 13 or (out <= 1).all()
    fields = {"element": element, "kind": kind, "asked": asked, "bound": bound, "shape": shape}
    return fields, out


def read_block(
    block: bytes, element: int, kind: int, bound: float, out: np.ndarray, version: int
) -> None:
    assert struct.unpack("<I", block[-4:])[0] == crc32c(block[:-4])
    n, width_of_value = len(out), out.itemsize
    if block[0] in (RAW, CONSTANT):
        out[:] = np.frombuffer(block[1:-4], out.dtype)
        return
    (how, predictor, flags, width, shift, center, listed, base, slot, outliers, specials, coded) = (
        BLOCK_HEADER.unpack_from(block)
    )
    assert word_bits(out) == 64 or -(2**31) <= base < 2**31
    assert not flags & 1 or (width and width % 8 == 0)
    content = block[36 : 36 + coded]
    low = np.frombuffer(block[36 + coded : -4], np.uint8)
    if flags & 2:
        content = zstandard.ZstdDecompressor().decompress(content, max_output_size=20 * n + 1024)
    word = np.int64 if width_of_value == 8 else np.int32
    unsigned = np.uint64 if width_of_value == 8 else np.uint32
    if flags & 8:
        at = -(-n // 4)
        codes = np.frombuffer(content, np.uint8, at)
        codes = (codes[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
        assert not codes[n:].any()
        codes = codes[:n]
        assert (codes == 3).sum() == listed
        symbols = (center + np.array([0, -1, 1, 0])[codes]).astype(np.uint8)
        symbols[codes == 3] = np.frombuffer(content, np.uint8, listed, at)
        content = bytes(n) + content[at + listed :]  # as if nothing had been packed
    else:
        symbols = np.frombuffer(content, np.uint8, n)
    at, whole, rest = n, width // 8, width % 8
    if flags & 1:
        planes, low = np.frombuffer(content, np.uint8, whole * n, n), low[:0]
        at += whole * n
    else:
        planes, low = low[: whole * n], low[whole * n :]
    u = symbols.astype(unsigned) << unsigned(width)
    for j in range(whole):
        u |= planes[j * n : (j + 1) * n].astype(unsigned) << unsigned(8 * j)
    stride = -(-n // 64) * 8
    for j in range(rest):
        bits = np.unpackbits(low[j * stride : (j + 1) * stride], bitorder="little")
        assert not bits[n:].any()
        bits = bits[:n]
        u |= bits.astype(unsigned) << unsigned(8 * whole + j)
    residuals = u + np.int64(base).astype(unsigned)
    nodes = None
    if predictor == CURVE:
        runs = -(-n // 256) * 4
        folded = np.frombuffer(content, np.uint8, 4 * runs, at).reshape(4, runs).astype(np.uint32)
        folded = folded[0] | folded[1] << 8 | folded[2] << 16 | folded[3] << 24
        bends = (folded >> 1) ^ -(folded & 1).astype(np.int32).astype(np.uint32)
        slopes = np.cumsum(bends, dtype=np.uint32)
        nodes = np.cumsum(slopes, dtype=np.uint32).view(np.int32).reshape(-1, 4)
        assert (np.abs(nodes.astype(np.int64)) <= 2**30).all()
        at += 4 * runs
    assert (symbols == 255).sum() == outliers
    residuals[symbols == 255] = np.frombuffer(content, unsigned, outliers, at)
    at += outliers * word().itemsize
    words = residuals
    for _ in range({PREVIOUS: 1, LINE: 2}.get(predictor, 0)):
        words = np.cumsum(words, dtype=unsigned)
    words = words.view(word)
    negative = words < 0
    if flags & 4:
        words = words + negative.astype(word)
    places = np.frombuffer(content, np.uint16, specials, at)
    assert (np.diff(places.astype(int)) > 0).all() and (places < n).all()
    if how == ORDER:
        out[:] = from_order(words, element, shift, struct.unpack("<q", slot)[0], out.dtype)
    elif how == GRID:
        step = struct.unpack("<d", slot)[0]
        if element == 2 and version == 1:
            numbers = (words.view(np.uint64) + np.uint64(ROUNDER)).view(np.float64) - 1.5 * 2.0**52
        else:
            most = 2**31 - 1 if element == 1 else 2**51
            assert (words >= -most).all() and (words <= most).all()
            numbers = words.astype(np.float64)
        if nodes is not None:
            numbers = numbers + np.concatenate([curve(four) for four in nodes])[:n]
        with np.errstate(over="ignore"):
            values = (numbers * step).astype(np.float32 if element == 1 else np.float64)
        assert np.isfinite(np.delete(values, places)).all()
        out[:] = values.view(out.dtype)
    elif how == LATTICE:
        groups = np.array(lattice(element, bound, kind != POINTWISE, version), np.uint16)
        assert (np.abs(words) < len(groups)).all()
        out[:] = groups[np.abs(words)] | np.where(words < 0, 0x8000, 0).astype(np.uint16)
    else:
        origin = struct.unpack("<q", slot)[0]
        assert (-1074 if element == 2 and version == 2 else -1022) <= origin <= 1023
        with np.errstate(over="ignore", under="ignore"):
            values = log_grid(words.astype(np.int64), bound, origin)
            values = values.astype(np.float32 if element == 1 else np.float64)
        assert np.isfinite(values).all() and ((values == 0) == (words == 0)).all()
        out[:] = values.view(out.dtype)
    if flags & 4:
        out[negative] |= out.dtype.type(1 << (8 * width_of_value - 1))
    at += 2 * specials
    out[places] = np.frombuffer(content, out.dtype, specials, at)
    assert at + specials * width_of_value == len(content)


def word_bits(out):
    return 64 if out.itemsize == 8 else 32


def from_order(words, element, shift, origin, dtype):
    bits = 8 * dtype.itemsize
    if element > 4:
        # As signed numbers, or as numbers of 8 or 16 bits without a sign.
        least = 0 if element in (5, 8, 13) else -(2 ** (bits - 1))
        assert all(least <= w << shift < least + 2**bits for w in words.tolist())
        return (words.astype(np.int64).view(np.uint64) << np.uint64(shift)).astype(dtype)
    top = (2 ** (bits - 1) - 1) >> shift
    assert all(-1 - top <= w <= top for w in words.tolist())
    out = []
    for w in words.tolist():
        place = ~w if w < 0 else w
        magnitude = place and (place + origin - 1) % top + 1
        out.append(magnitude << shift | (2 ** (bits - 1) if w < 0 else 0))
    return np.array(out, dtype=dtype)


def curve(four):
    """256 values of the cubic through four nodes, in steps."""
    places = (32, 96, 160, 224)
    i = np.arange(256, dtype=np.float64)
    parts = []
    for k, place in enumerate(places):
        above, below = np.ones(256), 1.0
        for other in places[:k] + places[k + 1 :]:
            above, below = above * (i - other), below * (place - other)
        parts.append(above / below / 64 * float(four[k]))
    return ((parts[0] + parts[1]) + parts[2]) + parts[3]


def half_values(element):
    bits = np.arange(0x8000, dtype=np.uint16)
    if element == 3:
        return bits, bits.view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def lattice(element, bound, absolute, version):
    """Bits of the value that stands for each group of float16 or bfloat16, from 0 on."""
    bits, values = half_values(element)
    taken = np.isfinite(values)
    if version == 1:
        taken &= (values == 0) | (bits >= {3: 0x400, 4: 0x80}[element])
    bits, values = bits[taken], values[taken]
    allowed = np.full(len(values), bound) if absolute else bound * values
    groups, first = [0], int(np.sum(values <= allowed))
    while first < len(values):
        stop = first + 1
        while stop < len(values) and values[stop] - values[first] <= allowed[first]:
            stop += 1
        chosen = stop - 1
        stop = chosen + 1
        while stop < len(values) and values[stop] - values[chosen] <= allowed[stop]:
            stop += 1
        groups.append(int(bits[chosen]))
        first = stop
    return groups


def codes(pointwise):
    """Of each segment of a binade."""
    best = None
    for power in range(5):
        segments = 2**power
        counts = [
            int(np.ceil((1 / segments) / (2 * pointwise * (1 + s / segments))))
            for s in range(segments)
        ]
        if best is None or sum(counts) < sum(best):
            best = counts
    return best


def log_grid(words, pointwise, origin):
    best = codes(pointwise)
    segments, total = len(best), sum(best)
    firsts = np.concatenate([[0], np.cumsum(best)])
    places = np.abs(words) - 1
    within = places % total
    s = np.searchsorted(firsts, within, side="right") - 1
    width = (1 / segments) / np.array(best, np.float64)
    mantissas = (1 + s / segments) + (within - firsts[s] + 0.5) * width[s]
    magnitudes = np.ldexp(mantissas, places // total + origin)
    return np.where(words == 0, 0.0, np.where(words < 0, -magnitudes, magnitudes))


# ---- files

SMALL_FLOATS = {
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2",
}  # fmt: skip
NAMES = {
    "float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "uint8": 5, "int8": 6, "int16": 7,
    "uint16": 8, "int32": 9, "uint32": 10, "int64": 11, "uint64": 12, "bool": 13,
    "complex32": 3, "complex64": 1, "complex128": 2,
}  # fmt: skip


def read_file(data: bytes):
    """The version, and the state: a tensor is (dtype or None, shape, stride or None, its bits)."""
    magic, version, plain, zeros, start, length = struct.unpack_from("<4sBB2sQQ", data)
    assert magic == b"CGXF" and zeros == b"\0\0" and start + length == len(data)
    index = data[start:]
    if plain:
        assert version == 2 and struct.unpack("<I", index[-4:])[0] == zlib.crc32(index[:-4])
        text = index[:-4]
    else:
        fields, values = read(index)
        assert fields["element"] == 5 and len(fields["shape"]) == 1 and fields["kind"] == 0
        text = values.tobytes()
        values = sum(text.count(letter) for letter in (b",", b"[", b"{"))
        room = {1: (2**21, 2**18), 2: (65536, 16384)}[version]
        assert len(text) <= room[0] + 16 * len(data) and values <= room[1] + len(data)
    content = json.loads(text)
    tensors, at = [], 24
    for entry in content["tensors"]:
        payload = data[at : at + entry[0]]
        at += entry[0]
        fields, bits = read(payload)
        if version == 1:
            dtype = entry[1]
        else:
            _, checksum, dtype, shape, name = entry
            assert checksum == struct.unpack_from("<I", payload, 8)[0] and isinstance(name, str)
            assert tuple(shape) == fields["shape"]
            assert fields["element"] == (5 if dtype in SMALL_FLOATS else NAMES[dtype])
        if dtype is not None and dtype.startswith("complex"):
            bits = bits.reshape(-1, 2)
        tensors.append((dtype, fields["shape"], None, bits))
    assert at == start
    return version, state_of(content["state"], tensors)


def state_of(node, tensors):
    if isinstance(node, list):
        return [state_of(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, value),) = ((kind, value) for kind, value in node.items() if kind != "metadata")
    if kind == "tensor":
        return tensors[value]
    if kind == "view":
        number, offset, shape, stride = value
        dtype, (_,), _, bits = tensors[number]
        places = np.full(shape, offset)
        for n, step, dim in zip(shape, stride, range(len(shape)), strict=True):
            places += (np.arange(n) * step).reshape(
                [-1 if i == dim else 1 for i in range(len(shape))]
            )
        return dtype, tuple(shape), tuple(stride), bits[places.reshape(-1)]
    if kind == "float":
        return float(value)
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "tuple":
        return tuple(state_of(item, tensors) for item in value)
    assert kind in ("dict", "ordered", "counter")
    return {state_of(key, tensors): state_of(item, tensors) for key, item in value}
