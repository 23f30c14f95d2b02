"""What makes deciding bits fail: budgets, candidates and ranks that do not fit."""

from __future__ import annotations

import pytest

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.deciding import make_state, take_step, uneven_model
from tests.utils.training import wrap


def _cannot(rank, world_size):
    state = make_state(AdaptiveBits(error_budget=1e-3, candidates=(2, 4)))
    model = wrap(uneven_model(), state)
    take_step(model, rank, 0)
    take_step(model, rank, 1)
    calls = torch_cgx.stats()["compressed_calls"]
    found = failure(lambda: take_step(model, rank, 2))
    assert torch_cgx.stats()["compressed_calls"] == calls
    return found


def test_a_budget_that_no_candidate_meets():
    first, second = run_pooled(_cannot, 2)
    assert first == second
    assert first.startswith(
        "ValueError: error_budget=0.001 cannot be met: the relative error of 2 "
    )
    assert "candidates (2, 4) is 0." in first and "allowed: that or more, or more bits" in first


def _refused_candidate(rank, world_size):
    model = wrap(uneven_model(), make_state(AdaptiveBits(3), {"codec": "bf16"}))
    calls = torch_cgx.stats()["calls"]
    found = failure(lambda: take_step(model, rank, 0))
    assert torch_cgx.stats()["calls"] == calls
    return found


def test_a_candidate_that_the_codec_does_not_have():
    first, second = run_pooled(_refused_candidate, 2)
    assert first == second
    assert "adaptive: candidates has 1, for '" in first and "bits='1' is not allowed" in first


def _different(rank, world_size):
    model = wrap(uneven_model(), make_state(AdaptiveBits(3, every=1 + rank)))
    return failure(lambda: [take_step(model, rank, step) for step in range(6)])


def test_ranks_with_different_parameters_get_an_error():
    for text in run_pooled(_different, 2, timeout=40, group_timeout=10):
        assert text.startswith("MismatchError") and "ranks disagree on the collective" in text


def test_adaptive_is_an_adaptive_bits():
    with pytest.raises(TypeError, match="adaptive=3; allowed: an AdaptiveBits, None"):
        CGXState(adaptive=3)
