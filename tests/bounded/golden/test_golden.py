"""Payloads that earlier releases wrote give the values that they gave then."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.bounded import adversary, reader
from torch_cgx import _C, bounded

# Version 1 of the format, by the release before version 2: payloads, and the SHA-256 of the values'
# bits, little-endian. A vector that is there stays: it stands for files that people have.
GOLDEN: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("version_1.json").read_text()
)
PROMISED = 241, "da154f801614917425078256aaeac068588e854ac8ae7354454ca90b4ac1fd14"


def payload_of(name: str) -> bytes:
    return base64.b85decode(GOLDEN[name]["payload"])


def test_no_vector_was_changed() -> None:
    text = json.dumps(sorted(GOLDEN.items()), sort_keys=True)
    assert (len(GOLDEN), hashlib.sha256(text.encode()).hexdigest()) == PROMISED
    assert {payload_of(name)[4] for name in GOLDEN} == {1}


@pytest.mark.parametrize("level", _C.cpu_levels().split(","))
def test_payloads_of_version_1(level: str) -> None:
    _C.set_cpu_level(level)
    try:
        for name, golden in GOLDEN.items():
            y = bounded.decompress(payload_of(name))
            bits = adversary.bits_of(y)
            plain = bits.astype(f"<i{y.element_size() // (2 if y.is_complex() else 1)}")
            assert hashlib.sha256(plain.tobytes()).hexdigest() == golden["sha256"], name
    finally:
        _C.set_cpu_level("")


def test_the_second_reader_of_version_1() -> None:
    for name, golden in GOLDEN.items():
        _, bits = reader.read(payload_of(name))
        little = bits.astype(np.dtype(bits.dtype).newbyteorder("<"))
        assert hashlib.sha256(little.tobytes()).hexdigest() == golden["sha256"], name


def test_all_maps_and_predictors_are_there() -> None:
    blocks = [b for name in GOLDEN for b in bounded.info(payload_of(name)).blocks]
    assert {b.map for b in blocks} == {
        "raw", "constant", "order", "grid", "lattice", "log grid",
    }  # fmt: skip
    assert {b.predictor for b in blocks} == {None, "none", "mean", "previous", "line", "curve"}
