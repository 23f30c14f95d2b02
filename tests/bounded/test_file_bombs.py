"""Time and memory of `load` and `info` follow from the file's length, whatever the file says."""

from __future__ import annotations

import collections
import json
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bounded import forge
from tests.bounded.test_malformed_files import HEADER
from tests.bounded.test_malformed_files import forge as write
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError

# Of one file: bytes of Python objects for each byte of the file, and beside it.
MOST, BESIDE = 150, 60 << 20


def plain(path: Path, text: bytes) -> None:
    """A file whose index is not compressed."""
    index = text + struct.pack("<I", zlib.crc32(text))
    path.write_bytes(HEADER.pack(b"CGXF", 2, 1, bytes(2), 24, len(index)) + index)


def measured(path: Path, **options: Any) -> tuple[float, int, Any]:
    """Seconds of CPU, the greatest sum of Python's objects, and the state or the error's text."""
    tracemalloc.start()
    before = time.process_time()
    try:
        found = bounded.load(path, **options)
    except ValueError as error:
        found = str(error)
    seconds = time.process_time() - before
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak, found


def check(path: Path, **options: Any) -> Any:
    seconds, peak, found = measured(path, **options)
    size = path.stat().st_size
    assert peak <= BESIDE + MOST * size, (peak, size)
    assert seconds <= 3 + size / 100e3, (seconds, size)  # tracemalloc makes it ten times as long
    return found


LISTS = b'{"tensors":[],"state":[' + b"[]," * 1_000_000 + b"0]}"
BOMBS = {
    "lists": LISTS,
    "numbers": b'{"tensors":[],"state":[' + b"7," * 2_000_000 + b"0]}",
    "entries": b'{"tensors":[' + b"[0,null]," * 500_000 + b'[0,null]],"state":0}',
    "objects": b'{"tensors":[],"state":[' + b'{"a":0},' * 500_000 + b"0]}",
    "letters": b'{"tensors":[],"state":"' + b"a" * 20_000_000 + b'"}',
    "blanks": b'{"tensors":[],"state":' + b" " * 20_000_000 + b"0}",
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_short_index_that_stands_for_much_is_refused(tmp_path, bomb, version):
    text = torch.frombuffer(bytearray(BOMBS[bomb]), dtype=torch.uint8)
    packed = bounded.compress(text).numpy().tobytes()
    header = HEADER.pack(b"CGXF", version, 0, bytes(2), 24, len(packed))
    (tmp_path / "a").write_bytes(header + packed)
    assert (tmp_path / "a").stat().st_size < 30_000
    found = check(tmp_path / "a")
    assert "the index: it expands to" in found and "allowed for a file of" in found
    assert found == check(tmp_path / "a", keys=["x"])


@pytest.mark.parametrize("bomb", ["lists", "numbers", "objects"])
def test_a_long_index_takes_what_its_length_allows(tmp_path, bomb):
    plain(tmp_path / "a", BOMBS[bomb][: len(BOMBS[bomb]) // 12].rpartition(b",")[0] + b",0]}")
    found = check(tmp_path / "a")
    if bomb == "objects":
        assert "the index holds" in found
    else:
        assert len(found) > 50_000


def test_names_are_not_put_together_for_all_that_nobody_asked_for(tmp_path):
    """The names of 180 levels with long keys are 90 times as long as the index."""
    node: Any = 1
    for level in range(180):
        node = {"dict": [[f"{level:1000}", node]]}
    plain(tmp_path / "a", json.dumps({"tensors": [], "state": node}).encode())
    size = (tmp_path / "a").stat().st_size
    _, peak, found = measured(tmp_path / "a", keys=["x"])
    assert "has no key 'x'; it has 180: " in found and len(found) < 5000
    assert peak < 25 * size
    key = ".".join(f"{level:1000}" for level in range(179, -1, -1))
    assert measured(tmp_path / "a", keys=[key])[2] == {key: 1}


def test_keys_with_equal_hashes_are_refused(tmp_path):
    """Python's dicts take n^2 steps for them."""
    prime = 2**61 - 1
    pairs = [[i * prime, 0] for i in range(1, 20_001)]
    plain(tmp_path / "a", json.dumps({"tensors": [], "state": {"dict": pairs}}).encode())
    assert "a dict of 20000 keys with equal hashes, allowed: 16" in check(tmp_path / "a")
    with pytest.raises(ValueError, match="^a has 17 keys with equal hashes, allowed: 16"):
        bounded.save({"a": {i * prime: 0 for i in range(1, 18)}}, tmp_path / "b", max_error=0)
    some = {i * prime: i for i in range(1, 17)} | {i: -i for i in range(1, 1000)}
    bounded.save(some, tmp_path / "b", max_error=0)
    assert bounded.load(tmp_path / "b") == some


def test_what_save_writes_is_read_however_well_it_packs(tmp_path):
    """Where the packed index would be refused, it is written as it is."""
    for state in (
        {"losses": [0.0] * 100_000},
        {"text": "a" * 3_000_000},
        [[] for _ in range(30_000)],
        {"counts": collections.Counter(dict.fromkeys(range(10000), 1))},
    ):
        bounded.save(state, tmp_path / "a", max_error=0)
        assert bounded.load(tmp_path / "a") == state
    few = {"w": torch.zeros(3), "losses": [0.5] * 1000}
    bounded.save(few, tmp_path / "a", max_error=0)
    assert (tmp_path / "a").read_bytes()[5] == 0 and (tmp_path / "a").stat().st_size < 400


def test_a_plain_index_is_guarded_by_its_checksum(tmp_path):
    bounded.save({"losses": [0.5] * 50_000}, tmp_path / "a", max_error=0)
    data = bytearray((tmp_path / "a").read_bytes())
    assert data[5] == 1
    data[100_000] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(PayloadError, match="the index: its checksum is wrong"):
        bounded.load(tmp_path / "a")


def test_deep_states_are_read_or_not_written(tmp_path):
    for wrap in (lambda x: [x], lambda x: (x,), lambda x: collections.OrderedDict(a=x)):
        state: Any = 1
        for _ in range(200):
            state = wrap(state)
        bounded.save(state, tmp_path / "a", max_error=0)
        assert bounded.load(tmp_path / "a") == state
        with pytest.raises(ValueError, match="nested too deeply .allowed: 200 levels."):
            bounded.save(wrap(state), tmp_path / "b", max_error=0)
    write(tmp_path / "a", b'{"tensors":[],"state":%b1%b}' % (b"[" * 5000, b"]" * 5000))
    with pytest.raises(PayloadError, match="not JSON|too deeply"):
        bounded.load(tmp_path / "a")


def test_info_of_many_empty_blocks(tmp_path):
    """4 bytes of a payload are a block of zeros."""
    parts = forge.taken_apart(bounded.compress(torch.zeros(1), max_error=0))
    parts.shape, parts.blocks = [50_000 << 16], [b""] * 50_000
    payload = parts.payload()
    tracemalloc.start()
    found = bounded.info(payload)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.blocks) == 50_000 and found.predictors == {"constant": 50_000}
    assert peak < 40 * len(payload), peak / len(payload)
    assert found.checksum_ok
