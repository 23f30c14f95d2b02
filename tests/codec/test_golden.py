"""The bytes on the wire do not change by accident."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from tests import _machinery
from tests.codec.golden import configurations, expected, inputs, load, missing, modelled
from tests.codec.helpers import TORCH, check_guards, encode, guarded, tensor_bytes
from tests.codec.models import MODELS, Key, same_values
from tests.oracle import Spec
from torch_cgx import _C

GOLDEN = load()
FAMILIES = _C.families()
# The vectors of all releases with wire format 1 to 3: their bytes are a promise.
PROMISED, DIGEST = 555, "220ef9a8083f14813aa25785195be8debb9d9c080a81993ee7ee8f3726401e41"


def input_of(row: dict[str, Any]) -> torch.Tensor:
    data = bytes.fromhex(GOLDEN["inputs"][row["input"]][str(row["dtype"])])
    return torch.frombuffer(bytearray(data), dtype=TORCH[row["dtype"]])


def run_engine(row: dict[str, Any], x: torch.Tensor) -> tuple[bytes, bytes]:
    """The engine's payload, and what it decodes the row's payload to."""
    codec, code, key = _C.Codec(row["family"], **row["parameters"]), row["dtype"], Key()
    size = _machinery.codec_encoded_bytes(codec, x.numel(), code)
    memory, payload = guarded(size, 0)
    _machinery.codec_encode(
        codec,
        x.data_ptr(),
        code,
        x.numel(),
        key.sequence,
        key.rank,
        payload.ctypes.data,
        index=key.index,
    )
    check_guards(memory, size, 0)
    given = np.frombuffer(bytes.fromhex(row["payload"]), np.uint8).copy()
    assert len(given) == size, row
    values_memory, values = guarded(4 * x.numel(), 0)
    _machinery.codec_decode(codec, given.ctypes.data, code, x.numel(), values.ctypes.data, False)
    check_guards(values_memory, 4 * x.numel(), 0)
    return payload.tobytes(), values.tobytes()


def test_golden_vectors(level: str) -> None:
    for row in GOLDEN["vectors"]:
        payload, values = run_engine(row, input_of(row))
        assert payload.hex() == row["payload"], row
        assert same_values(values, bytes.fromhex(row["values"])), row


def test_models_give_the_vectors() -> None:
    for row in GOLDEN["vectors"]:
        payload, values = modelled(row)
        assert payload.hex() == row["payload"], row
        assert same_values(values, bytes.fromhex(row["values"])), row
    # And the inputs are those of the models.
    for name, tensors in inputs().items():
        for code, x in tensors.items():
            assert GOLDEN["inputs"][name][str(code)] == tensor_bytes(x).tobytes().hex()


def test_every_family_is_in_the_vectors() -> None:
    """Each family of the engine's list, and each choice and border of its parameters."""
    assert {family["name"] for family in FAMILIES} == set(MODELS), (
        "tests/codec/models.py has one independent model for each family of the engine's list"
    )
    lacking = missing(FAMILIES, GOLDEN["vectors"])
    assert not lacking, (
        f"golden.json lacks {len(lacking)} vectors, the first: {lacking[0]}; "
        "run `python -m tests.codec.golden`, which adds them"
    )


def test_maxmin_has_each_width_and_rounding() -> None:
    """All of them with each other, with and without a raw rest."""
    rows = [row for row in GOLDEN["vectors"] if row["family"] == "maxmin"]
    fields = ("bits", "rounding", "skip_incomplete_buckets")
    found = {(row["dtype"], *(row["parameters"][f] for f in fields)) for row in rows}
    every = itertools.product(TORCH, range(1, 9), ("nearest", "stochastic"), (False, True))
    assert found == set(every)


def test_a_new_family_would_be_missing() -> None:
    fraction = {"name": "level", "kind": "integer", "value": 3, "low": 0, "high": 900}
    fraction["power_of_two"] = False
    shape = {"name": "shape", "kind": "choice", "value": "a", "choices": ["a", "b"]}
    new = {"name": "new", "parameters": [fraction, shape]}
    assert configurations(new) == [
        {"level": 3, "shape": "a"},
        {"level": 0, "shape": "a"},
        {"level": 1, "shape": "a"},
        {"level": 900, "shape": "a"},
        {"level": 3, "shape": "b"},
        {"level": 0, "shape": "b"},
        {"level": 1, "shape": "b"},
        {"level": 900, "shape": "b"},
    ]
    lacking = missing([*FAMILIES, new], GOLDEN["vectors"])
    assert lacking and {row["family"] for row in lacking} == {"new"}
    with pytest.raises(
        SystemExit, match=r"'new' has no model: .* `python -m tests\.codec\.golden`"
    ):
        modelled(lacking[0])
    # And so would a new choice of a family that is there.
    (half,) = (family for family in FAMILIES if family["name"] == "half")
    bits, form = half["parameters"]
    wider = {**half, "parameters": [bits, {**form, "choices": [*form["choices"], "e5m10"]}]}
    lacking = missing([wider], GOLDEN["vectors"])
    assert {row["parameters"]["format"] for row in lacking} == {"e5m10"}
    assert {row["dtype"] for row in lacking} == set(TORCH)
    assert len(expected(FAMILIES)) > len(FAMILIES)


def test_vectors_of_earlier_releases_are_unchanged() -> None:
    digest = hashlib.sha256()
    for row in GOLDEN["vectors"][:PROMISED]:
        digest.update(json.dumps(row, sort_keys=True).encode())
    assert digest.hexdigest() == DIGEST


def test_by_hand() -> None:
    """One bucket, worked out with a pencil: 2 bits, unit 1, min -1; codes 0 1 2 3 0 -> 11100100,
    00."""
    x = np.array([-1, 0, 1, 2, -1], np.float32)
    assert encode(x, Spec(2, 8)).hex() == "0000803f" + "000080bf" + "e400"
