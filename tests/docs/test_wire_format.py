"""docs/wire_format.md against the bytes that ranks really exchange."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from torch_cgx import _C

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "wire_format.md").read_text()
FAMILIES = TEXT.split("| number | family |")[1].split("\n\n")[0]
HEADER = struct.Struct("<4sBBBBQIHBBIIQQQ")
EXAMPLE = [0.4, -1.0, 0.25, 2.0, 0.0, -0.75, 1.0, 1.45, 3.0, 3.0, 5.0, -6.0]
LAYERS = [(10, {"bits": 4, "bucket_size": 8}), (2, None)]


def _documented() -> bytes:
    """The bytes of the document's example: the hexadecimal column of its table."""
    table = TEXT.split("<!-- example -->")[1].split("<!-- /example -->")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    return bytes.fromhex("".join(row[2].strip().strip("`") for row in rows))


def _fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _config(family: int, **parameters: int) -> int:
    """The hash of a configuration as the document states it."""
    data = struct.pack("<Q", family)
    for name, number in parameters.items():
        data += name.encode() + struct.pack("<2Q", len(name), number)
    return _fnv(data)


def _maxmin(bits: int, bucket_size: int) -> int:
    return _config(
        1, bits=bits, bucket_size=bucket_size, rounding=0, seed=0, skip_incomplete_buckets=0
    )


RAW = _config(3)


def _hash(operation, algorithm, dtype, size, layers, first_round):
    """The plan's hash as the document states it; layers: (count, hash of the configuration)."""
    data = struct.pack("<5Q", operation, algorithm, dtype, size, len(layers))
    for layer in layers:
        data += struct.pack("<2Q", *layer)
    rounds = 1 if first_round else 0
    return _fnv(data + struct.pack(f"<{1 + len(first_round)}Q", rounds, *first_round))


def _mapped() -> dict[str, tuple[int, int]]:
    """Inode -> addresses of the shared blocks that this process maps; their names are gone."""
    found = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/dev/shm/" in line and "(deleted)" in line:
                addresses, *_, inode, _path, _deleted = line.split()
                start, end = addresses.split("-")
                found[inode] = (int(start, 16), int(end, 16))
    return found


def _contents(start: int, end: int) -> bytes:
    found = b""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        while len(found) < end - start and (part := memory.read(end - start - len(found))):
            found += part
    return found


def _messages(rank, world_size, algorithm, layers=LAYERS):
    before = _mapped()  # groups of other tests
    # A fresh group: its shared block holds nothing else.
    options = torch_cgx.Options(inner_reduction=algorithm, shm_segment_kb=16)
    group = dist.new_group(backend="cgx", pg_options=options)
    x = torch.tensor(EXAMPLE)
    torch_cgx.all_reduce(x if rank == 0 else torch.zeros(12), layers=layers, group=group)
    dist.barrier()
    (block,) = (where for inode, where in _mapped().items() if inode not in before)
    memory = _contents(*block)
    dist.barrier()
    messages = []
    for match in re.finditer(b"CGX1", memory):
        size = HEADER.unpack_from(memory, match.start())[-1]
        messages.append(memory[match.start() : match.start() + HEADER.size + size])
    return messages


def test_example_is_what_a_rank_sends():
    sent = run_pooled(_messages, 2, "ONESHOT")[0]
    mine = [m for m in sent if HEADER.unpack_from(m)[7] == 0]
    documented = _documented()
    assert mine == [documented]
    assert len(documented) == 96


def test_header_and_hash_of_the_example():
    fields = HEADER.unpack_from(_documented())
    config = _maxmin(4, 8)
    expected = _hash(1, 1, 0, 2, [(10, config), (2, RAW)], [12])
    assert fields == (b"CGX1", 3, 1, 1, 0, 0, 0, 0, 0, 1, config & 2**32 - 1, 2, expected, 12, 40)
    assert HEADER.size == 56


@pytest.mark.parametrize(
    "name, wire, number", [("fp16", torch.float16, 1), ("bf16", torch.bfloat16, 0)]
)
def test_message_of_16_bits(name, wire, number):
    layers = [(10, {"bits": 16, "half": name, "bucket_size": 8}), (2, None)]
    sent = run_pooled(_messages, 2, "ONESHOT", layers)[0]
    (message,) = (m for m in sent if HEADER.unpack_from(m)[7] == 0)
    config = _config(2, bits=16, format=number)
    plan = _hash(1, 1, 0, 2, [(10, config), (2, RAW)], [12])
    fields = (2, config & 2**32 - 1, 2, plan, 12, 40)
    assert HEADER.unpack_from(message)[-6:] == fields
    values = torch.tensor(EXAMPLE[:10]).to(wire).view(torch.uint8)
    assert message[56:76] == bytes(values.tolist())
    assert struct.unpack("<2f", message[88:]) == (5.0, -6.0)


def test_messages_of_scatter_reduce_all_gather():
    messages = run_pooled(_messages, 2, "SRA")[1]
    seen = sorted((m[6], HEADER.unpack_from(m)[7], HEADER.unpack_from(m)[-1]) for m in messages)
    # Two chunks: the first bucket with its 8 values (8 + 4 bytes), and the rest (8 + 1, raw at 16).
    assert seen == [(2, 0, 12), (2, 0, 24), (2, 1, 12), (2, 1, 24)]


def test_payload_of_the_example_decodes():
    payload = _documented()[56:]
    codec = torch_cgx.codecs.MaxMin(bits=4, bucket_size=8)
    values = codec.decode(torch.tensor(list(payload[:21]), dtype=torch.uint8), numel=10)
    unit = torch.tensor(3.0) / 15
    codes = torch.tensor([7, 0, 6, 15, 5, 1, 10, 12.0])
    assert torch.equal(values, torch.cat([-1 + unit * codes, torch.tensor([3.0, 3.0])]))
    assert struct.unpack("<2f", payload[32:]) == (5.0, -6.0)


def _formula(n, bits, bucket, skip, width):
    coded = n // bucket * bucket if skip else n
    return 8 * -(-coded // bucket) + -(-coded * bits // 8) + (n - coded) * width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("bits", range(1, 9))
def test_formula_of_the_payload(bits, skip, dtype):
    for bucket in (1, 3, 64, 512, 1000):
        codec = torch_cgx.codecs.MaxMin(bits=bits, bucket_size=bucket, skip_incomplete_buckets=skip)
        for n in (0, 1, 7, 8, 63, 511, 512, 513, 1000, 100_003):
            assert codec.encoded_bytes(n, dtype) == _formula(n, bits, bucket, skip, dtype.itemsize)
            assert codec.encode(torch.ones(n, dtype=dtype)).numel() == codec.encoded_bytes(n, dtype)


def _bytes_sent(rank, world_size, communicator):
    options = torch_cgx.Options(inner_communicator=communicator, inner_reduction="ONESHOT")
    group = dist.new_group(backend="cgx", pg_options=options)
    torch_cgx.all_reduce(torch.ones(5000), config={"bits": 3, "bucket_size": 512}, group=group)
    return torch_cgx.stats(group)["bytes_sent"]


@pytest.mark.parametrize("communicator, frame", [("SHM", 0), ("GLOO", 8)])
def test_framing_of_the_communicators(communicator, frame):
    size = 56 + _formula(5000, 3, 512, False, 4) + frame
    assert run_pooled(_bytes_sent, 3, communicator) == [2 * size] * 3


def test_families_are_those_of_the_document():
    rows = re.findall(r"^\| (\d+) \| `(\w+)`[^|]* \| ([^|]*) \|$", FAMILIES, re.MULTILINE)
    found = {int(number): (name, re.sub(r"\([^)]*\)", "", rest)) for number, name, rest in rows}
    expected = {
        family["id"]: (family["name"], ", ".join(p["name"] for p in family["parameters"]) or "none")
        for family in _C.families()
    }
    assert {
        n: (name, rest.replace(" ,", ",").strip()) for n, (name, rest) in found.items()
    } == expected
