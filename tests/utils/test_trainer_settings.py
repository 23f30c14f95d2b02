"""What the integrations of trainers share: the state that a user gives, and its files."""

from __future__ import annotations

import pytest
import torch

from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.trainers.settings import for_rank, load, save, state_of


def test_keywords_make_a_state():
    assert state_of(None, {"bits": 2}).compression_params == {"bits": 2}
    state = CGXState()
    assert state_of(state, {}) is state


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="both a state and bits, seed; allowed: a CGXState, or"):
        state_of(CGXState(), {"seed": 1, "bits": 4})
    with pytest.raises(TypeError, match="state=4; allowed: a CGXState, None"):
        state_of(4, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bit_width"):
        state_of(None, {"bit_width": 4})


def test_a_new_rank_has_the_decision_and_no_residuals():
    states = [{"version": 1, "adaptive": {"n": r}, "error_feedback": {"rank": r}} for r in range(2)]
    assert for_rank(states, 1) is states[1]
    assert for_rank(states, 2) == {"version": 1, "adaptive": {"n": 0}}


def _state() -> CGXState:
    return CGXState(adaptive=AdaptiveBits(average_bits=3))


def test_files_are_by_rank_and_load_with_weights_only(tmp_path):
    save(_state(), tmp_path / "new", 1)
    save(_state(), tmp_path / "new", 0, "_1")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "cgx_state_0_1.pt",
        "cgx_state_1.pt",
    ]
    saved = torch.load(tmp_path / "new" / "cgx_state_1.pt", weights_only=True)
    assert saved == _state().state_dict()


def test_a_file_that_is_missing_is_a_warning(tmp_path, recwarn):
    with pytest.warns(UserWarning, match=r"has no cgx_state_3\.pt; the CGXState begins anew"):
        load(_state(), tmp_path, 3)
    save(_state(), tmp_path, 0)
    recwarn.clear()
    load(_state(), tmp_path, 3)  # a rank that is new goes on from rank 0's decision
    assert not recwarn.list
    with pytest.raises(ValueError, match="has a section 'adaptive', but this CGXState has none"):
        load(CGXState(), tmp_path, 3)
