"""Decided bits in checkpoints and pickles, and restored states that are refused."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import torch_cgx
from cgx_utils import CGXState
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.deciding import make_state, shown_bits, spied, take_step, uneven_model
from tests.utils.training import wrap


def _resumed(rank, world_size, way):
    def run(model, state, steps):
        bits = []
        plans = spied(state)
        for step in steps:
            take_step(model, rank, step)
            bits.append(shown_bits(plans[-1]))
        return bits

    whole_state = make_state()
    whole = run(wrap(uneven_model(), whole_state), whole_state, range(9))
    state = make_state()
    model = wrap(uneven_model(), state)
    first = run(model, state, range(4))
    if way == "state_dict":
        saved = pickle.dumps(state.state_dict())
        state = make_state()
        state.load_state_dict(pickle.loads(saved))
    else:
        del state.plan  # the spy
        state = pickle.loads(pickle.dumps(state))
    second = run(wrap(model.module, state), state, range(4, 9))
    same = state.state_dict()["adaptive"] == whole_state.state_dict()["adaptive"]
    return whole, first + second, same


def test_a_decision_survives_a_checkpoint():
    results = run_pooled(_resumed, 2, "state_dict")
    assert results[0] == results[1]
    whole, resumed, equal = results[0]
    assert whole == resumed and equal
    assert len({str(bits) for bits in whole}) > 1


def test_a_pickled_state_keeps_decisions():
    results = run_pooled(_resumed, 2, "pickle")
    assert results[0] == results[1]
    whole, resumed, _ = results[0]
    # The decision that was under way at step 4 is not in the pickle: step 5 is measured instead.
    assert whole[:4] == resumed[:4] and resumed[4] == whole[3]


class _Other(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Linear(64, outputs)

    def forward(self, x):
        return self.first(x)


def _other_model(rank, world_size):
    state = make_state()
    model = wrap(uneven_model(), state)
    for step in range(3):
        take_step(model, rank, step)
    saved = state.state_dict()
    found = []
    for outputs in (128, 40):
        other = make_state()
        other.load_state_dict(saved)  # the names are not known yet
        wrapped = wrap(_Other(outputs), other)
        calls = torch_cgx.stats()["calls"]
        found.append(failure(wrapped(torch.ones(2, 64)).sum().backward))
        assert torch_cgx.stats()["calls"] == calls
        named = make_state(named_parameters=_Other(outputs))
        found.append(failure(lambda named=named: named.load_state_dict(saved)))
    return found


def test_a_state_of_another_model_is_refused_before_anything_is_sent():
    first, second = run_pooled(_other_model, 2)
    assert first == second
    missing = "there 'norm.weight' has 128 values, here no parameter is named 'norm.weight'"
    size = "there 'first.weight' has 8192 values, here 'first.weight' has 2560 values"
    for text, words in zip(first, [missing, missing, size, size], strict=True):
        assert text.startswith("ValueError: the restored state is of another model: ")
        assert words in text and "allowed: a state of a model with the same parameters" in text


_ADAPTIVE = {"step": 5, "due": 8, "bits": {"a": 3}, "errors": {"a": 0.1}, "model": {"a": 64}}


@pytest.mark.parametrize(
    ("saved", "error", "words"),
    [
        ([1], TypeError, "given list; allowed: what CGXState.state_dict() returned"),
        ({}, ValueError, "version None; allowed: 1"),
        ({"version": 2}, ValueError, "version 2; allowed: 1"),
        ({"version": 1, "adaptive": {}}, ValueError, "step=None; allowed: int"),
        ({"version": 1, "adaptive": 3}, ValueError, "step=None; allowed: int"),
        (
            {"version": 1, "adaptive": {**_ADAPTIVE, "bits": [3]}},
            ValueError,
            "bits=[3]; allowed: dict",
        ),
        (
            {"version": 1, "adaptive": {**_ADAPTIVE, "bits": {"a": 5}}},
            ValueError,
            "5 bits for 'a'; allowed: the candidates (1, 2, 3, 4, 6, 8)",
        ),
    ],
)
def test_what_no_state_has_written_is_refused(saved, error, words):
    state = make_state()
    before = state.state_dict()
    with pytest.raises(error) as caught:
        state.load_state_dict(saved)
    assert words in str(caught.value)
    assert state.state_dict() == before


def test_a_decision_needs_a_state_that_decides():
    with pytest.raises(ValueError, match="section 'adaptive', but this CGXState has none; allowed"):
        CGXState().load_state_dict({"version": 1, "adaptive": _ADAPTIVE})
    CGXState().load_state_dict(CGXState().state_dict())
    make_state().load_state_dict(CGXState().state_dict())
