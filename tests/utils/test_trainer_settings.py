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


def test_another_number_of_ranks_gets_the_residuals_of_all():
    own = [{"w": torch.full((4,), 1.0 + rank)} for rank in range(2)]
    kept = {"memory": "fp32", "world_size": 2}
    states = [
        {"version": 2, "n": r, "error_feedback": {**kept, "residuals": {str(r): own[r]}}}
        for r in range(2)
    ]
    assert for_rank(states, 1, 2) is states[1]
    merged = {**kept, "residuals": {"0": own[0], "1": own[1]}}
    assert for_rank(states, 2, 3) == {"version": 2, "n": 0, "error_feedback": merged}
    old = [
        {"version": 1, "error_feedback": {**kept, "rank": r, "sequence": 5, "residuals": own[r]}}
        for r in range(2)
    ]
    assert for_rank(old, 0, 1) == {"version": 2, "error_feedback": merged}
    assert for_rank([{"version": 1}], 2, 3) == {"version": 1}


def test_files_of_all_ranks_are_merged(tmp_path):
    for rank in range(4):
        section = {
            "memory": "fp32",
            "world_size": 4,
            "residuals": {str(rank): {"w": torch.ones(2)}},
        }
        torch.save({"version": 2, "error_feedback": section}, tmp_path / f"cgx_state_{rank}.pt")

    def loaded(rank, ranks):
        state = CGXState(error_feedback=True)
        load(state, tmp_path, rank, ranks)
        return sorted(state.state_dict()["error_feedback"]["residuals"])

    assert loaded(0, 2) == ["0", "2"] and loaded(1, 2) == ["1", "3"] and loaded(2, 4) == ["2"]
    (tmp_path / "cgx_state_3.pt").unlink()  # on another host
    assert loaded(1, 2) == ["1"]


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
        load(_state(), tmp_path, 3, 4)
    save(_state(), tmp_path, 0)
    recwarn.clear()
    load(_state(), tmp_path, 3, 4)  # a rank that is new goes on from rank 0's decision
    assert not recwarn.list
    with pytest.raises(ValueError, match="has a section 'adaptive', but this CGXState has none"):
        load(CGXState(), tmp_path, 3, 4)
