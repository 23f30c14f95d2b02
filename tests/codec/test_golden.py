"""The bytes on the wire do not change by accident."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import torch

from tests.codec.golden import FILE, inputs, spec_of
from tests.codec.helpers import TORCH, decode, encode, tensor_bytes
from tests.oracle import Spec
from torch_cgx import _C, codecs

GOLDEN = json.loads(FILE.read_text())
NAMES = codecs.names()  # before tests that register others
SPECS = {
    "raw": _C.Codec("raw"),
    "bf16": _C.Codec("bf16"),
    "fp16": _C.Codec("fp16"),
}


def input_of(row: dict[str, Any]) -> torch.Tensor:
    data = bytes.fromhex(GOLDEN["inputs"][row["input"]][str(row["dtype"])])
    return torch.frombuffer(bytearray(data), dtype=TORCH[row["dtype"]])


def run_plain(codec: str, x: torch.Tensor, code: int) -> tuple[bytes, np.ndarray]:
    spec = SPECS[codec]
    payload = np.zeros(_C.codec_encoded_bytes(spec, x.numel(), code), np.uint8)
    _C.codec_encode(spec, x.data_ptr(), code, x.numel(), 0, 0, payload.ctypes.data)
    values = np.zeros(x.numel(), np.float32)
    _C.codec_decode(spec, payload.ctypes.data, code, x.numel(), values.ctypes.data, False)
    return payload.tobytes(), values


def test_golden_vectors(level: str) -> None:
    for row in GOLDEN["vectors"]:
        x = input_of(row)
        if row["codec"] in SPECS:
            payload, values = run_plain(row["codec"], x, row["dtype"])
            assert payload.hex() == row["payload"], row
        else:
            spec = spec_of(row["bits"], row["bucket_size"], row["stochastic"])
            assert encode(x, spec, row["skip"]).hex() == row["payload"], row
            given = bytes.fromhex(row["payload"])
            values = decode(given, x.numel(), spec, row["skip"], row["dtype"])
        expected = np.frombuffer(bytes.fromhex(row["values"]), np.float32)
        # A NaN is a NaN: its payload bits are not part of the format.
        assert np.array_equal(values, expected, equal_nan=True), row


def test_everything_is_in_the_vectors() -> None:
    """Each codec and dtype; for maxmin each width and rounding, with and without a raw rest."""
    rows = GOLDEN["vectors"]
    assert {row["codec"] for row in rows} == {"raw", *NAMES}
    for codec in SPECS:
        assert {row["dtype"] for row in rows if row["codec"] == codec} == set(TORCH)
    fields = ("bits", "dtype", "stochastic", "skip")
    found = {tuple(row[f] for f in fields) for row in rows if row["codec"] == "maxmin"}
    assert found == set(itertools.product(range(1, 9), TORCH, (False, True), (False, True)))
    # And the inputs are those of the model.
    for name, tensors in inputs().items():
        for code, x in tensors.items():
            assert GOLDEN["inputs"][name][str(code)] == tensor_bytes(x).tobytes().hex()


def test_by_hand() -> None:
    """One bucket, worked out with a pencil: 2 bits, unit 1, min -1; codes 0 1 2 3 0 -> 11100100,
    00."""
    x = np.array([-1, 0, 1, 2, -1], np.float32)
    assert encode(x, Spec(2, 8)).hex() == "0000803f" + "000080bf" + "e400"
