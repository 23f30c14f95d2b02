"""A second reader of files, from docs/bounded_format.md alone. AssertionError as for payloads."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import numpy as np

from tests.bounded.reader import read

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
