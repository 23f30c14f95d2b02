"""Records: the bytes that torch.distributed.checkpoint stores for a tensor. A record is

    a pickle of 60 bytes that calls `needs_bounded_load_planner` of torch_cgx.bounded.checkpoint
    a file of bounded.save (_index.py) of
        {"checkpoint": id, "name": str, "offsets": [int, ...], "tensor": one}

checkpoint: a random number of the checkpoint, in hex, which its metadata has, too, or None;
offsets: where the shard begins in the whole tensor. A reader therefore refuses a payload that was
moved, or comes from an older checkpoint. The pickle is for torch's planners and converters, which
call torch.load: it raises an error that names the function to call instead.

Former versions wrote the payload alone, and no number into the metadata.
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
    """The place of a payload: the number of the checkpoint (None: of a former version), the name of
    the tensor, and where the payload begins in it.
    """

    checkpoint: str | None
    name: str
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} at {list(self.offsets)}"


def is_record(data: memoryview) -> bool:
    return data[: len(_PICKLE)] == _PICKLE or data[: len(_PAYLOAD)] == _PAYLOAD


def write_record(payload: torch.Tensor, tensor: torch.Tensor, place: Place) -> io.BytesIO:
    """A record, to be read from its start."""
    tree = _tree.Tree({**place._asdict(), "offsets": list(place.offsets), "tensor": tensor})
    entry = Entry.of(payload, tensor, place.name)
    header, index = write_index([entry], tree.json([0]), HEADER.size + payload.numel())
    record = io.BytesIO()
    for data in (_PICKLE, header, payload.numpy().data, index):
        record.write(data)
    record.seek(0)
    return record


def read_record(data: memoryview, expected: Place) -> Payload:
    """The payload of a record. PayloadError: it belongs to another place, or was altered."""
    if data[: len(_PAYLOAD)] == _PAYLOAD:
        if expected.checkpoint is not None:
            raise PayloadError(
                "the payload has no name and no number of a checkpoint, as former versions wrote "
                "it: it is of another checkpoint"
            )
        return open_payload(data)
    source = Memory(data[len(_PICKLE) :])
    index = read_index(source)
    found = _place(_tree.decode(index.state, _number))
    if found is None or len(index.entries) != 1:
        raise PayloadError("the record does not hold one tensor and its place")
    if found[1:] != expected[1:]:
        raise PayloadError(f"the payload belongs to {found}, expected {expected}")
    if found.checkpoint != expected.checkpoint:
        raise PayloadError(
            f"the payload is of another checkpoint ({found.checkpoint}; the metadata is of "
            f"{expected.checkpoint})"
        )
    return index.payload(source, 0)


def _number(place: int | _tree.View) -> torch.Tensor:
    """Stands for a tensor when the place is decoded: the tensor is read later."""
    if place != 0:
        raise PayloadError(f"the record names the tensor {place}, expected 0")
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
