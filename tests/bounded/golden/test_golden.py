"""Payloads that earlier releases wrote give the values that they gave then."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bounded import adversary, forge, reader
from tests.bounded.reader_frames import form_of
from torch_cgx import _C, bounded

# Payloads, and the SHA-256 of the values' bits, little-endian: of version 1, by the release before
# version 2, and of version 3 (make.py). A vector that is there stays: it stands for files that
# people have.
VERSIONS = (1, 3)
GOLDEN: dict[int, dict[str, dict[str, str]]] = {
    version: json.loads(Path(__file__).with_name(f"version_{version}.json").read_text())
    for version in VERSIONS
}
PROMISED = {
    1: (241, "da154f801614917425078256aaeac068588e854ac8ae7354454ca90b4ac1fd14"),
    3: (140, "a2961b1b017d4a487548a923edc820fd8a433c5fa7ab3771d382fc30562d4f30"),
}


def payload_of(version: int, name: str) -> bytes:
    return base64.b85decode(GOLDEN[version][name]["payload"])


@pytest.mark.parametrize("version", VERSIONS)
def test_no_vector_was_changed(version: int) -> None:
    vectors = GOLDEN[version]
    text = json.dumps(sorted(vectors.items()), sort_keys=True)
    assert (len(vectors), hashlib.sha256(text.encode()).hexdigest()) == PROMISED[version]
    assert {payload_of(version, name)[4] for name in vectors} == {version}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", _C.cpu_levels().split(","))
def test_payloads(level: str, version: int) -> None:
    _C.set_cpu_level(level)
    try:
        for name, golden in GOLDEN[version].items():
            y = bounded.decompress(payload_of(version, name))
            bits = adversary.bits_of(y)
            plain = bits.astype(f"<i{y.element_size() // (2 if y.is_complex() else 1)}")
            assert hashlib.sha256(plain.tobytes()).hexdigest() == golden["sha256"], name
    finally:
        _C.set_cpu_level("")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_second_reader(version: int) -> None:
    for name, golden in GOLDEN[version].items():
        _, bits = reader.read(payload_of(version, name))
        little = bits.astype(np.dtype(bits.dtype).newbyteorder("<"))
        assert hashlib.sha256(little.tobytes()).hexdigest() == golden["sha256"], name


def test_all_maps_and_predictors_are_there() -> None:
    blocks = [b for name in GOLDEN[1] for b in bounded.info(payload_of(1, name)).blocks]
    assert {b.map for b in blocks} == {
        "raw", "constant", "order", "grid", "lattice", "log grid",
    }  # fmt: skip
    assert {b.predictor for b in blocks} == {None, "none", "mean", "previous", "line", "curve"}


def test_all_that_version_3_has_is_there() -> None:
    fields, maps, flags, forms, equal = set(), set(), set(), set(), False
    for name in GOLDEN[3]:
        data = torch.frombuffer(bytearray(payload_of(3, name)), dtype=torch.uint8)
        if data[5] >= 128:
            forms.add(form_of(data))
            continue
        blocks = forge.taken_apart(data).blocks
        equal |= any(a is b for a, b in zip(blocks, blocks[1:], strict=False))
        for block in blocks:
            if not block or block[0] < 2:
                continue
            # Of a field, whether it has numbers of a type of its own, and which kind it is.
            if block[0] == 6:
                of_words = data[6] == 3 or data[5] % 64 > 2
                fields.add((block[1], block[2]) if of_words else block[1])
            else:
                maps.add(block[0])
                flags.add(block[2])
    assert equal and maps == {2, 3, 4, 5}
    assert forms == {(0, 0), (1, 1), (1, 2), (1, 4), (2, 0)}
    assert fields >= {0, 1, (2, 4), (4, 4), (5, 4)}
    assert flags >= {16, 16 | 4}
