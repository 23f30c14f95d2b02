"""Payloads of words that are cut, altered or forged are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bounded.bdi import model as bdi_model
from tests.bounded.bdi.cases import cases, compression, tensor
from tests.bounded.bdi.model import Model
from torch_cgx.bounded import bdi
from torch_cgx.bounded.bdi import Compression, Config


def test_other_payloads_are_refused() -> None:
    for payload, error, text in (
        (b"CGXI", TypeError, "payload is a bytes"),
        (torch.zeros(40), ValueError, "payload is torch.float32 with 1 dimensions"),
        (torch.zeros(4, 10, dtype=torch.uint8), ValueError, "with 2 dimensions"),
        (torch.zeros(40, dtype=torch.uint8, device="meta"), ValueError, "device meta"),
        (torch.zeros(40, dtype=torch.uint8), bdi.PayloadError, "does not begin with"),
        (torch.zeros(0, dtype=torch.uint8), bdi.PayloadError, "it has 0 bytes"),
    ):
        for read in (bdi.decompress, bdi.info):
            with pytest.raises(error, match=text):
                read(payload)  # type: ignore[arg-type]


def sample() -> bytes:
    words = [0, 5, 200, 1000, 0, 0xABCDE, 7, 0xF0000F, 2**32 - 1, 2**31 - 1]
    model = Model(((1, 32, 8), (2, 24, 4)), batch=4, immediates=(0, 6))
    payload = compression(model).compress(tensor(words).reshape(2, 5)).numpy().tobytes()
    assert set(bdi.info(as_payload(payload)).choice.tolist()) == {0, 1, -1}
    return payload


def as_payload(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def refused(data: bytes, text: str = "") -> None:
    with pytest.raises(bdi.PayloadError, match=f"BDI payload: .*{text}"):
        bdi.decompress(as_payload(data) if data else torch.zeros(0, dtype=torch.uint8))


def test_cut_and_longer_payloads_are_refused() -> None:
    data = sample()
    for length in range(len(data)):
        refused(data[:length], "it was cut")
    refused(data + b"\0", "something follows it")


def test_each_flipped_bit_is_found() -> None:
    data = sample()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        refused(bytes(changed), "(kind|version|its header says|altered)")


def forge(data: bytes, *changes: tuple[int, bytes], cut: int = 0) -> bytes:
    """The payload with other bytes at places, and a length and checksum that fit."""
    body = bytearray(data[: len(data) - 4 - cut])
    for place, values in changes:
        body[place : place + len(values)] = values
    body[8:16] = (len(body) + 4).to_bytes(8, "little")
    return bytes(body) + bdi_model.crc32c(bytes(body)).to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def test_forged_headers_are_named() -> None:
    data = sample()
    assert forge(data) == data
    for changes, text in (
        ([(6, b"\3")], "dtype is 3, allowed: 0 to 2"),
        ([(7, b"\2")], "flags are 2, allowed: 0, 1"),
        ([(16, b"\0\0")], "batch_size is 0, allowed: 1 to 4096"),
        ([(16, b"\1\x10")], "batch_size is 4097"),
        ([(18, b"\x20")], "scale_factor_init is 32"),
        ([(18, b"\x10\x10")], "scale_factor_base is 16, allowed: 0 to 15"),
        ([(20, b"\x20")], "scale_factor_delta is 32"),
        ([(18, b"\x1e")], "immediate is 6, allowed: 0 to 3"),
        ([(21, b"\xff")], "its header of 2078 bytes does not fit"),
        ([(22, b"\x41")], "header of .* does not fit"),
        ([(23, b"\0")], "number of configs is 0"),
        ([(24, u64(2**40))], "more than its .* bytes can hold"),
        ([(24, u64(2**63))], "shape multiplies to more"),
        ([(24, u64(2**62) * 2)], "shape multiplies to more"),
        ([(24, u64(2**62) + u64(0))], "follow the last chunk"),  # no words at all
        ([(24, u64(2) + u64(40))], "(does not fit|or more, but only)"),
        ([(24, u64(2) + u64(3))], "chunk 1 uses 3 bases"),  # as cut otherwise
        ([(40, b"\6")], "immediate 6 is there twice"),
        ([(48, b"\x41")], r"configs\[0\].num_bases is 65"),
        ([(49, b"\0")], r"configs\[0\].base_size is 0"),
        ([(53, b"\x21")], r"configs\[1\].delta_size is 33"),
        ([(7, b"\0"), (53, b"\0")], r"configs\[1\].delta_size is 0, allowed: 1 to 32"),
        ([(54, b"\x3f")], "configuration of chunk 0 is 3, allowed: 0 to 2"),
        ([(54, b"\x55")], "the table does not end with zeros"),
    ):
        refused(forge(data, *changes), text)
    long = Compression([Config()], 4096, range(64)).compress(torch.zeros((1,) * 64).int())
    longer = long.numpy().tobytes()
    longer = forge(longer[:24] + u64(1) + longer[24:], (21, b"\x41"))
    refused(longer, "number of dimensions is 65, allowed: 0 to 64")
    assert bdi.decompress(long).dim() == 64
    with pytest.raises(ValueError, match="number of dimensions is 65, allowed: 0 to 64"):
        Compression([Config()]).compress(torch.zeros((1,) * 65).int())


def test_forged_chunks_are_named() -> None:
    """One chunk of four words, mask 0b1110: used at bit 4, base at 5, selectors at 37, deltas."""
    c = Compression([Config(2, 32, 7)], immediates=(0, 300), scale_factor_delta=1)
    payload = c.compress(tensor([0, 5, 200, 1000])).numpy().tobytes()
    body = int.from_bytes(payload[-13:-4], "little")  # 4 + 2 + 32 + 3 * (2 + 7) = 65 bits
    assert body.bit_length() <= 65 and body & 0b111111 == 0b01_1110

    def altered(bits: int, length: int = 9) -> bytes:
        values = bits.to_bytes(9, "little")[:length]
        return forge(payload, (len(payload) - 13, values), cut=9 - length)

    assert altered(body) == payload
    refused(altered(body | 1 << 65), "chunk 0 does not end with zeros")
    refused(altered(body | 0b11 << 38), "a selector of chunk 0 is 3, allowed: 0 to 2")
    refused(altered(body | 0b11 << 4), "chunk 0 uses 3 bases, allowed: 0 to 2")
    refused(altered(body ^ 0b11 << 4), "chunk 0 .*or more, but only 9 are left")
    refused(altered(body, 8), "chunk 0 of 1 has 9 bytes or more, but only 8 are left")
    refused(altered(0, 0), "chunk 0 of 1 has 1 bytes or more, but only 0 are left")
    refused(altered(body & ~0b1110), "bytes follow the last chunk")
    top = body | ((1 << 32) - 1) << 6 | 0x7F << 58
    refused(altered(top), "a base and a delta of chunk 0 add up to more than 4294967295")
    shifted = Compression([Config(1, 32, 8)], immediates=(), scale_factor_init=8)
    data = shifted.compress(tensor([2**31])).numpy().tobytes()
    at = len(data) - 10  # mask 1, used 1, then the base
    bits = int.from_bytes(data[at:-4], "little") | 1 << 2 + 24
    refused(forge(data, (at, bits.to_bytes(6, "little"))), "base 0 of chunk 0 is .*allowed: 0 to")
    none = Compression([Config(1, 32, 8)], immediates=()).compress(tensor([0])).numpy().tobytes()
    refused(forge(none, (len(none) - 5, b"\1")), "neither a base nor an immediate")


@settings(max_examples=300, deadline=None)
@given(cases(), st.data())
def test_forged_bytes_give_words_or_an_error(case: tuple[Model, list[int]], data: Any) -> None:
    model, words = case
    payload = compression(model).compress(tensor(words, model.dtype)).numpy().tobytes()
    place = st.integers(6, len(payload) - 5)
    changes = data.draw(st.lists(st.tuples(place, st.binary(min_size=1, max_size=2)), max_size=3))
    changed = forge(payload, *changes, cut=data.draw(st.sampled_from((0, 0, 0, 1, 5))))
    try:
        y = bdi.decompress(as_payload(changed))
        bdi.info(as_payload(changed))
    except bdi.PayloadError as error:
        assert str(error).startswith("BDI payload: ")
    else:
        assert y.numel() <= 8 * len(changed)
