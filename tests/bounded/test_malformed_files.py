"""Files that are cut, altered or forged are refused."""

from __future__ import annotations

import collections
import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded.helpers import gaussian, same
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError, _index

HEADER = struct.Struct("<4sBB2sQQ")


def small(path: Path) -> bytes:
    bounded.save({"w": gaussian(100), "n": torch.arange(5)}, path, max_error=1e-3)
    return path.read_bytes()


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    whole = small(tmp_path / "a")
    for length in range(len(whole)):
        os.truncate(tmp_path / "a", len(whole) - length - 1)
        with pytest.raises(PayloadError, match=r"/a: "):
            bounded.load(tmp_path / "a")
    (tmp_path / "a").write_bytes(whole + b"\0")
    with pytest.raises(PayloadError, match="the header says"):
        bounded.load(tmp_path / "a")


def test_a_flipped_bit_in_any_byte_is_refused(tmp_path):
    whole = small(tmp_path / "a")
    bits = np.random.default_rng(1).integers(0, 8, len(whole))
    with open(tmp_path / "a", "r+b", buffering=0) as file:
        for place, bit in enumerate(bits):
            os.pwrite(file.fileno(), bytes([whole[place] ^ (1 << bit)]), place)
            with pytest.raises(PayloadError):
                bounded.load(tmp_path / "a")
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert torch.equal(bounded.load(tmp_path / "a", keys=["n"])["n"], torch.arange(5))


def forge(path: Path, index: Any, payloads: bytes = b"", version: int = 2) -> None:
    """A file by the format's description, around any index."""
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    packed = bounded.compress(torch.tensor(list(text), dtype=torch.uint8)).numpy().tobytes()
    header = HEADER.pack(b"CGXF", version, 0, b"\0\0", 24 + len(payloads), len(packed))
    path.write_bytes(header + payloads + packed)


def entry(payload: bytes, dtype: str, shape: list[int], name: str = "") -> list[Any]:
    return [len(payload), int.from_bytes(payload[8:12], "little"), dtype, shape, name]


def test_the_format_is_what_its_description_says(tmp_path):
    x = gaussian(10)
    payload = bounded.compress(x, max_error=0).numpy().tobytes()
    view = {"view": [0, 1, [2, 3], [1, 2]]}
    state = {"ordered": [["w", {"tensor": 0}], [3, {"tuple": [{"float": "inf"}]}], ["v", view]]}
    forge(tmp_path / "a", {"tensors": [entry(payload, "float32", [10])], "state": state}, payload)
    expected = collections.OrderedDict(
        {"w": x, 3: (math.inf,), "v": x.as_strided((2, 3), (1, 2), 1)}
    )
    assert same(bounded.load(tmp_path / "a"), expected)
    forge(tmp_path / "a", {"tensors": [[len(payload), None]], "state": state}, payload, version=1)
    assert same(bounded.load(tmp_path / "a"), expected)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"tensors":[],"state":NaN}', "NaN stands alone"),
        (b"[" * 10_000, "not JSON"),
        (b'{"tensors":[],"state":%b1%b}' % (b"[" * 900, b"]" * 900), "nested too deeply"),
        ([], 'has not the keys "tensors" and "state"'),
        ({"tensors": {}, "state": 1}, "None where an entry is expected"),
        ({"tensors": [[-1, 0, "bool", [], ""]], "state": 1}, r"\[-1, 0, .* where an entry"),
        ({"tensors": [[True, 0, "bool", [], ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, None]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, "object", [], ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, [], [], ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, -1, "bool", [], ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, "bool", 3, ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, "bool", [-3], ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, "bool", [1] * 65, ""]], "state": 1}, "where an entry"),
        ({"tensors": [[24, 0, "bool", [], 3]], "state": 1}, "where an entry"),
        (b'{"tensors":[[0,%b1%b]],"state":1}' % (b"[" * 900, b"]" * 900), "where an|not JSON"),
        ({"tensors": [[2**70, 0, "bool", [], ""]], "state": 1}, "end at .* begins at 24"),
        ({"tensors": [[0, 0, "bool", [], ""]], "state": {"tensor": 0}}, "tensor 0, at 24"),
        ({"tensors": [[0, 0, "bool", [], "w"]], "state": {"tensor": 0}}, "w, at 24"),
        ({"tensors": [], "state": {"view": [0, 0, [1], [1]]}}, "'tensor': 0"),
        ({"tensors": [], "state": {"view": [0, 0, [1], [1, 1]]}}, "'view'"),
        ({"tensors": [], "state": {"view": [0, -1, [1], [1]]}}, "'view'"),
        ({"tensors": [], "state": {"view": [0, 0, [True], [1]]}}, "'view'"),
        ({"tensors": [], "state": {"view": [0, 0, [1] * 65, [1] * 65]}}, "'view'"),
        ({"tensors": [], "state": {"view": {"tensor": 0}}}, "'view'"),
        ({"tensors": [], "state": {"counter": 3}}, "not a list of pairs"),
        ({"tensors": [], "state": {"tensor": 0}}, "'tensor'"),
        ({"tensors": [], "state": {"tensor": -1}}, "'tensor'"),
        ({"tensors": [], "state": {"tensor": True}}, "'tensor'"),
        ({"tensors": [], "state": {"object": 1}}, "'object'"),
        ({"tensors": [], "state": {}}, r"an object of \[\]"),
        ({"tensors": [], "state": {"tuple": [], "list": []}}, "an object of"),
        ({"tensors": [], "state": {"dict": [], "metadata": 1}}, "an object of"),
        ({"tensors": [], "state": {"tuple": 3}}, "'tuple'"),
        ({"tensors": [], "state": {"float": "1"}}, "'float'"),
        ({"tensors": [], "state": {"float": ["nan"]}}, "'float'"),
        ({"tensors": [], "state": {"bytes": "="}}, "'bytes'"),
        ({"tensors": [], "state": {"bytes": "é"}}, "/a: .*'bytes'"),
        ({"tensors": [], "state": {"dict": [[1]]}}, "not a list of pairs"),
        ({"tensors": [], "state": {"dict": {"a": 1}}}, "not a list of pairs"),
        ({"tensors": [], "state": {"dict": [["a", 1], ["a", 2]]}}, "a key twice"),
        ({"tensors": [], "state": {"dict": [[[1], 1]]}}, "a key that is not"),
        ({"tensors": [], "state": {"dict": [[{"tuple": [[1]]}, 1]]}}, "a tuple of lists"),
        ({"tensors": [], "state": {"dict": [[{"tensor": 0}, 1]]}}, "a tensor as a key"),
    ],
)
@pytest.mark.parametrize("keys", [None, ["x"]], ids=["all", "keys"])
def test_a_forged_index_is_refused(tmp_path, index, words, keys):
    forge(tmp_path / "a", index)
    # With keys, parts of the state that nobody asks for are not looked at.
    with pytest.raises(ValueError, match=words if keys is None else f"{words}|has no key 'x'"):
        bounded.load(tmp_path / "a", keys=keys)


def mutants(node: Any, others: list[Any]) -> Iterator[Any]:
    """The node with one of its parts replaced, wrapped, taken out, or put in twice."""
    yield from others
    yield [node]
    if isinstance(node, list):
        for i, item in enumerate(node):
            yield node[:i] + node[i + 1 :]
            yield node[:i] + [item] + node[i:]
            for mutant in mutants(item, others):
                yield node[:i] + [mutant] + node[i + 1 :]
    elif isinstance(node, dict):
        for key, item in node.items():
            rest = {name: value for name, value in node.items() if name != key}
            yield rest
            yield {**rest, "other": item}
            for mutant in mutants(item, others):
                yield {name: mutant if name == key else value for name, value in node.items()}


def test_every_mutant_of_an_index_is_read_or_refused(tmp_path, monkeypatch):
    payload = bounded.compress(torch.arange(3, dtype=torch.uint8)).numpy().tobytes()
    pairs = [
        ["w", {"tensor": 0}],
        [{"tuple": [1, {"bytes": "AA=="}]}, {"float": "nan"}],
        [None, {"dict": [["x", [{"tensor": 1}]]]}],
        ["c", {"counter": [[7, 1]]}],
        ["v", {"view": [0, 1, [2], [1]]}],
    ]
    whole = {
        "tensors": [
            entry(payload, "uint8", [3], "w"),
            entry(payload, "float8_e5m2", [3], "None.x.0"),
        ],
        "state": {"ordered": pairs, "metadata": {"dict": []}},
    }
    others = [
        None, True, -1, 2**70, 0.5, "é", [], {}, [[]], {"tensor": 2}, {"bytes": "é"}, {"tuple": []}
    ]  # fmt: skip
    forge(tmp_path / "a", whole, 2 * payload)
    assert list(bounded.load(tmp_path / "a")) == ["w", (1, b"\0"), None, "c", "v"]
    # The payload of the index takes most of the time, and has its own tests.
    indices = list(mutants(whole, others))
    texts = (json.dumps(index).encode() for index in indices for _ in range(2))
    monkeypatch.setattr(_index, "_unpacked", lambda *data: next(texts))
    refused = 0
    for index in indices:
        for keys in (None, ["w", "None.x.0"]):
            try:
                bounded.load(tmp_path / "a", keys=keys)
            except ValueError as error:
                absent = "has no key" in str(error) or "values named" in str(error)
                assert isinstance(error, PayloadError) or (keys and absent), (index, error)
                refused += 1
            except Exception as error:
                pytest.fail(f"{type(error).__name__} of {index}: {error}")
    assert refused > len(indices) > 400


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"", "not a file of bounded.save: it begins with b''"),
        (b"PK\x03\x04" + bytes(40), "not a file of bounded.save"),
        (b"CGX", "the file has 3 bytes"),
        (HEADER.pack(b"CGXF", 3, 0, bytes(2), 24, 0), "version is 3, this reader knows 1 and 2"),
        (HEADER.pack(b"CGXF", 1, 1, bytes(2), 24, 0), "altered"),
        (HEADER.pack(b"CGXF", 2, 2, bytes(2), 24, 0), "altered"),
        (HEADER.pack(b"CGXF", 2, 0, b"\0\1", 24, 0), "altered"),
        (HEADER.pack(b"CGXF", 2, 1, bytes(2), 24, 0), "the index: its checksum is wrong"),
        (HEADER.pack(b"CGXF", 1, 0, bytes(2), 24, 2**63), "an index of 9223372036854775808 bytes"),
        (HEADER.pack(b"CGXF", 1, 0, bytes(2), 2**64 - 8, 32), "the header says"),
        (HEADER.pack(b"CGXF", 1, 0, bytes(2), 0, 24), "the header says"),
        (HEADER.pack(b"CGXF", 1, 0, bytes(2), 24, 0), "the index: "),
    ],
)
def test_a_forged_header_is_refused(tmp_path, start, words):
    (tmp_path / "a").write_bytes(start)
    with pytest.raises(PayloadError, match=words):
        bounded.load(tmp_path / "a")
