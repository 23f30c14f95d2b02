"""Payloads that are cut, altered or forged are refused, and take no memory."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

from tests.bounded import forge
from tests.bounded.helpers import same_bits, some
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError


def test_truncation_at_every_byte(payload: torch.Tensor) -> None:
    data = payload.numpy().tobytes()
    for size in range(len(data)):
        for read in (bounded.decompress, bounded.info):
            with pytest.raises(PayloadError, match="cut"):
                read(data[:size])
    with pytest.raises(PayloadError, match="goes on after its end"):
        bounded.decompress(data + b"\0")


def test_a_flip_of_any_byte(payload: torch.Tensor) -> None:
    data = payload.numpy().tobytes()
    assert len(data) < 2000
    for at in range(len(data)):
        for flip in (1 << at % 8, 255):
            other = bytearray(data)
            other[at] ^= flip
            with pytest.raises(PayloadError):
                bounded.decompress(other)
    blocks = forge.taken_apart(payload).blocks
    at = len(data) - sum(len(block) for block in blocks)
    for block in blocks:
        # The payload's own checksum covers the last four bytes.
        for place in range(at, at + len(block) - 4, 7):
            other = bytearray(data)
            other[place] ^= 16
            info = bounded.info(other)
            assert not info.checksum_ok
            assert [one.checksum_ok for one in info.blocks].count(False) == 1
        at += len(block)


def test_random_bytes_and_other_formats(payload: torch.Tensor) -> None:
    rng = np.random.default_rng(4)
    data = payload.numpy().tobytes()
    for n in (*range(40), 1000):
        with pytest.raises(PayloadError):
            bounded.decompress(rng.bytes(n))
        with pytest.raises(PayloadError):
            bounded.decompress(data[:4] + rng.bytes(n))
    for other in (zstandard.compress(bytes(100)), b"PK\3\4" + bytes(60), b"\x93NUMPY" + bytes(60)):
        with pytest.raises(PayloadError, match="does not begin with CGXB"):
            bounded.decompress(other)


HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"version": 4}, "version 4 .* knows 1 to 3"),
    ({"version": 0}, "version 0"),
    ({"version": 255}, "version 255"),
    ({"type": 0}, "type is 0"),
    ({"type": 14}, "type is 14"),
    ({"type": 64 + 4}, "type is 68"),
    ({"type": 255}, "type is 255"),
    ({"kind": 4}, "kind of bound is 4"),
    ({"dims": 65}, "65 dimensions"),
    ({"asked": math.nan, "bound": math.nan}, "requested bound is nan, allowed: finite .* >= 0"),
    ({"asked": -0.0, "bound": -0.0}, "requested bound is -0"),
    ({"asked": math.inf, "bound": math.inf}, "bound is inf"),
    ({"kind": 2, "bound": -1.0}, "bound is -1"),
    ({"kind": 2, "bound": math.nan}, "bound is nan"),
    ({"kind": 2, "bound": math.inf}, "bound is inf"),
    ({"type": 9}, "whole numbers have no bound"),
    ({"type": 3}, "block 0: the map of a block is 3"),
]
FIXED_HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"kind": 0}, "bound is 0.001"),
    ({"block_bits": 17}, r"2\^17 values"),
    ({"asked": 1e-4}, "bound is 0.001, but 0.0001 was requested"),
    ({"bound": 1e-4}, "bound is 0.0001, but 0.001 was requested"),
    ({"bound": -1.0}, "bound is -1"),
    ({"bound": math.nan}, "bound is nan"),
    ({"bound": math.inf}, "bound is inf"),
]


@pytest.mark.parametrize(("fields", "text"), HEADERS, ids=str)
def test_forged_headers(payload: torch.Tensor, fields: dict[str, Any], text: str) -> None:
    for version in (1, 2, 3):
        parts = forge.taken_apart(payload, version)
        with pytest.raises(PayloadError, match=text):
            bounded.decompress(parts.set(**fields).payload())


@pytest.mark.parametrize(("fields", "text"), FIXED_HEADERS, ids=str)
def test_forged_headers_of_versions_1_and_2(
    payload: torch.Tensor, fields: dict[str, Any], text: str
) -> None:
    for version in (1, 2):
        parts = forge.taken_apart(payload, version).set(**fields)
        with pytest.raises(PayloadError, match=text):
            bounded.decompress(parts.payload())


def test_a_bound_that_is_finer_than_the_blocks(payload: torch.Tensor) -> None:
    parts = forge.taken_apart(payload).set(asked=1e-4, bound=1e-4)
    with pytest.raises(PayloadError, match="block 0: the step of a block"):
        bounded.decompress(parts.payload())


def test_a_bad_bound_of_an_empty_tensor() -> None:
    parts = forge.taken_apart(bounded.compress(torch.empty(0, 3), max_error=0.5))
    assert bounded.decompress(parts.payload()).shape == (0, 3)
    with pytest.raises(PayloadError, match="bound is nan"):
        bounded.decompress(parts.set(kind=2, bound=math.nan).payload())


@pytest.mark.parametrize(
    "shape",
    [[1 << 40], [1 << 63], [2**64 - 1], [1 << 20, 1 << 20], [1 << 32, 1 << 32], [3, 1 << 61]],
)
def test_forged_shapes_take_no_memory(payload: torch.Tensor, shape: list[int]) -> None:
    for version in (2, 3):
        parts = forge.taken_apart(payload, version)
        parts.shape = shape
        peak = memory()
        with pytest.raises(PayloadError, match="a table of|more values|its shape needs"):
            bounded.decompress(parts.payload())
        assert memory() - peak < 1 << 20


@pytest.mark.parametrize("shape", [[0, 1 << 40, 1 << 40], [1 << 62, 0, 4], [2**64 - 1, 0]])
def test_forged_shapes_of_no_tensor(shape: list[int]) -> None:
    parts = forge.taken_apart(bounded.compress(torch.empty(0), max_error=0.5))
    parts.shape = shape
    with pytest.raises(PayloadError, match="more values than a tensor can have"):
        bounded.decompress(parts.payload())


def test_forged_tables(payload: torch.Tensor) -> None:
    parts = forge.taken_apart(payload, 2)
    lengths = [len(block) for block in parts.blocks]
    for table, text in (
        ([2**32 - 1] * 3, "is cut"),
        ([lengths[0] + 1, *lengths[1:]], "is cut"),
        ([lengths[0] - 1, *lengths[1:]], "goes on after its end"),
        ([lengths[0] - 1, lengths[1] + 1, lengths[2]], "block 0: the checksum differs"),
        ([0, lengths[0] + lengths[1], lengths[2]], "block 1: the checksum differs"),
        ([1, sum(lengths) - 1, 0], "block 0: the block is cut"),
    ):
        parts.table = table
        with pytest.raises(PayloadError, match=text):
            bounded.decompress(parts.payload())
    for version in (2, 3):
        parts = forge.taken_apart(payload, version)
        parts.shape = [140_000 + 65536]
        with pytest.raises(PayloadError):
            bounded.decompress(parts.payload())
        parts.shape = [14, 100, 99]
        with pytest.raises(PayloadError, match="block 2: "):  # its values are not as many
            bounded.decompress(parts.payload())


def test_forged_tables_of_numbers(payload: torch.Tensor) -> None:
    parts = forge.taken_apart(payload)
    a, b, c = (len(block) + 1 for block in parts.blocks)
    for table, text in (
        ([2**32 + 1, b, c], r"a block of 4294967296 bytes"),
        ([2**32 - 1, b, c], "is cut"),
        ([a + 1, b, c], "is cut"),
        ([a - 1, b, c], "goes on after its end"),
        ([a - 1, b + 1, c], "block 0: the checksum differs"),
        ([1, a + b - 1, c], "block 1: the checksum differs"),
        ([2, a + b + c - 3, 1], "block 0: the block is cut"),
        ([a, b, c, 1], "goes on after its end"),  # a byte more before the blocks
        ([a, b], "is cut|goes on after its end|block of"),
        ([a, 0, 0], "0 blocks are as the one before, allowed: 1 to 2"),
        ([a, 0, 3], "3 blocks are as the one before, allowed: 1 to 2"),
        ([0, 4], "4 blocks are as the one before, allowed: 1 to 3"),
        ([0, 2**63], "blocks are as the one before"),
        ([a, b, 0, 1], "goes on after its end"),
        ([0, 3], "goes on after its end"),
    ):
        with pytest.raises(PayloadError, match=text):
            bounded.decompress(parts.set(table=table).payload())


def test_blocks_that_are_as_the_one_before(payload: torch.Tensor) -> None:
    one, two, _ = forge.taken_apart(payload).blocks
    first, second = bounded.decompress(payload).view(-1)[: 2 * 65536].split(65536)
    zeros = torch.zeros(65536)
    for blocks, values in (
        ([b"", one, one, two], [zeros, first, first, second]),
        ([one, b"", b"", two], [first, zeros, zeros, second]),
        ([two, two, two, two], [second] * 4),
        ([b"", b""], [zeros, zeros]),
    ):
        parts = forge.taken_apart(payload).set(blocks=blocks, shape=[65536 * len(blocks)])
        data = parts.payload()
        assert torch.equal(bounded.decompress(data), torch.cat(values))
        assert bounded.info(data).checksum_ok
    # A block's checksum is said of all that are as it is.
    bad = one[:-1] + bytes([one[-1] ^ 1])
    data = parts.set(blocks=[two, bad, bad], shape=[3 * 65536]).payload()
    with pytest.raises(PayloadError, match="^block 1: the checksum"):
        bounded.decompress(data)
    assert [block.checksum_ok for block in bounded.info(data).blocks] == [True, False, False]


def test_forged_paddings() -> None:
    x = torch.zeros(70 * 65536)
    made = bounded.compress(x, max_error=0)
    assert made.numel() == x.nbytes // 2**17
    parts = forge.taken_apart(made)
    assert parts.payload() == made.numpy().tobytes()
    bare = len(parts.set(padding=0).payload())
    assert 0 < bare < made.numel()
    for length in (0, made.numel() - bare - 1):
        with pytest.raises(PayloadError, match="is cut"):
            bounded.decompress(parts.set(padding=length).payload())
    for end in (bytes(1), b"\1"):
        with pytest.raises(PayloadError, match="goes on after its end"):
            bounded.decompress(made.numpy().tobytes() + end)
    with pytest.raises(PayloadError, match="goes on after its end"):
        bounded.decompress(made.numpy().tobytes()[:-1] + b"\1")


def test_numbers_of_more_than_64_bits() -> None:
    made = bounded.compress(torch.zeros(5), max_error=0).numpy().tobytes()
    assert made[12] == 5  # the shape
    for number in (b"\xff" * 9 + b"\2", b"\x80" * 10 + b"\0"):
        with pytest.raises(PayloadError, match="more than 64 bits"):
            bounded.decompress(made[:12] + number + made[13:])


def memory() -> int:
    """Greatest size of this process's address space so far, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmPeak")) * 1024


def frames_of(payload: torch.Tensor) -> tuple[forge.Parts, bytes, bytes, bytes]:
    """A payload's parts; its first block's header, its content, its low bits."""
    parts = forge.taken_apart(payload)
    block = parts.blocks[0]
    head, coded = block[:36], struct.unpack_from("<I", block, 32)[0]
    assert head[2] & 2  # a frame
    content = zstandard.ZstdDecompressor().decompress(block[36 : 36 + coded], 1 << 21)
    return parts, head, content, block[36 + coded : -4]


def test_forged_frames(payload: torch.Tensor) -> None:
    parts, head, content, low = frames_of(payload)

    def error(frame: bytes) -> str:
        parts.blocks[0] = forge.sealed(head[:32] + struct.pack("<I", len(frame)) + frame + low)
        with pytest.raises(PayloadError, match="^block 0: ") as caught:
            bounded.decompress(parts.payload())
        return str(caught.value)

    def frame_of(data: bytes, **options: int) -> bytes:
        settings = {"compression_level": 1, **options}
        chosen = zstandard.ZstdCompressionParameters(**settings)
        stream = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
        return stream.compress(data) + stream.flush()

    good = frame_of(content)
    wrong = [
        b"",
        b"\0",
        good[:-1],
        good[:5],
        good[:4],
        bytes(100),
        good[1:],
        good + b"\0",
        good * 2,
    ]
    for data in (content[:-1], content + b"\0", b"", content * 20, bytes(50 << 20)):
        wrong += [frame_of(data), zstandard.compress(data)]  # without its size, and with it
    # A frame may ask its reader for a window of 128 MiB in 17 bytes.
    greedy = frame_of(content, window_log=27)
    peak = memory()
    for frame in wrong:
        assert "frame" in error(frame)
    assert "too much memory" in error(greedy)
    assert memory() - peak < 16 << 20
    parts.blocks[0] = forge.sealed(head[:32] + struct.pack("<I", len(good)) + good + low)
    assert same_bits(bounded.decompress(parts.payload()), bounded.decompress(payload))


def test_forged_blocks_never_touch_other_memory(payload: torch.Tensor) -> None:
    """Whatever a frame holds: values, or an error. Native tests do it with sanitizers."""
    parts, head, content, low = frames_of(payload)
    rng = np.random.default_rng(6)
    refused = 0
    for _ in range(150):
        other, header = bytearray(content), bytearray(head)
        for _ in range(int(rng.integers(1, 4))):
            other[int(rng.integers(len(other)))] = int(rng.integers(256))
        header[int(rng.integers(36))] = int(rng.integers(256))
        frame = zstandard.compress(bytes(other))
        struct.pack_into("<I", header, 32, len(frame))
        parts.blocks[0] = forge.sealed(bytes(header) + frame + low)
        try:
            assert bounded.decompress(parts.payload()).shape == (14, 100, 100)
        except PayloadError:
            refused += 1
    assert 0 < refused < 150


def test_the_first_bad_block_is_named() -> None:
    parts = forge.taken_apart(bounded.compress(some((20 * 65536,), torch.float32), max_error=1e-3))
    for bad in (17, 11, 6):
        parts.blocks[bad] = parts.blocks[bad][:-1] + bytes([parts.blocks[bad][-1] ^ 1])
        before = torch.get_num_threads()
        for threads in (1, 4):
            torch.set_num_threads(threads)
            try:
                with pytest.raises(PayloadError, match=f"^block {bad}: the checksum"):
                    bounded.decompress(parts.payload())
            finally:
                torch.set_num_threads(before)
    assert [k for k, b in enumerate(bounded.info(parts.payload()).blocks) if not b.checksum_ok] == [
        6,
        11,
        17,
    ]


@pytest.mark.parametrize("bad", [None, 5, "text", np.zeros(40, np.uint8), [1, 2]])
def test_payloads_are_not_anything(bad: Any) -> None:
    with pytest.raises(TypeError, match="payload is a"):
        bounded.decompress(bad)


def test_tensors_that_are_no_payload(payload: torch.Tensor) -> None:
    for bad, text in ((payload.view(1, -1), "2-D"), (payload.to(torch.int16), "int16")):
        with pytest.raises(ValueError, match=text):
            bounded.decompress(bad)
