"""The bytes on the wire do not change by accident."""

from __future__ import annotations

import json

import numpy as np

from tests.codec.golden import FILE, spec_of
from tests.codec.helpers import decode, encode
from tests.oracle import Spec


def test_golden_vectors(level: str) -> None:
    golden = json.loads(FILE.read_text())
    assert len(golden["vectors"]) == 96
    for row in golden["vectors"]:
        x = np.frombuffer(bytes.fromhex(golden["inputs"][row["input"]]), np.float32).copy()
        spec = spec_of(row["bits"], row["bucket_size"], row["stochastic"])
        assert encode(x, spec).hex() == row["payload"], row
        values = decode(bytes.fromhex(row["payload"]), len(x), spec)
        expected = np.frombuffer(bytes.fromhex(row["values"]), np.float32)
        # A NaN is a NaN: its payload bits are not part of the format.
        assert np.array_equal(values, expected, equal_nan=True), row


def test_by_hand() -> None:
    """One bucket, worked out with a pencil: 2 bits, unit 1, min -1; codes 0 1 2 3 0 -> 11100100,
    00."""
    x = np.array([-1, 0, 1, 2, -1], np.float32)
    assert encode(x, Spec(2, 8)).hex() == "0000803f" + "000080bf" + "e400"
