"""What torch.distributed.checkpoint keeps for a tensor: a payload, bound to its place.

    a pickle of 60 bytes that calls `needs_bounded_load_planner` of torch_cgx.bounded.checkpoint
    a file of bounded.save (_index.py) of
        {"checkpoint": id, "name": str, "offsets": [int, ...], "tensor": one}

checkpoint: a number drawn when the checkpoint is planned, which its metadata has, too, in hex, or
None; offsets: where in the whole tensor the shard begins. A payload at another's place, or of an
older checkpoint, is refused. The pickle is for torch.load, which the planners and converters of
torch call: its error says what to call instead.

Before, the payload stood alone, and the metadata had no number.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_cgx.bounded import _tree
from torch_cgx.bounded._index import HEADER, Entry, Memory, read_index, write_index
from torch_cgx.bounded._payload import Payload, PayloadError, open_payload

_PICKLE = b"ctorch_cgx.bounded.checkpoint\nneeds_bounded_load_planner\n)R."
_PAYLOAD = b"CGXB"


class Place(NamedTuple):
    """Of a payload: which checkpoint, by its number (None: of a former version), which tensor, and
    where in it.
    """

    checkpoint: str | None
    name: str
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} at {list(self.offsets)}"


def is_record(data: memoryview) -> bool:
    return data[: len(_PICKLE)] == _PICKLE or data[: len(_PAYLOAD)] == _PAYLOAD


def write_record(payload: torch.Tensor, tensor: torch.Tensor, place: Place) -> io.BytesIO:
    """At its start."""
    tree = _tree.Tree({**place._asdict(), "offsets": list(place.offsets), "tensor": tensor})
    entry = Entry.of(payload, tensor, place.name)
    header, index = write_index([entry], tree.json([0]), HEADER.size + payload.numel())
    record = io.BytesIO()
    for part in (_PICKLE, header, payload.numpy().data, index):
        record.write(part)
    record.seek(0)
    return record


def read_record(data: memoryview, expected: Place) -> Payload:
    """The payload of a place. PayloadError: it is of another one, or was altered."""
    if data[: len(_PAYLOAD)] == _PAYLOAD:
        if expected.checkpoint is not None:
            raise PayloadError(
                "the payload is bound to no tensor and checkpoint, as former versions wrote it: it "
                "is of another checkpoint"
            )
        return open_payload(data)
    source = Memory(data[len(_PICKLE) :])
    index = read_index(source)
    found = _place(_tree.decode(index.state, _number))
    if found is None or len(index.entries) != 1:
        raise PayloadError("the record is none of one tensor and its place")
    if found[1:] != expected[1:]:
        raise PayloadError(f"the payload is that of {found}, expected {expected}")
    if found.checkpoint != expected.checkpoint:
        raise PayloadError(
            f"the payload is of another checkpoint ({found.checkpoint}; the metadata is of "
            f"{expected.checkpoint})"
        )
    return index.payload(source, 0)


def _number(place: int | _tree.View) -> torch.Tensor:
    """Of a tensor that is not read yet."""
    if place != 0:
        raise PayloadError(f"the record holds {place} for its tensor")
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def _place(state: object) -> Place | None:
    if not isinstance(state, dict) or list(state) != [*Place._fields, "tensor"]:
        return None
    checkpoint, name, offsets = (state[field] for field in Place._fields)
    numbers = isinstance(offsets, list) and all(type(one) is int for one in offsets)
    if not (numbers and isinstance(name, str) and isinstance(checkpoint, str | None)):
        return None
    return Place(checkpoint, name, tuple(offsets))


def place_of(checkpoint: str | None, name: str, offsets: Sequence[int] | None) -> Place:
    return Place(checkpoint, name, tuple(offsets or ()))
