"""What the integrations of trainers share: the state that a user gives, and its files."""

from __future__ import annotations

import pytest
import torch

from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.resharding import sections_of, with_rank
from cgx_utils.trainers.settings import for_rank, load, save, state_of


def test_keywords_make_a_state():
    assert state_of(None, {"bits": 2}).config == {"bits": 2}
    state = CGXState()
    assert state_of(state, {}) is state


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="both a state and bits, seed; allowed: a CGXState, or"):
        state_of(CGXState(), {"seed": 1, "bits": 4})
    with pytest.raises(TypeError, match="state=4; allowed: a CGXState, None"):
        state_of(4, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bit_width"):
        state_of(None, {"bit_width": 4})


def _saved(rank, ranks, old=False):
    section = {"memory": "fp32", "rank": rank, "world_size": ranks, "sequence": 0}
    section["residuals"] = {"w": torch.full((4,), 1.0 + rank)}
    state = {"version": 1, "adaptive": {"n": rank}, "error_feedback": section}
    return state if old else with_rank(state, rank, ["adaptive", "error_feedback"])


@pytest.mark.parametrize("old", [False, True])
def test_another_number_of_ranks_gets_the_residuals_of_all(old):
    states = [_saved(rank, 2, old) for rank in range(2)]
    assert for_rank(states, 1, 2) is states[1]
    found = for_rank(states, 2, 3)
    assert found["adaptive"] == {"n": 0}
    for rank, own in sections_of(found).items():
        assert own["error_feedback"] is states[int(rank)]["error_feedback"]
    assert list(sections_of(found)) == ["0", "1"]
    assert for_rank([{"version": 1}], 2, 3) == {"version": 1}


def test_files_of_all_ranks_are_merged(tmp_path):
    for rank in range(4):
        saved = {key: value for key, value in _saved(rank, 4, True).items() if key != "adaptive"}
        torch.save(saved, tmp_path / f"cgx_state_{rank}.pt")

    def loaded(rank, ranks):
        state = CGXState(error_feedback=True)
        load(state, tmp_path, rank, ranks)
        return sorted(state.state_dict()["ranks"])

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
