"""Files and checkpoints that version 1 of the formats wrote stay readable (golden_files.json)."""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.bounded import golden_states
from tests.bounded.helpers import error, same
from torch_cgx import bounded
from torch_cgx.bounded.checkpoint import BoundedLoadPlanner

GOLDEN = json.loads(Path(__file__).with_name("golden_files.json").read_text())


def written(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(base64.b64decode(GOLDEN["files"][name]))
    return path


def digest(tensor: torch.Tensor) -> str:
    values = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def test_a_file_of_version_1_is_read_bit_for_bit(tmp_path):
    path = written("mixed", tmp_path)
    back, state = bounded.load(path), golden_states.mixed()
    model = back["model"]
    assert {name: digest(x) for name, x in model.items()} == GOLDEN["digests"]
    assert model["head.weight"] is model["embedding.weight"]
    assert same(model._metadata, state["model"]._metadata)
    for name in ("norm.weight", "count", "flags"):
        assert torch.equal(model[name], state["model"][name])
    assert 0 < error(state["model"]["half"], model["half"]) <= 1e-2
    x, y = (one["optimizer"]["state"][0]["exp_avg"].double() for one in (state, back))
    assert ((x - y).abs() <= 1e-2 * x.abs()).all()
    assert list(back) == list(state) and back[7] == state[7]
    assert same(back["numbers"], state["numbers"])
    assert back["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    part = bounded.load(path, keys=["model.norm.weight", "numbers.3"])
    assert torch.equal(part["model.norm.weight"], state["model"]["norm.weight"])
    assert part["numbers.3"] is True


@pytest.mark.parametrize("name", ["repeated", "number", "nothing"])
def test_files_of_version_1_without_tensors(tmp_path, name):
    assert same(bounded.load(written(name, tmp_path)), golden_states.others()[name])


def test_a_checkpoint_of_version_1_is_read(tmp_path):
    for name, data in GOLDEN["folder"].items():
        (tmp_path / name).write_bytes(base64.b64decode(data))
    saved, state = golden_states.checkpoint(), golden_states.checkpoint()
    for x in state["model"].values():
        x.reshape(-1).view(torch.uint8).zero_()
    state["step"], state["text"] = 0, ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")
        dcp.load(state, checkpoint_id=tmp_path, planner=BoundedLoadPlanner())
    assert (state["step"], state["text"]) == (3, "run")
    for name in ("norm", "count"):
        assert torch.equal(saved["model"][name], state["model"][name])
    for name in ("weight", "half"):
        assert 0 < error(saved["model"][name], state["model"][name]) <= 1e-2
    eighths = [one["model"]["eighth"].view(torch.uint8) for one in (saved, state)]
    assert torch.equal(*eighths)
