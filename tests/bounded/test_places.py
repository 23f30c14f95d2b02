"""Payloads that changed places, or are of another file, are refused: each is bound to its place."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from tests.bounded.helpers import gaussian
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner


def alike(seed: int) -> dict[str, Any]:
    """Tensors whose payloads are of equal length, as all their blocks are constant or raw."""
    model = {name: torch.full((300,), seed + i / 8 + 1) for i, name in enumerate(("q", "k", "v"))}
    model["bits"] = torch.randint(
        0, 256, (3000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return {"model": model, "optimizer": {"state": {0: {"m": torch.full((300,), seed + 1.5)}}}}


def payloads(data: bytes) -> list[tuple[int, int]]:
    """From where to where payloads lie in a file of bounded.save."""
    (end,) = struct.unpack_from("<Q", data, 8)
    starts = [match.start() for match in re.finditer(b"CGXB", data[:end])]
    return list(zip(starts, [*starts[1:], end], strict=True))


def test_payloads_that_were_exchanged_are_refused_by_name(tmp_path):
    bounded.save(alike(0), tmp_path / "a", max_error=0)
    data = (tmp_path / "a").read_bytes()
    (a, b), (c, d), *_ = payloads(data)
    assert b - a == d - c and data[a:b] != data[c:d]
    (tmp_path / "a").write_bytes(data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:])
    with pytest.raises(PayloadError, match="/a: model.q, at 24: .* belongs to another tensor"):
        bounded.load(tmp_path / "a")
    with pytest.raises(PayloadError, match="/a: model.k, at .* belongs to another tensor"):
        bounded.load(tmp_path / "a", keys=["model.k"])
    part = bounded.load(tmp_path / "a", keys=["model.v"])["model.v"]
    assert torch.equal(part, alike(0)["model"]["v"])


def test_payloads_of_an_older_file_are_refused_by_name(tmp_path):
    bounded.save(alike(0), tmp_path / "old", max_error=0)
    bounded.save(alike(1), tmp_path / "new", max_error=0)
    old, new = ((tmp_path / name).read_bytes() for name in ("old", "new"))
    names = ["model.q", "model.k", "model.v", "model.bits", "optimizer.state.0.m"]
    places = payloads(new)
    assert places == payloads(old) and len(places) == len(names)
    for name, (start, end) in zip(names, places, strict=True):
        (tmp_path / "new").write_bytes(new[:start] + old[start:end] + new[end:])
        with pytest.raises(PayloadError, match=f"/new: {name}, at {start}: .* another file"):
            bounded.load(tmp_path / "new")


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_another_shape_or_dtype_is_named(tmp_path, change):
    x = torch.full((20, 15), 2.0)
    bounded.save({"w": x}, tmp_path / "a", max_error=0)
    other = x.view(15, 20) if change == "shape" else x.view(torch.int32)
    payload = bounded.compress(other, max_error=0).numpy().tobytes()
    data = (tmp_path / "a").read_bytes()
    assert payloads(data) == [(24, 24 + len(payload))]
    (tmp_path / "a").write_bytes(data[:24] + payload + data[24 + len(payload) :])
    words = r"float32 \[15, 20\]" if change == "shape" else r"int32 \[20, 15\]"
    with pytest.raises(PayloadError, match=rf"w, at 24: .*{words}.* float32 \[20, 15\]"):
        bounded.load(tmp_path / "a")


def test_an_altered_byte_names_the_tensor(tmp_path):
    bounded.save({"model": {"a": gaussian(500), "b": gaussian(500)}}, tmp_path / "a", max_error=0.1)
    data = bytearray((tmp_path / "a").read_bytes())
    start, end = payloads(bytes(data))[1]
    for place in (start + 2, start + 20, end - 9):
        changed = data.copy()
        changed[place] ^= 16
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(PayloadError, match=f"/a: model.b, at {start}: "):
            bounded.load(tmp_path / "a")


# ---- torch.distributed.checkpoint


@pytest.fixture(autouse=True)
def _quiet():
    """torch warns of each checkpoint that is made without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def save(state: dict[str, Any], folder: Path, **options: Any) -> Metadata:
    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(max_error=0, **options))
    return dcp.FileSystemReader(folder).read_metadata()


def cause(state: dict[str, Any], folder: Path, metadata: Metadata) -> BaseException:
    """Why the checkpoint is refused with other metadata."""
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load(state, checkpoint_id=folder, planner=BoundedLoadPlanner())
    (failure,) = (failure[0] for failure in caught.value.failures.values())
    assert isinstance(failure, PayloadError)
    return failure


def test_checkpoints_refuse_payloads_that_were_exchanged(tmp_path):
    found = save(alike(0), tmp_path / "a")
    q, k = (index for index in found.storage_data if index.fqn in ("model.q", "model.k"))
    where = found.storage_data
    where[q], where[k] = where[k], where[q]
    failure = cause(alike(2), tmp_path / "a", found)
    assert re.match(r"model\.[qk]: the payload belongs to model\.[qk] at \[0\]", str(failure))


def test_checkpoints_refuse_the_payload_in_the_place_of_another_one(tmp_path):
    """The same, where the record around it has stayed."""
    found = save(alike(0), tmp_path / "a")
    file = tmp_path / "a" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = {
        index.fqn: data.find(b"CGXB", where.offset) for index, where in found.storage_data.items()
    }
    length = 12 + 2 + 1 + 9  # header, shape, table, a constant block
    places = [slice(at[name], at[name] + length) for name in ("model.q", "model.k")]
    data[places[0]], data[places[1]] = data[places[1]], data[places[0]]
    file.write_bytes(data)
    failure = cause(alike(2), tmp_path / "a", found)
    assert re.match(r"model\.[qk]: .* the payload belongs to another tensor", str(failure))


def test_checkpoints_refuse_payloads_of_an_older_one(tmp_path):
    """Also where a training was saved twice in the same step, with equal names and values."""
    old, new = save(alike(0), tmp_path / "old"), save(alike(0), tmp_path / "new")
    (tmp_path / "old" / "__0_0.distcp").rename(tmp_path / "new" / "old.distcp")
    for index in new.storage_data:
        changed = copy.deepcopy(new)
        changed.storage_data[index] = dataclasses.replace(
            old.storage_data[index], relative_path="old.distcp"
        )
        failure = cause(alike(2), tmp_path / "new", changed)
        assert re.match(f"{index.fqn}: .* another checkpoint", str(failure)), failure


@pytest.mark.parametrize("kind", ["payload", "tensor"])
def test_checkpoints_refuse_what_is_bound_to_no_place(tmp_path, kind):
    """A payload as version 1 wrote it, or what DefaultSavePlanner writes."""
    found, other = save({"w": gaussian(500)}, tmp_path / "a"), tmp_path / "a" / "__0_0.distcp"
    if kind == "payload":
        payload = bounded.compress(gaussian(500, seed=1), max_error=0.1)
        other.write_bytes(payload.numpy().tobytes())
    else:
        torch.save(gaussian(500, seed=1), other)
    (where,) = found.storage_data.values()
    where.offset, where.length = 0, other.stat().st_size
    failure = cause({"w": torch.zeros(500)}, tmp_path / "a", found)
    assert re.match("w: .*another checkpoint|w: the checkpoint has no payload", str(failure)), (
        failure
    )


def test_each_checkpoint_is_its_own_with_cached_plans(tmp_path):
    for step in range(3):
        planner = BoundedSavePlanner(max_error=0, enable_plan_caching=True)
        saved = {"places": gaussian(30, seed=step)}
        dcp.save(saved, checkpoint_id=tmp_path / str(step), planner=planner)
        state = {"places": torch.zeros(30)}
        dcp.load(state, checkpoint_id=tmp_path / str(step), planner=BoundedLoadPlanner())
        assert torch.equal(state["places"], saved["places"])
    new = dcp.FileSystemReader(tmp_path / "2").read_metadata()
    (tmp_path / "1" / "__0_0.distcp").replace(tmp_path / "2" / "__0_0.distcp")
    old = dcp.FileSystemReader(tmp_path / "1").read_metadata()
    new.storage_data = old.storage_data
    failure = cause({"places": torch.zeros(30)}, tmp_path / "2", new)
    assert "another checkpoint" in str(failure)
