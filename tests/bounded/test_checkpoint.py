"""torch.distributed.checkpoint with a bound: plain tensors and shards, one process and several."""

from __future__ import annotations

import dataclasses
import io
import pickle
import re
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

from tests.bounded.helpers import error, gaussian
from tests.calls import failure
from tests.distributed import ROOT, run_pooled
from torch_cgx import bounded
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner, BoundedSavePlanner, to_torch_save


@pytest.fixture(autouse=True)
def _quiet():
    """torch warns of each checkpoint that is made without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        yield


def state_of(seed: int) -> dict[str, Any]:
    """Equal in structure, different in every value."""
    return {
        "model": {
            "weight": gaussian(300, 200, seed=seed),
            "norm": gaussian(200, seed=seed),
            "scalar": torch.tensor(0.1 + seed),
            "half": gaussian(40, 3, seed=seed).to(torch.bfloat16),
            "pairs": torch.complex(gaussian(50, seed=seed), gaussian(50, seed=seed + 1)),
            "count": torch.tensor(7 + seed),
            "flags": gaussian(20, seed=seed) > 0,
            "eighth": gaussian(20, seed=seed).to(torch.float8_e4m3fn),
            "empty": torch.empty(0, 4),
        },
        "optimizer": {"state": {0: {"exp_avg": gaussian(200, 30, seed=seed).t()}}},
        "step": 3 + seed,
        "text": f"run {seed}",
    }


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def save(state: dict[str, Any], folder: Path, **options: Any) -> None:
    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(**options))


def load(state: dict[str, Any], folder: Path) -> None:
    dcp.load(state, checkpoint_id=folder, planner=BoundedLoadPlanner())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_state_comes_back_within_the_bound(tmp_path, threads):
    saved, state = state_of(0), state_of(10)
    storage = dcp.FileSystemWriter(tmp_path / "a", thread_count=threads)
    planner = BoundedSavePlanner(max_error=1e-3, overrides={r"norm$": 0, r"exp_avg": 0.1})
    dcp.save(saved, storage_writer=storage, planner=planner)
    load(state, tmp_path / "a")
    assert (state["step"], state["text"]) == (3, "run 0")
    bounds = {"weight": 1e-3, "norm": 0, "scalar": 1e-3, "half": 1e-3, "count": 0, "empty": 0}
    for name, bound in bounds.items():
        assert error(saved["model"][name], state["model"][name]) <= bound, name
    assert error(saved["model"]["weight"], state["model"]["weight"]) > 5e-4
    pairs = [torch.view_as_real(one["model"]["pairs"]) for one in (saved, state)]
    assert 5e-4 < error(*pairs) <= 1e-3
    assert torch.equal(saved["model"]["flags"], state["model"]["flags"])
    eighths = [one["model"]["eighth"].view(torch.uint8) for one in (saved, state)]
    assert torch.equal(*eighths)
    moments = [one["optimizer"]["state"][0]["exp_avg"] for one in (saved, state)]
    assert 0.05 < error(*moments) <= 0.1
    dcp.save(saved, checkpoint_id=tmp_path / "exact")
    assert size(tmp_path / "a") < 0.6 * size(tmp_path / "exact")


def test_the_load_planner_reads_what_torchs_own_planner_wrote(tmp_path):
    saved, state = state_of(0), state_of(10)
    dcp.save(saved, checkpoint_id=tmp_path / "a")
    load(state, tmp_path / "a")
    for name in ("weight", "norm", "half", "scalar", "count", "empty"):
        assert torch.equal(saved["model"][name], state["model"][name]), name
    assert torch.equal(
        saved["optimizer"]["state"][0]["exp_avg"], state["optimizer"]["state"][0]["exp_avg"]
    )
    assert state["text"] == "run 0"


def test_torchs_own_readers_say_what_to_call_instead(tmp_path):
    save({"a": gaussian(30)}, tmp_path / "a", max_error=0)
    words = "BoundedLoadPlanner, or convert it by .*to_torch_save"
    with pytest.raises(dcp.CheckpointException, match=words):
        dcp.load({"a": gaussian(30)}, checkpoint_id=tmp_path / "a")
    with pytest.raises(dcp.CheckpointException, match=words):
        dcp_to_torch_save(tmp_path / "a", tmp_path / "b")
    for weights_only in (True, False):
        with pytest.raises(bounded.PayloadError, match=words):
            torch.load(tmp_path / "a" / "__0_0.distcp", weights_only=weights_only)
    forgotten = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:  # as in a process that has not imported torch_cgx
        with pytest.raises(
            pickle.UnpicklingError, match="torch_cgx.bounded.checkpoint.needs_bound"
        ):
            torch.load(tmp_path / "a" / "__0_0.distcp", weights_only=True)
    finally:
        torch.serialization.add_safe_globals(forgotten)


@pytest.mark.parametrize("planner", [BoundedSavePlanner, dcp.DefaultSavePlanner])
def test_a_checkpoint_becomes_a_file_of_torch_save(tmp_path, planner):
    saved = state_of(0)
    options = {"max_error": 1e-3} if planner is BoundedSavePlanner else {}
    dcp.save(saved, checkpoint_id=tmp_path / "a", planner=planner(**options))
    to_torch_save(tmp_path / "a", tmp_path / "b")
    state = torch.load(tmp_path / "b", weights_only=True)
    assert list(state) == list(saved) and (state["step"], state["text"]) == (3, "run 0")
    for name, x in saved["model"].items():
        y = state["model"][name]
        assert y.dtype == x.dtype and y.shape == x.shape
        if x.is_complex():
            x, y = torch.view_as_real(x), torch.view_as_real(y)
        assert error(x, y) <= 1e-3, name
    ((_, moments),) = state["optimizer"]["state"].items()  # torch makes strings of keys
    assert error(saved["optimizer"]["state"][0]["exp_avg"], moments["exp_avg"]) <= 1e-3


def test_other_dtypes_and_memory_of_the_target(tmp_path):
    x = gaussian(30, 20)
    save({"a": x, "b": x}, tmp_path / "a", max_error=0)
    state = {"a": torch.zeros(30, 20, dtype=torch.float64), "b": torch.zeros(20, 30).t()}
    load(state, tmp_path / "a")
    assert torch.equal(state["a"], x.double()) and torch.equal(state["b"], x)


def test_async_save(tmp_path):
    x = gaussian(300)
    planner = BoundedSavePlanner(max_error=1e-2)
    dcp.async_save({"a": x}, checkpoint_id=tmp_path / "a", planner=planner).result()
    state = {"a": torch.zeros(300)}
    load(state, tmp_path / "a")
    assert 0 < error(x, state["a"]) <= 1e-2


def test_what_has_no_payload_is_written_as_by_torch(tmp_path):
    more = torch.arange(3.0)
    saved = {
        "two": TwoTensor(more, more + 1),
        "eighth": more.to(torch.float8_e5m2),
        "plain": nn.Parameter(more),
    }
    for name, x in {**saved, "sparse": torch.eye(3).to_sparse()}.items():
        planner = BoundedSavePlanner(max_error=0)
        planner.set_up_planner({name: x}, is_coordinator=True)
        plans, _ = planner.create_global_plan([planner.create_local_plan()])
        (item,) = planner.finish_plan(plans[0]).items
        assert (item.type == WriteItemType.BYTE_IO) == (name == "plain"), name
    save(saved, tmp_path / "a", max_error=0)
    state = {name: torch.zeros_like(x) for name, x in saved.items()}
    with torch.serialization.safe_globals([TwoTensor]):
        load(state, tmp_path / "a")
    assert torch.equal(state["two"].b, more + 1) and torch.equal(state["plain"], more)


def test_autograd_notices_what_is_loaded_in_place(tmp_path):
    save({"w": gaussian(100), "d": gaussian(100)}, tmp_path / "a", max_error=0)
    w, d = nn.Parameter(gaussian(100, seed=1)), torch.zeros(100, dtype=torch.float64)
    loss = w.square().sum()
    with torch.inference_mode():
        frozen = torch.zeros(100)
    before = w._version
    load({"w": w, "d": d}, tmp_path / "a")
    assert w._version > before and d._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        load({"w": frozen}, tmp_path / "a")
    assert torch.equal(frozen, gaussian(100))


def test_cached_plans_are_of_tensors(tmp_path):
    for step in range(3):
        planner = BoundedSavePlanner(max_error=1e-2, enable_plan_caching=True)
        x = gaussian(300, seed=step)
        dcp.save({"a": x}, checkpoint_id=tmp_path / str(step), planner=planner)
        state = {"a": torch.zeros(300)}
        load(state, tmp_path / str(step))
        assert 0 < error(x, state["a"]) <= 1e-2


# ---- several ranks


def _shards(rank, world_size, folder):
    """Tensors of uneven shards, saved on all ranks; loaded with other placements."""
    mesh = init_device_mesh("cpu", (world_size,))
    whole = {"rows": gaussian(101, 40), "columns": gaussian(30, 50, seed=1), "same": gaussian(9)}
    whole["norm"] = gaussian(70, seed=2)
    places = {"rows": Shard(0), "columns": Shard(1), "same": Replicate(), "norm": Shard(0)}
    state: dict[str, Any] = {
        name: distribute_tensor(x, mesh, [places[name]]) for name, x in whole.items()
    }
    for call in (lambda: bounded.compress(state["rows"], max_error=0),
                 lambda: bounded.save(state, folder, max_error=0)):  # fmt: skip
        assert "a DTensor has no payload" in failure(call)
    state["plain"] = gaussian(25, seed=3)
    state["step"] = 4
    dcp.save(
        state,
        checkpoint_id=folder,
        planner=BoundedSavePlanner(max_error=1e-3, overrides={"norm": 0}),
    )
    moved = {"rows": Shard(1), "columns": Shard(0), "same": Shard(0), "norm": Replicate()}
    errors = {}
    for placements in (places, moved):
        again: dict[str, Any] = {
            name: distribute_tensor(torch.zeros_like(x), mesh, [placements[name]])
            for name, x in whole.items()
        }
        again["plain"], again["step"] = torch.zeros(25), 0
        dcp.load(again, checkpoint_id=folder, planner=BoundedLoadPlanner())
        assert again["step"] == 4 and error(again["plain"], state["plain"]) <= 1e-3
        for name, x in whole.items():
            assert isinstance(again[name], DTensor)
            errors[name] = error(x, again[name].full_tensor())
            assert errors[name] <= 1e-3
    return errors


@pytest.mark.parametrize("backend", ["gloo", "cgx"])
def test_shards_are_bounded_and_load_onto_other_shards(tmp_path, backend):
    ranks = 3 if backend == "gloo" else 2
    found = run_pooled(_shards, ranks, tmp_path / "a", backend=backend)
    assert found == [found[0]] * ranks
    assert found[0]["norm"] == 0 and all(found[0][name] > 0 for name in ("rows", "columns"))
    # And onto one process, without a group.
    state = {"rows": torch.zeros(101, 40), "norm": torch.zeros(70)}
    load(state, tmp_path / "a")
    assert error(state["rows"], gaussian(101, 40)) <= 1e-3
    assert torch.equal(state["norm"], gaussian(70, seed=2))


def _relative(rank, world_size, folder):
    x = torch.cat([1e-3 * gaussian(500), gaussian(500, seed=1)])
    mesh = init_device_mesh("cpu", (world_size,))
    state = {"a": distribute_tensor(x, mesh, [Shard(0)])}
    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(relative=1e-2))
    again = {"a": distribute_tensor(torch.zeros_like(x), mesh, [Shard(0)])}
    dcp.load(again, checkpoint_id=folder, planner=BoundedLoadPlanner())
    halves = zip(x.split(500), again["a"].full_tensor().split(500), strict=True)
    return [error(a, b) / float(a.max() - a.min()) for a, b in halves]


def test_relative_is_of_the_range_of_a_shard(tmp_path):
    for found in run_pooled(_relative, 2, tmp_path / "a", backend="gloo"):
        assert all(0.5e-2 < one <= 1.0001e-2 for one in found)


def _fully_sharded(rank, world_size, folder):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def make(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(gaussian(4, 64, seed=rank)).square().sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = make(0)
    weights, moments = get_state_dict(model, optimizer)
    expected = {name: x.full_tensor() for name, x in weights.items()}
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id=folder, planner=BoundedSavePlanner(max_error=1e-4))
    other, others = make(1)
    weights, moments = get_state_dict(other, others)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder, planner=BoundedLoadPlanner())
    set_state_dict(
        other, others, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    for name, x in other.state_dict().items():
        assert error(expected[name], x.full_tensor()) <= 1e-4, name
    return others.state_dict()["state"][0]["step"].item()


def test_fsdp(tmp_path):
    assert run_pooled(_fully_sharded, 2, tmp_path / "a", backend="gloo") == [1, 1]


# ---- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "a bound is missing"),
        ({"max_error": 1, "pointwise": 0.1}, "allowed: one of"),
        ({"relative": -1}, "relative is -1"),
        ({"max_error": 1, "overrides": {"(": 0}}, "regular expression"),
    ],
)
def test_bad_bounds_are_refused_when_the_planner_is_made(options, words):
    with pytest.raises(ValueError, match=words):
        BoundedSavePlanner(**options)


def test_a_tensor_that_has_no_payload_is_named(tmp_path):
    wide = torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64)
    with pytest.raises(dcp.CheckpointException, match=r"model\.wide: relative is"):
        save({"model": {"wide": wide}}, tmp_path / "a", relative=2.0)


@pytest.mark.parametrize("change", ["cut", "altered", "shape"])
def test_a_payload_that_was_cut_or_altered_is_named(tmp_path, change):
    save({"a": {"weight": gaussian(1, 3000)}}, tmp_path / "a", max_error=1e-4)
    (file,) = (tmp_path / "a").glob("*.distcp")
    data = bytearray(file.read_bytes())
    start = data.find(b"CGXB")
    (end,) = struct.unpack_from("<Q", data, data.find(b"CGXF") + 8)  # where its index begins
    end += data.find(b"CGXF")
    if change == "cut":
        data = data[:-1]
    elif change == "altered":
        data[(start + end) // 2] ^= 4
    else:  # another valid payload, of which a row could be broadcast to the shape
        other = bounded.compress(gaussian(3000, 1), max_error=1e-4).numpy().tobytes()
        assert len(other) == end - start
        data[start:end] = other
    file.write_bytes(data)
    words = {"cut": "cut|ends", "altered": "block 0", "shape": r"float32 \[3000, 1\]"}[change]
    with pytest.raises(dcp.CheckpointException) as caught:
        load({"a": {"weight": torch.zeros(1, 3000)}}, tmp_path / "a")
    (cause,) = (failure[0] for failure in caught.value.failures.values())
    assert isinstance(cause, bounded.PayloadError)
    assert re.match(f"a.weight: .*({words})", str(cause)), cause


def test_the_storage_of_hugging_face_is_refused():
    planner = BoundedSavePlanner(max_error=1e-4)
    for data in ({}, {"shard_index": 1}):
        with pytest.raises(ValueError, match="HuggingFaceStorageWriter"):
            planner.finish_plan(SavePlan([], storage_data=data))
    assert planner.finish_plan(SavePlan([], storage_data={"mine": 1})).items == []


def test_data_may_be_resolved_again(tmp_path):
    planner = BoundedSavePlanner(max_error=1e-2)
    planner.set_up_planner({"a": gaussian(50)}, is_coordinator=True)
    plans, _ = planner.create_global_plan([planner.create_local_plan()])
    (item,) = planner.finish_plan(plans[0]).items
    first, second = planner.resolve_data(item), planner.resolve_data(item)
    assert isinstance(first, io.BytesIO) and isinstance(second, io.BytesIO)
    assert first.getvalue() == second.getvalue()
    payload = first.getvalue()[first.getvalue().find(b"CGXB") :]
    assert bounded.compress(gaussian(50), max_error=1e-2).numpy().tobytes() in payload
    assert dataclasses.is_dataclass(item) and item.tensor_data is not None


def test_bounded_alone_does_not_import_it():
    code = "import sys; from torch_cgx import bounded; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    modules = done.stdout.split()
    assert "torch_cgx.bounded" in modules and "torch.distributed.checkpoint" not in modules
