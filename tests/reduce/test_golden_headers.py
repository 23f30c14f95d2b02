"""golden_headers.json, the headers that ranks send (tests/native/test_golden_headers.cc compares it
with the engine), read by docs/wire_format.md alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from torch_cgx import _C

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden_headers.json").read_text())
FAMILIES = {family["name"]: family for family in _C.families()}
HEADER = struct.Struct("<4sBBBBQIHBBIIQQQ")
# Of parameters whose ends do not go with the others' defaults: 8 and 16 bits.
WIDEST = {("float", "exponent"): 4, ("float", "mantissa"): 11}
FIELDS = (
    "magic version operation algorithm dtype sequence round sender flags family config layers "
    "plan_hash values payload_bytes"
).split()
OPERATIONS = {"all_reduce": 1, "reduce_scatter_tensor": 2, "all_gather_into_tensor": 3, "reduce": 4}
ALGORITHMS = {"one-shot": 1, "scatter-reduce-all-gather": 2, "ring": 3, "direct": 4}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
EXACT = (
    "float64 uint8 int8 int16 uint16 int32 uint32 int64 uint64 bool complex32 complex64 complex128"
)
NUMBERS = DTYPES | {name: 3 + i for i, name in enumerate(EXACT.split())}
OPS = {op: i for i, op in enumerate("SUM MIN MAX PRODUCT BAND BOR BXOR".split())}
NON_FINITE, AVERAGE = 1, 2
CHECKSUM_BYTES = 8
SENDER = 2  # of all messages of the file


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def config_hash(family: str, numbers: dict[str, int]) -> int:
    data = struct.pack("<Q", FAMILIES[family]["id"])
    for name, number in numbers.items():
        data += name.encode() + struct.pack("<2Q", len(name), number)
    return fnv(data)


def plan_hash(row: dict[str, Any]) -> int:
    sequence = [
        OPERATIONS[row["operation"]],
        ALGORITHMS[row["algorithm"]],
        NUMBERS[row["dtype"]],
        len(row["hosts"]),
        len(row["layers"]),
    ]
    for count, family, numbers in row["layers"]:
        sequence += [count, config_hash(family, numbers)]
    if "op" in row:
        sequence.append(OPS[row["op"]])
    if row["operation"] == "reduce":
        sequence.append(row["root"])
    sequence.append(row["rounds"])
    for shard in row["chunks"]:
        sequence += shard
    if row["link"] != "all ranks" and _ranks_of_hosts(row) > 1:
        hosts = list(dict.fromkeys(row["hosts"]))
        sequence += [1, len(row["chunks"]), *(hosts.index(host) for host in row["hosts"])]
    return fnv(struct.pack(f"<{len(sequence)}Q", *sequence))


def _sends_in_round_0(row: dict[str, Any]) -> bool:
    """Inside a host the sender gives the other rank that rank's shard, which may be empty where a
    round holds a few blocks only."""
    shards = row["chunks"]
    return row["link"] != "inside hosts" or len(shards) < 2 or sum(shards[1]) > 0


def _ranks_of_hosts(row: dict[str, Any]) -> int:
    return max(row["hosts"].count(host) for host in row["hosts"])


def compressed(row: dict[str, Any]) -> tuple[str, dict[str, int]] | None:
    """Family and parameters of the first layer that is not exact."""
    return next(((family, p) for _, family, p in row["layers"] if family != "raw"), None)


def fields_of(header: str) -> dict[str, Any]:
    data = bytes.fromhex(header)
    assert len(data) == HEADER.size == 56
    return dict(zip(FIELDS, HEADER.unpack(data), strict=True))


def test_headers_say_what_the_document_says() -> None:
    for row in ROWS:
        codec = compressed(row)
        config = config_hash(*codec) if codec else None
        assert row["config_hash"] == (None if config is None else f"{config:016x}"), row
        assert row["plan_hash"] == f"{plan_hash(row):016x}", row
        extra = CHECKSUM_BYTES if "checksum" in row["with"] else 0
        for (size, header), number in (
            (row["first"], 0),
            (row.get("last", row["first"]), row["rounds"] - 1),
        ):
            if number == 0 and not _sends_in_round_0(row):
                number = fields_of(header)["round"]
                assert number < row["rounds"], row
            assert fields_of(header) == {
                "magic": b"CGX1",
                "version": 3,
                "operation": OPERATIONS[row["operation"]],
                "algorithm": ALGORITHMS[row["algorithm"]],
                "dtype": NUMBERS[row["dtype"]],
                "sequence": row["sequence"],
                # Direct values follow without headers, also those of later rounds.
                "round": 0 if row["algorithm"] == "direct" else number,
                "sender": SENDER,
                "flags": AVERAGE * ("average" in row["with"])
                + NON_FINITE * ("nan" in row["with"])
                + 16 * OPS[row.get("op", "SUM")],
                "family": FAMILIES[codec[0]]["id"] if codec else 0,
                "config": config % 2**32 if config is not None else 0,
                "layers": row.get("root", len(row["layers"])),
                "plan_hash": int(row["plan_hash"], 16),
                "values": sum(count for count, *_ in row["layers"]),
                "payload_bytes": size - HEADER.size - extra,
            }, row


def test_chunks_of_round_0_are_part_of_the_call() -> None:
    for row in ROWS:
        values = sum(count for count, *_ in row["layers"])
        first = sum(map(sum, row["chunks"]))
        assert 0 < first <= values and (first == values) == (row["rounds"] == 1), row
    assert any(row["rounds"] > 1 for row in ROWS)


def test_every_family_and_kind_of_call_has_headers() -> None:
    """A family of the engine's list lacks none of the calls, nor any of its parameters."""
    write = (
        "CGX_TEST_WRITE_GOLDEN=1 make -C tests/native SANITIZE= ONLY=golden_headers run adds them"
    )
    for name, family in FAMILIES.items():
        rows = [row for row in ROWS if row["layers"][0][1] == name]
        calls = {(row["operation"], row["algorithm"], row["link"], row["dtype"]) for row in rows}
        for dtype in DTYPES:
            for call in (
                ("all_reduce", "one-shot", "all ranks"),
                ("all_reduce", "scatter-reduce-all-gather", "all ranks"),
                ("all_reduce", "ring", "all ranks"),
                ("reduce_scatter_tensor", "scatter-reduce-all-gather", "all ranks"),
                ("all_gather_into_tensor", "scatter-reduce-all-gather", "all ranks"),
                ("all_reduce", "one-shot", "across hosts"),
                ("all_reduce", "scatter-reduce-all-gather", "inside hosts"),
                ("all_reduce", "scatter-reduce-all-gather", "across hosts"),
                ("all_reduce", "ring", "across hosts"),
                ("reduce_scatter_tensor", "scatter-reduce-all-gather", "across hosts"),
                ("all_gather_into_tensor", "scatter-reduce-all-gather", "across hosts"),
            ):
                assert (*call, dtype) in calls, f"{name}: no {call} of {dtype}: {write}"
            for flag in ("average", "nan", "checksum"):
                assert any(flag in row["with"] and row["dtype"] == dtype for row in rows), (
                    name,
                    flag,
                    write,
                )
        for parameter in family["parameters"]:
            # Parameters that came later are left out at their defaults.
            numbers = {row["layers"][0][2].get(parameter["name"]) for row in rows}
            ends = {
                "choice": len(parameter["choices"]) - 1,
                "boolean": 1,
                "integer": parameter["high"],
            }
            end = WIDEST.get((name, parameter["name"]), ends[parameter["kind"]])
            assert end in numbers, (name, parameter["name"], write)
    assert any(row["algorithm"] == "direct" for row in ROWS)
    assert {row["dtype"] for row in ROWS} == NUMBERS.keys()
    assert {row.get("op", "SUM") for row in ROWS} == OPS.keys()
    reduces = {(row["algorithm"], row["link"]) for row in ROWS if row["operation"] == "reduce"}
    assert len(reduces) >= 4, reduces
