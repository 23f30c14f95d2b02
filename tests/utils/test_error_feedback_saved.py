"""Residuals of CGXState in checkpoints: restarts, other ranks, other models."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings

import pytest
import torch
from torch import nn

import torch_cgx
from cgx_utils import CGXState
from tests.distributed import run_pooled
from tests.utils.feedback import MEMORIES, feedback_state
from tests.utils.training import (
    batch,
    digest,
    loss_of,
    make_model,
    wrap,
)


def _train(model, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        optimizer.step()
    return digest(dict(model.module.named_parameters()))


def _restart(rank, world_size, memory):
    state = feedback_state(memory)
    model = wrap(make_model(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    _train(model, optimizer, rank, range(3))
    torch.save((model.module.state_dict(), state.state_dict()), file := io.BytesIO())
    pickled = pickle.dumps(state)
    straight = _train(model, optimizer, rank, range(3, 6))
    ends = []
    for how in ("state_dict", "pickle"):
        file.seek(0)
        weights, saved = torch.load(file)
        again = make_model()
        again.load_state_dict(weights)
        fresh = feedback_state(memory) if how == "state_dict" else pickle.loads(pickled)
        if how == "state_dict":
            fresh.load_state_dict(saved)
        before = fresh.state_dict()["error_feedback"]["residuals"]
        for name, residual in saved["error_feedback"]["residuals"].items():
            assert torch.equal(residual, before[name]), (how, name)
        model = wrap(again, fresh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        ends.append(_train(model, optimizer, rank, range(3, 6)))
    return straight, ends


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_restart_goes_on_where_the_run_was(memory):
    for straight, ends in run_pooled(_restart, 2, memory):
        assert ends == [straight, straight]


def _saved(rank, world_size):
    state = feedback_state()
    model = wrap(make_model(), state)
    loss_of(model, batch(rank, 0)).backward()
    return state.state_dict()


def _restored(rank, world_size, saved):
    state = feedback_state()
    state.load_state_dict(saved[rank])
    model = wrap(make_model(), state)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loss_of(model, batch(rank, 1)).backward()
    return [str(w.message) for w in said if "residual" in str(w.message)]


def test_another_number_of_ranks_says_what_is_dropped():
    saved = run_pooled(_saved, 3)
    assert run_pooled(_restored, 3, saved) == [[]] * 3
    fewer = run_pooled(_restored, 2, saved)
    for rank, (text,) in enumerate(fewer):
        assert f"saved by rank {rank} of 3 and are restored on rank {rank} of 2" in text
        assert "what ranks 2 to 2 owed is dropped" in text
    two = run_pooled(_saved, 2)
    more = run_pooled(_restored, 3, [*two, two[0]])
    assert "ranks 2 to 2 begin with zeros" in more[0][0]


def _of_another_model(rank, world_size, saved):
    found = []
    for change in ("name", "size"):
        wrong = copy.deepcopy(saved)
        residuals = wrong["error_feedback"]["residuals"]
        if change == "name":
            residuals["head.weight"] = residuals.pop("first.weight")
        else:
            residuals["first.weight"] = torch.zeros(3, 4)
        state = feedback_state()
        state.load_state_dict(wrong)
        model = wrap(make_model(), state)
        calls = torch_cgx.stats()["calls"]
        try:
            loss_of(model, batch(rank, 0)).backward()
        except ValueError as error:
            found.append(str(error))
        assert torch_cgx.stats()["calls"] == calls
        del model
    return found


def test_residuals_of_another_model_are_refused_before_anything_is_sent():
    (saved,) = run_pooled(_saved, 1)
    for name, size in run_pooled(_of_another_model, 2, saved):
        assert "a residual for 'head.weight'; the model has 7 parameters: first.weight" in name
        assert "'first.weight' has the shape (3, 4); allowed: the parameter's 8192 values" in size


def test_names_that_are_given_are_compared_at_once():
    (saved,) = run_pooled(_saved, 1)
    state = feedback_state(named_parameters=nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"a residual for 'first.weight'; the model has 2"):
        state.load_state_dict(saved)


SECTION = {
    "memory": "fp32", "rank": 0, "world_size": 2, "sequence": 0, "residuals": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        (3, TypeError, "given int; allowed: what CGXState.state_dict() returned"),
        ({}, ValueError, "version None; allowed: 1"),
        ({"version": 2}, ValueError, "version 2; allowed: 1"),
        ({"version": 1, "steps": 3}, ValueError, "steps holds 3; allowed: a dict with step"),
        ({"version": 1, "steps": {"step": 1.0, "number": 1}}, TypeError, "step=1.0; allowed"),
        ({"version": 1, "steps": {"step": 1, "number": -1}}, ValueError, "number=-1; allowed"),
        ({"version": 1, "ranks": 3}, TypeError, "has ranks=3; allowed: a dict"),
        ({"version": 1, "ranks": {"x": ()}}, TypeError, "has () for rank 'x'; allowed: pairs"),
        ({"version": 1, "ranks": {"0": {}}}, TypeError, "has {} for rank '0'; allowed: pairs"),
        ({"version": 1, "ranks": {"0": (("error_feedback", 3),)}}, ValueError, "holds 3; allowed"),
        ({"version": 1, "error_feedback": 3}, ValueError, "error_feedback holds 3; allowed"),
        ({"version": 1, "error_feedback": {"rank": 0}}, ValueError, "holds ['rank']; allowed"),
        ({"residuals": 3}, TypeError, "residuals=3; allowed: a dict by name"),
        ({"residuals": {"a": 3}}, TypeError, "of 'a' is int; allowed: tensors of"),
        ({"residuals": {"a": torch.zeros(2).half()}}, TypeError, "'a' is torch.float16; allowed"),
        ({"residuals": {"a": torch.tensor([torch.nan])}}, ValueError, "'a' holds a NaN or Inf"),
        ({"rank": "0"}, TypeError, "rank='0'; allowed: integers >= 0"),
        ({"world_size": None}, TypeError, "world_size=None; allowed: integers >= 0"),
        ({"sequence": -1}, ValueError, "sequence=-1; allowed: integers >= 0"),
    ],
)
def test_a_bad_state_is_named(state, error, text):
    if isinstance(state, dict) and set(state) & set(SECTION) and "version" not in state:
        state = {"version": 1, "error_feedback": {**SECTION, **state}}
    with pytest.raises(error, match=re.escape(text)):
        feedback_state().load_state_dict(state)


def test_a_state_without_error_feedback_drops_residuals_with_a_warning():
    section = {**SECTION, "residuals": {"a": torch.zeros(2)}}
    with pytest.warns(UserWarning, match="drops the residuals of 1 parameters"):
        CGXState().load_state_dict({"version": 1, "error_feedback": section})
    with pytest.raises(ValueError, match="error_feedback holds 3; allowed"):
        CGXState().load_state_dict({"version": 1, "error_feedback": 3})
    assert CGXState().state_dict() == {"version": 1}
    CGXState().load_state_dict({"version": 1})


def test_the_hook_says_what_is_wrong_with_names():
    state = feedback_state()
    state.load_state_dict(
        {"version": 1, "error_feedback": {**SECTION, "residuals": {"a": torch.zeros(2)}}}
    )
    with pytest.raises(RuntimeError, match="names for the restored residuals"):
        state.residual([nn.Parameter(torch.zeros(2))], torch.zeros(2), None)  # type: ignore[arg-type]
