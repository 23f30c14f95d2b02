"""Bits by step: each step is reduced with its bits, on all ranks, also after a restart."""

from __future__ import annotations

import warnings

import pytest
import torch.distributed.checkpoint as dcp

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.schedule import Schedule
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.training import COMPRESSED, batch, digest, loss_of, make_model, wrap


def warm_up(step):
    return 32 if step < 2 else 4


def by_texts(step):
    return "four"


def test_entries_hold_from_their_step_on():
    schedule = Schedule({5: 2, 0: 32, 3: 8})
    assert [schedule.bits(step) for step in range(8)] == [32, 32, 32, 8, 8, 2, 2, 2]
    assert str(schedule) == "{0: 32, 3: 8, 5: 2}"
    assert schedule.saved() == "{0: 32, 3: 8, 5: 2}"
    assert Schedule({0: 3}).bits(10**9) == 3


def test_a_function_is_called_once_a_step():
    asked = []

    def bits(step):
        asked.append(step)
        return 1 + step

    schedule = Schedule(bits)
    assert [schedule.bits(step) for step in (0, 0, 1, 1, 1, 2)] == [1, 1, 2, 2, 2, 3]
    assert asked == [0, 1, 2]
    assert (schedule.known_bits(2), schedule.known_bits(3)) == (3, None)
    assert schedule.saved() == "a function" and "bits" in str(schedule)
    assert asked == [0, 1, 2]


def test_a_function_is_not_called_for_what_only_shows_or_saves_a_state():
    state = CGXState(schedule=by_texts)
    assert "schedule=by_texts" in repr(state)
    state.load_state_dict(state.state_dict())
    assert state.schedule is by_texts and CGXState().schedule is None


def test_exact_bits_of_a_function_are_one_warning_that_raises_nothing(capsys):
    schedule = Schedule(lambda step: 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [schedule.bits(step, rank=1) for step in range(3)] == [12] * 3
    said = capsys.readouterr().err
    assert said.count("bits=12 means exact") == 1 and "schedule(0) on rank 1" in said


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (4, TypeError, "schedule=4; allowed: {step: bits}, a function of the step"),
        ({}, ValueError, "schedule={}; allowed: steps from 0 on, with an entry for 0"),
        ({500: 4}, ValueError, "with an entry for 0"),
        ({-1: 4, 0: 3}, ValueError, "steps from 0 on"),
        ({0: 4, 1.5: 3}, TypeError, "schedule has the step 1.5; allowed: integers >= 0"),
        ({True: 4}, TypeError, "schedule has the step True"),
        ({0: 0}, ValueError, r"schedule[0]: bits"),
        ({0: 32, 7: "4"}, TypeError, "schedule[7]: bits"),
    ],
)
def test_what_is_no_schedule(given, kind, words):
    text = failure(lambda: CGXState(schedule=given))
    assert text.startswith(kind.__name__) and words in text, text


def test_a_function_is_checked_when_its_step_comes():
    assert "schedule(0): bits" in failure(lambda: Schedule(by_texts).bits(0))
    assert "schedule(7) on rank 2: bits" in failure(lambda: Schedule(by_texts).bits(7, 2))


def _impossible(rank, world_size):
    found = []
    for schedule, options in (
        ({0: 32, 5: 8}, {"codec": "trellis"}),
        ({0: 32, 5: 4}, {"codec": "bf16"}),
        ({0: 32, 5: 1}, {"exact_zeros": True}),
        ({0: 32, 5: 1}, {"error_feedback": True}),
    ):
        model = wrap(make_model(), CGXState(schedule=schedule, **options))
        found.append(failure(lambda model=model: _step(model, rank, 0)))
    return found


def test_an_entry_that_cannot_be_is_an_error_in_the_first_step():
    for text in run_pooled(_impossible, 2)[0]:
        assert "schedule[5]: " in text, text


def test_settings_as_keywords():
    assert repr(CGXState(bits=3, codec="rotated")) == repr(
        CGXState(config={"bits": 3, "codec": "rotated"})
    )
    assert CGXState(config={"bits": 3}, bucket_size=64).config == {"bits": 3, "bucket_size": 64}
    assert CGXState(config={"bits": 3}, bits=None, seed=None).config == {"bits": 3}  # as in Options
    for call, words in (
        (lambda: CGXState(bit=3), "unexpected argument 'bit' (did you mean 'bits'?); allowed: "),
        (
            lambda: CGXState(shedule={0: 4}),
            "(did you mean 'schedule'?); allowed: group, ",
        ),
        (lambda: CGXState(xyz=3), "unexpected argument 'xyz'; allowed: group, min_size, "),
        (lambda: CGXState(4), "group=4 is of type int; allowed: a ProcessGroup"),
        (lambda: CGXState(config={"bits": 3}, bits=3), "bits= and a config that has 'bits'"),
        (lambda: CGXState(config=3), "config=3; allowed: a dict of bits, "),
        (lambda: CGXState(bits="many"), "config: bits='many'"),
        (lambda: CGXState(config={"bits": None}), "config: bits=None"),
        (lambda: CGXState(schedule={0: 4}, bits=3), "schedule={0: 4} and bits; allowed: one"),
        (
            lambda: CGXState(schedule={0: 4}, adaptive=AdaptiveBits(average_bits=4)),
            "schedule={0: 4} and adaptive; allowed: one",
        ),
    ):
        text = failure(call)
        assert words in text, text


def _step(model, rank, step):
    model.zero_grad()
    loss_of(model, batch(rank, step)).backward()


def _bits_by_step(rank, world_size, schedule, steps):
    """The bits of the layers that are compressed, by step, and those of an override."""
    state = CGXState(schedule=schedule, overrides={r"small\.weight": {"bits": 8}})
    model = wrap(make_model(), state)
    found, fixed = [], set()
    for step in range(steps):
        _step(model, rank, step)
        rows = {row["name"]: row["bits"] for row in state.report().rows}
        found.append({rows[name] for name in COMPRESSED})
        fixed.add(rows["small.weight"])
    return found, fixed, digest({n: p.grad for n, p in model.module.named_parameters()})


@pytest.mark.parametrize("schedule", [{0: 32, 2: 4}, warm_up], ids=["entries", "function"])
def test_each_step_has_its_bits(schedule):
    first, second = run_pooled(_bits_by_step, 2, schedule, 4)
    assert first == second
    assert first[:2] == ([{32}, {32}, {4}, {4}], {8})


def _as_without(rank, world_size):
    """Of four steps, the gradients that a state with fixed bits gets."""
    found = []
    for options in ({"schedule": {0: 32, 2: 4}}, {"bits": 32}, {"bits": 4}):
        model = wrap(make_model(), CGXState(**options))
        found.append([])
        for step in range(4):
            _step(model, rank, step)
            found[-1].append(digest({n: p.grad for n, p in model.module.named_parameters()}))
    scheduled, exact, compressed = found
    return scheduled == exact[:2] + compressed[2:], exact != compressed


def test_the_bits_are_those_of_a_state_that_has_them():
    assert run_pooled(_as_without, 2) == [(True, True)] * 2


def _resumed(rank, world_size):
    def state():
        return CGXState(schedule={0: 32, 3: 4, 5: 2}, rounding="stochastic", seed=7)

    whole = state()
    model = wrap(make_model(), whole)
    for step in range(3):
        _step(model, rank, step)
    saved = whole.state_dict()
    assert saved["schedule"] == "{0: 32, 3: 4, 5: 2}"
    ends = []
    resumed = state()
    resumed.load_state_dict(saved)
    for one in (model, wrap(make_model(), resumed)):
        for step in range(3, 6):
            _step(one, rank, step)
        ends.append(digest({n: p.grad for n, p in one.module.named_parameters()}))
    other = CGXState(schedule={0: 8})
    with pytest.warns(UserWarning, match="has the schedule .*, this one .*, which is used"):
        other.load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CGXState(schedule=warm_up).load_state_dict(saved)
        CGXState().load_state_dict(saved)
    text = failure(lambda: other.load_state_dict({**saved, "schedule": 3}))
    assert text.startswith("ValueError") and "schedule is 3; allowed: a text" in text
    return ends[0] == ends[1]


def test_a_resumed_training_goes_on_with_its_step():
    assert run_pooled(_resumed, 2) == [True, True]


@pytest.mark.parametrize(
    ("schedule", "warns"),
    [({0: 32, 3: 4, 900: 2}, True), ({0: 32}, True), ({0: 32, 3: 4}, False), (warm_up, False)],
)
def test_checkpoints_of_torch_load_into_another_schedule(tmp_path, schedule, warns):
    dcp.save({"cgx": CGXState(schedule={0: 32, 3: 4})}, checkpoint_id=tmp_path, no_dist=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.load({"cgx": CGXState(schedule=schedule)}, checkpoint_id=tmp_path, no_dist=True)
    found = [str(one.message) for one in caught if "which is used" in str(one.message)]
    assert found == [f"CGXState: the restored state has the schedule {{0: 32, 3: 4}}, this one "
                     f"{schedule}, which is used"] * warns  # fmt: skip


def _disagreement(rank, world_size):
    model = wrap(make_model(), CGXState(schedule={0: 32, 1: 4 + rank}))
    _step(model, rank, 0)
    with pytest.raises(torch_cgx.MismatchError) as caught:
        _step(model, rank, 1)
    return str(caught.value)


def test_ranks_that_disagree_get_an_error():
    for text in run_pooled(_disagreement, 2):
        assert "bits" in text, text


def _lines(rank, world_size):
    state = CGXState(schedule={0: 32, 2: 4})
    model = wrap(make_model(), state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # exact steps are asked for
        for step in range(4):
            _step(model, rank, step)
    assert "schedule={0: 32, 2: 4}" in repr(state)
    return repr(state)


def test_each_change_is_reported():
    for shown in run_pooled(_lines, 2):
        assert "compressing 2 of" in shown and "step" not in shown
