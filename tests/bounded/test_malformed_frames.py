"""Forged blocks of one value and of bytes, and payloads of one frame: their checksums are right,
and they are refused, by the second reader too. They take no memory.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

from tests.bounded import forge
from tests.bounded.adversary import bits_of
from tests.bounded.discrete import colors, decimals, picked, rows_of_multiples
from tests.bounded.forge import framed, number, sealed
from tests.bounded.forged import N, both_read, both_refuse, plain, with_block
from tests.bounded.test_malformed import memory
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError

# ---- one value, and others


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float64], ids=str)
def test_one_value_and_others(dtype: torch.dtype) -> None:
    size = dtype.itemsize
    value, other = b"\1" * size, b"\2" * size

    def of(count: int, *gaps: int, end: bytes = b"", start: bytes = value) -> bytes:
        others = b"".join(number(gap) + other for gap in gaps)
        return with_block(b"\x09" + start + number(count) + others + end, dtype)

    y = both_read(of(3, 0, 0, 97))
    assert bits_of(y[[0, 1, 99]]).tolist() == [int.from_bytes(other, "little")] * 3
    both_read(of(0))
    both_read(of(1, 99))
    both_read(of(N, *[0] * N))
    for payload, text in (
        (of(1, 100), "another value behind its end"),
        (of(2, 0, 99), "another value behind its end"),
        (of(N + 1, *[0] * (N + 1)), "another value behind its end"),
        (of(1, 2**64 - 1), "another value behind its end"),
        (of(2, 5, 2**64 - 6), "another value behind its end"),
        (of(2, 5, 2**64 - 1), "another value behind its end"),
        (of(2, 5), "is cut"),
        (of(2**64 - 1, 5), "is cut"),
        (of(1, 5, end=b"\0"), "goes on behind its last value"),
        (of(1, 5, 6), "goes on behind its last value"),
        (with_block(b"\x09" + value[:-1], dtype), "is cut"),
        (with_block(b"\x09" + value, dtype), "is cut"),
        (with_block(b"\x09" + value + b"\1\5" + other[:-1], dtype), "is cut"),
        (with_block(b"\x09" + value + b"\xff" * 12, dtype), "more than 64 bits"),
    ):
        both_refuse(payload, text)
    for version in (1, 2):
        block = sealed(b"\x09" + value + b"\0")
        parts = forge.taken_apart(plain(dtype), version).set(blocks=[block])
        both_refuse(parts.payload(), "block 0: the block is mostly one value, which version")


def test_bools_of_one_value_and_others() -> None:
    for start, other, good in ((0, 1, True), (2, 1, False), (0, 2, False), (1, 255, False)):
        payload = with_block(bytes([9, start, 1, 50, other]), torch.bool)
        if good:
            both_read(payload)
        else:
            both_refuse(payload, "a bool is")


# ---- bytes


def frame_of(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(data)


@pytest.mark.parametrize("plain_size", [False, True])
def test_blocks_of_bytes(plain_size: bool) -> None:
    rng = np.random.default_rng(0)
    for dtype, each in ((torch.float32, 4), (torch.float64, 8), (torch.int16, 2), (torch.uint8, 1)):
        for n in (1, 7, 8, 104):
            values = rng.bytes(each * n)
            frame = frame_of(values, write_content_size=plain_size)
            for way in range(3):
                payload = with_block(bytes([10, way]) + frame, dtype, n)
                assert both_read(payload).numel() == n


def test_wrong_blocks_of_bytes() -> None:
    content = bytes(range(208)) * 2
    good = frame_of(content)

    def of(frame: bytes, way: int = 0, n: int = 104, **fields: Any) -> bytes:
        return with_block(bytes([10, way]) + frame, n=n, **fields)

    both_read(of(good))
    for way in (3, 127, 255):
        both_refuse(of(good, way), f"bytes in the way {way}")
    both_refuse(with_block(b"\x0a", n=104), "has bytes in the way 3")
    both_refuse(of(b""), "has bytes in the way 0")
    greedy = zstandard.ZstdCompressionParameters(compression_level=1, window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=greedy).compressobj()
    wrong = [
        b"\0",
        good[:-1],
        good[:5],
        good + b"\0",
        good * 2,
        good[1:],
        frame_of(content[:-1]),
        frame_of(content + b"\0"),
        frame_of(bytes(50 << 20)),
        frame_of(bytes(50 << 20), write_content_size=False),
        frame_of(b""),
        stream.compress(content) + stream.flush(),
    ]
    peak = memory()
    for frame in wrong:
        for way in range(3):
            with pytest.raises(PayloadError, match="frame"):
                bounded.decompress(of(frame, way))
    assert memory() - peak < 16 << 20
    both_refuse(of(good, n=105), "frame")
    for version in (1, 2):
        parts = forge.taken_apart(plain(n=104), version).set(blocks=[sealed(b"\x0a\0" + good)])
        both_refuse(parts.payload(), "block 0: the block is a frame of bytes, which version")
    bools = frame_of(bytes([0, 1, 2] * 8))
    both_refuse(with_block(b"\x0a\0" + bools, torch.bool, 24), "a bool is 2")


# ---- payloads of one frame


def test_frames() -> None:
    values = np.arange(100, dtype=np.float32).tobytes()
    frame = frame_of(values)
    assert both_read(framed(1, [4, 25], frame))[3, 24] == 99
    assert both_read(framed(64 + 1, [50], frame))[49] == 98 + 99j
    assert both_read(framed(5, [400], frame)).dtype == torch.uint8
    both_read(framed(1, [100], frame_of(values, write_content_size=False)))
    for kind in (1, 3):
        assert both_read(framed(1, [4, 25], frame, kind=kind))[3, 24] == 99
    checked = bytearray(framed(1, [100], frame))
    for at in range(len(checked)):
        checked[at] ^= 1
        with pytest.raises(PayloadError):
            bounded.decompress(checked)
        checked[at] ^= 1
    for payload, text in (
        (framed(1, [99], frame), "frame declares 400 bytes, expected 396"),
        (framed(1, [101], frame), "frame declares 400 bytes, expected 404"),
        (framed(2, [100], frame), "frame declares 400 bytes, expected 800"),
        (framed(1, [99], frame_of(values, write_content_size=False)), "frame"),
        (framed(1, [101], frame_of(values, write_content_size=False)), "frame"),
        (framed(1, [100], frame[:-1]), "refuses the frame"),
        (framed(1, [100], frame + b"\0"), "refuses the frame"),
        (framed(1, [100], b""), "refuses the frame"),
        (framed(1, [100], bytes(50)), "refuses the frame"),
        (framed(1, [100], frame, length=len(frame) + 1), "is cut|frame differs"),
        (framed(1, [100], frame, length=2**64 - 1), "is cut"),
        (framed(1, [100], frame, length=2**64 - 4), "is cut"),
        (framed(1, [100], frame, length=len(frame) - 1), "goes on after its end"),
        (framed(1, [100], frame, length=0), "goes on after its end"),
        (framed(1, [100], frame, crc=bytes(4)), "checksum of the payload's frame differs"),
        (framed(1, [100], frame, padding=1), "goes on after its end"),
        (framed(1, [100], frame, version=2), "type is 129"),
        (framed(5, [400], frame, kind=1), "whole numbers have no bound"),
        (framed(1, [100], frame, kind=4), "kind of bound is 4"),
        (framed(0, [100], frame), "type is 128"),
        (framed(14, [100], frame), "type is 142"),
        (framed(64 + 5, [200], frame), "type is 197"),
        (framed(13, [400], frame_of(b"\2" * 400)), "a bool is"),
        (framed(13, [400], frame_of(b"\1" * 399 + b"\2")), "a bool is 2"),
    ):
        both_refuse(payload, text)
    for length in range(len(checked)):
        with pytest.raises(PayloadError, match="cut"):
            bounded.decompress(framed(1, [100], frame)[:length])


def words_form(size: int, step: float, others: int = 1) -> bytes:
    return b"\1" + bytes([size]) + struct.pack("<d", step) + number(others)


def words_frame(numbers: Any, size: int, others: bytes = b"\0") -> bytes:
    return frame_of(np.array(numbers, f"<i{size}").tobytes() + others)


def test_frames_of_words() -> None:
    """The bound is 0.5, so steps are at most 1."""
    numbers = np.arange(-50, 50)

    def of(size: int, step: float = 0.5, element: int = 1, **fields: Any) -> bytes:
        frame = words_frame(numbers, size)
        fields = {"kind": 1, "form": words_form(size, step), **fields}
        return framed(element, fields.pop("shape", [4, 25]), frame, **fields)

    for size in (1, 2, 4):
        for element in (1, 2, 64 + 1):
            shape = [50] if element > 64 else [4, 25]
            found = both_read(of(size, element=element, shape=shape)).reshape(-1)
            assert found[0] == (-25 - 24.5j if element > 64 else -25)
        assert both_read(of(size, 1.0))[0, 0] == -50 and both_read(of(size, 5e-324))[0, 0] == 0
        for payload, text in (
            (of(size, shape=[99]), f"{100 * size + 1} bytes, expected {99 * size + 1}"),
            (of(size, shape=[101]), f"{100 * size + 1} bytes, expected {101 * size + 1}"),
            (of(size, 1.0000001), "has the step 1, allowed: above 0, at most 1"),
            (of(size, 0.0), "has the step 0"),
            (of(size, -0.5), "has the step -0.5"),
            (of(size, np.nan), "has the step -?nan"),
            (of(size, np.inf), "has the step inf"),
            (of(size, kind=0), "which its bound does not have"),
            (of(size, kind=3), "which its bound does not have"),
            (of(size, element=3), "which its bound does not have"),
            (of(size, element=4), "which its bound does not have"),
            (of(size, element=5), "whole numbers have no bound"),
            (of(size, element=5, kind=0), "which its bound does not have"),
            (of(size, form=words_form(3, 0.5)), "words of 3 bytes, allowed: 1, 2, 4"),
            (of(size, form=words_form(0, 0.5)), "words of 0 bytes"),
            (of(size, form=words_form(8, 0.5)), "words of 8 bytes"),
            (of(size, form=b"\3"), "form 3, allowed: 0 to 2"),
            (of(size, form=b"\xff"), "form 255"),
        ):
            both_refuse(payload, text)


def test_words_that_stand_for_no_number() -> None:
    most = 2**31 - 1
    step = 2.0**97  # of which the greatest float32 is nearly 2^31
    for word, element, fits in (
        (most, 1, False),
        (-most, 1, False),
        (most - 128, 1, True),
        (-most - 1, 1, False),
        (most, 2, True),
        (-most - 1, 2, True),
    ):
        frame = words_frame([0, 1, word], 4)
        kind = {"kind": 1, "bound": step / 2, "form": words_form(4, step)}
        payload = framed(element, [3], frame, **kind)
        if fits:
            assert both_read(payload)[2] == word * step
        else:
            both_refuse(payload, f"value 2 has the word {word}, which stands for no number")


def test_other_values_beside_words() -> None:
    def of(others: bytes, length: int | None = None, element: int = 1) -> bytes:
        form = words_form(2, 0.5, len(others) if length is None else length)
        frame = words_frame(range(100), 2, others)
        return framed(element, [100], frame, kind=2, form=form)

    nan, zero = struct.pack("<f", np.nan), struct.pack("<f", -0.0)
    found = both_read(of(b"\3\0" + nan + b"\4" + zero + b"\x5d" + zero))
    assert found.isnan().nonzero().view(-1).tolist() == [0]
    assert torch.signbit(found).nonzero().view(-1).tolist() == [5, 99] and found[98] == 49
    assert both_read(of(b"\1\1" + struct.pack("<d", np.inf), element=2))[1] == np.inf
    for payload, text in (
        (of(b""), "cut"),
        (of(b"\1"), "cut"),
        (of(b"\1\0" + nan[:3]), "cut"),
        (of(b"\0\0"), "goes on behind its last value"),
        (of(b"\1\x64" + nan), "another value behind its end"),
        (of(b"\2\0" + nan + b"\x63" + nan), "another value behind its end"),
        (of(b"\0", 2), "frame declares 201 bytes, expected 202"),
        (of(b"\0", 0), "frame declares 201 bytes, expected 200"),
        (of(b"\0", 419), "has others of 419 bytes, allowed: at most 418"),
    ):
        both_refuse(payload, text)


def test_frames_of_mostly_one_value() -> None:
    def of(content: bytes, size: int | None = None, **fields: Any) -> bytes:
        form = b"\2" + number(len(content) if size is None else size)
        fields = {"form": form, **fields}
        element = fields.pop("element", 1)
        return framed(element, fields.pop("shape", [10, 10]), frame_of(content), **fields)

    def mostly(*places: int, value: float = 2.5) -> bytes:
        rest = b"".join(number(at) + struct.pack("<f", k) for k, at in enumerate(places))
        return struct.pack("<f", value) + number(len(places)) + rest

    for kind in range(4):
        found = both_read(of(mostly(99), kind=kind))
        assert found[0, 0] == 2.5 and found[9, 9] == 0
    assert both_read(of(mostly(0, 97, 0))).view(-1)[[0, 97, 98, 99]].tolist() == [0, 2.5, 1, 2]
    assert both_read(of(mostly())).tolist() == [[2.5] * 10] * 10
    both_read(of(b"\1\1\5\0", element=13, shape=[10]))
    for payload, text in (
        (of(mostly(100)), "another value behind its end"),
        (of(mostly(0, 99)), "another value behind its end"),
        (of(mostly(2**64 - 1)), "another value behind its end"),
        (of(mostly(5, 2**64 - 6)), "another value behind its end"),
        (of(mostly(5) + b"\0"), "goes on behind its last value"),
        (of(mostly(5)[:-1]), "cut"),
        (of(b"\0\0\0"), "cut"),
        (of(b""), "cut"),
        (of(mostly(5), 11), "frame declares 10 bytes, expected 11"),
        (of(mostly(5), 9), "frame declares 10 bytes, expected 9"),
        (of(mostly(5), 418), "frame declares 10 bytes, expected 418"),
        (of(mostly(5), 419), "has others of 419 bytes, allowed: at most 418"),
        (of(mostly(5), 2**64 - 1), "allowed: at most 418"),
        (of(mostly(), element=5, kind=1), "whole numbers have no bound"),
        (of(b"\2\0", element=13, shape=[10]), "a bool is 2"),
        (of(b"\1\1\5\2", element=13, shape=[10]), "a bool is 2"),
        (of(b"\2\1\0\1", element=13, shape=[1]), "a bool is 2"),
    ):
        both_refuse(payload, text)


def test_headers_of_frames_that_are_cut_or_altered() -> None:
    words = framed(1, [100], words_frame(np.arange(100), 1), kind=1, form=words_form(1, 0.5))
    few = frame_of(struct.pack("<fB", 2.5, 0))
    for good in (words, framed(1, [100], few, form=b"\2\5")):
        both_read(good)
        for at in range(len(good)):
            with pytest.raises(PayloadError):
                bounded.decompress(good[:at])
            wrong = bytearray(good)
            wrong[at] ^= 1
            with pytest.raises(PayloadError):
                bounded.decompress(wrong)
            with pytest.raises(PayloadError):
                bounded.info(wrong)


def test_frames_of_nothing() -> None:
    for shape in ([0], [0, 5], [3, 0]):
        assert both_read(framed(1, shape, frame_of(b""))).shape == tuple(shape)
        good = frame_of(b"\0")
        assert both_read(framed(1, shape, good, kind=1, form=words_form(1, 0.5))).numel() == 0
        few = frame_of(b"\0\0\0\0\0")
        assert both_read(framed(1, shape, few, form=b"\2\5")).numel() == 0
        for payload, text in (
            (framed(1, shape, frame_of(b"1234")), "frame"),
            (framed(1, shape, frame_of(b"\5\5\5"), kind=1, form=words_form(1, 0.5, 3)), "behind"),
            (framed(1, shape, frame_of(b"\5\5\5"), form=b"\2\3"), "cut"),
            (framed(1, shape, frame_of(b"\0\0\0\0\1\0\0\0\0\0"), form=b"\2\x0a"), "behind"),
        ):
            both_refuse(payload, text)
    bools = framed(13, [400], frame_of(b"\2" * 400))
    with pytest.raises(PayloadError, match="a bool is 2"):
        bounded.decompress(bools, rows=slice(0, 0))


def test_steps_whatever_the_processor_does_with_subnormal_numbers() -> None:
    payload = framed(1, [3], words_frame([1, 2, 3], 1), kind=1, form=words_form(1, 5e-324))
    torch.set_flush_denormal(True)
    try:
        assert bounded.decompress(payload).tolist() == [0, 0, 0]
        assert bounded.info(payload).shape == (3,)
    finally:
        torch.set_flush_denormal(False)


def test_frames_take_as_much_memory_as_their_length_allows() -> None:
    n = 40 << 20
    frame = frame_of(bytes(n))
    good = framed(5, [n], frame)
    assert not bounded.decompress(good).any()
    for shape in ([n], [1 << 40], [1 << 20, 1 << 20]):
        short = framed(5, shape, frame[:100], padding=0)
        before = memory()
        with pytest.raises(PayloadError, match="its shape needs"):
            bounded.decompress(short)
        assert memory() - before < 1 << 20
    # What frames declare is not believed.
    bomb = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\1\0\0"
    before = memory()
    with pytest.raises(PayloadError, match="declares 1099511627776 bytes"):
        bounded.decompress(framed(5, [1000], bomb))
    assert memory() - before < 1 << 20
    silent = framed(5, [1000], frame_of(bytes(n), write_content_size=False))
    before = memory()
    with pytest.raises(PayloadError, match="frame"):
        bounded.decompress(silent)
    assert memory() - before < 1 << 20


# ---- any bytes


def test_any_bytes_are_values_or_refused() -> None:
    rng = np.random.default_rng(8)
    wave = torch.sin(torch.arange(40).view(-1, 1) / 9) + torch.cos(torch.arange(60) / 11.0)
    made = [
        picked(colors(9, torch.float32), 2000),
        decimals(2000, 2, torch.float64),
        rows_of_multiples(30, 70),
        (wave * 40).round() / 100,
        torch.tensor([1.0] * 1999 + [2.0]),
    ]
    refused = 0
    for x in made:
        parts = forge.taken_apart(bounded.compress(x, max_error=0))
        block = parts.blocks[0][:-4]
        for _ in range(120):
            other = bytearray(block)
            for _ in range(int(rng.integers(1, 4))):
                near = int(rng.choice([min(60, len(other)), len(other)]))
                other[int(rng.integers(near)) - (near if rng.random() < 0.5 else 0)] = int(
                    rng.integers(256)
                )
            parts.blocks = [sealed(bytes(other))]
            try:
                assert bounded.decompress(parts.payload()).shape == x.shape
            except PayloadError:
                refused += 1
    assert 0 < refused < 600
