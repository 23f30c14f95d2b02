"""Residuals in checkpoints: each rank's own, also in torch.distributed.checkpoint, and for another
number of ranks.
"""

from __future__ import annotations

import copy
import re
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp

from cgx_utils import AdaptiveBits, CGXState, DiLoCo, checkpoint, fsdp
from cgx_utils.resharding import merged
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.sharding import sharded_net
from tests.utils.training import batch, loss_of, make_model, wrap

PARAMS = {"bits": 2, "bucket_size": 64}


def _state(**options):
    return CGXState(config=PARAMS, error_feedback=True, **options)


def _own(state, rank):
    section = state.state_dict()["error_feedback"]
    assert section["rank"] == rank
    return section["residuals"]


def _said(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in said if "rank" in str(one.message)]


def _saved(rank, world_size):
    state = _state()
    model = wrap(make_model(), state)
    for step in range(2):
        loss_of(model, batch(rank, step)).backward()
    return state.state_dict()


def _loaded(rank, world_size, given):
    """Loads given[rank] before a step of equal gradients; what this rank owes before that."""
    state = _state()
    model = wrap(make_model(), state)
    loss_of(model, batch(rank, 7)).backward()
    state.load_state_dict(given[rank])
    said = []
    taken = {}

    def hook_of(name, value):
        taken[name] = value

    restore = state._feedback.restore

    def spy(named, group):
        said.extend(_said(lambda: restore(named, group)))
        if group is not None:
            for name, value in _own(state, rank).items():
                hook_of(name, value)

    state._feedback.restore = spy
    loss_of(model, batch(rank, 8)).backward()
    return said, taken


def _sum(ranks):
    return {name: sum(own[name].double() for own in ranks) for name in ranks[0]}


def _close(first, second, factor=1.0):
    for name, value in first.items():
        torch.testing.assert_close(value, factor * second[name], rtol=1e-5, atol=1e-9)


@pytest.fixture(scope="module")
def three():
    return run_pooled(_saved, 3)


def _residuals(states):
    return [state["error_feedback"]["residuals"] for state in states]


def test_the_residuals_of_one_rank_are_not_those_of_all(three):
    found = run_pooled(_loaded, 3, [three[0]] * 3)
    owed = _sum([taken for _, taken in found])
    _close(owed, _sum(_residuals(three)[:1]))  # once, not three times
    assert found[0][0] == []
    for rank in (1, 2):
        (text,) = found[rank][0]
        assert f"rank 0 of 3 saved this state, this is rank {rank} of 3: the saved res" in text
        assert "are dropped, and this rank's begin with zeros" in text
    exact = run_pooled(_loaded, 3, three)
    for (said, taken), own in zip(exact, _residuals(three), strict=True):
        assert not said and all(torch.equal(taken[name], own[name]) for name in own)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_other_numbers_of_ranks_owe_the_same(three, ranks):
    before = _sum(_residuals(three))
    found = run_pooled(_loaded, ranks, [merged(three)] * ranks)
    assert all(said == [] for said, _ in found)
    _close(_sum([taken for _, taken in found]), before, ranks / 3)


def test_fewer_ranks_with_files_of_their_own_drop_some(three):
    found = run_pooled(_loaded, 2, three[:2])
    for rank, ((text,), _) in enumerate(found):
        assert f"saved by rank {rank} of 3 and are restored on rank {rank} of 2" in text
        assert "what ranks 2 to 2 owed is dropped" in text
    _close(_sum([taken for _, taken in found]), _sum(_residuals(three)[:2]), 2 / 3)
    (said, _), (none, _) = run_pooled(_loaded, 2, [merged(three[:2])] * 2)
    assert none == [] and "what rank 2 owed is not in the state, and dropped" in said[0]


def test_more_ranks_with_files_of_their_own_begin_with_zeros(three):
    found = run_pooled(_loaded, 4, [*three, three[0]])  # a new rank has no file of its own
    _close(_sum([taken for _, taken in found]), _sum(_residuals(three)), 4 / 3)
    for (text,), _ in found:
        assert "ranks 3 to 3 begin with zeros" in text


def _to_dcp(rank, world_size, folder):
    state = _state(adaptive=AdaptiveBits(average_bits=3, candidates=(2, 3, 4, 8), every=1))
    model = wrap(make_model(), state)
    for step in range(3):
        loss_of(model, batch(rank, step)).backward()
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64)
    inner = torch.optim.SGD(net.parameters(), 0.1)
    diloco = DiLoCo(net, inner, torch.optim.Adam(net.parameters(), 0.01), every=1, config=PARAMS)
    for step in range(2):
        net(batch(rank, step)[0]).square().mean().backward()
        inner.step()
        diloco.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of CPU state
        dcp.save({"cgx": state, "outer": diloco}, checkpoint_id=folder)
    return state.state_dict(), diloco.state_dict()


def _from_dcp(rank, world_size, folder, way):
    """Into objects that have not made a step."""
    state = _state(adaptive=AdaptiveBits(average_bits=3, candidates=(2, 3, 4, 8), every=1))
    model = wrap(make_model(), state)
    net = torch.nn.Linear(64, 64)
    inner = torch.optim.SGD(net.parameters(), 0.1)
    diloco = DiLoCo(net, inner, torch.optim.Adam(net.parameters(), 0.01), every=1, config=PARAMS)
    said = []

    def load():
        if way == "dcp":
            dcp.load({"cgx": state, "outer": diloco}, checkpoint_id=folder)
        else:
            checkpoint.load(state, folder, key="cgx")
            checkpoint.load(diloco, folder, key="outer")

    try:
        said += _said(load)
    except BaseException as error:  # CheckpointException is no Exception
        return str(error), None, None
    owed = diloco.state_dict()
    waiting = state.state_dict()
    said += _said(lambda: loss_of(model, batch(rank, 9)).backward())
    return said, waiting, owed


@pytest.fixture(scope="module")
def saved_by_dcp(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("dcp"))
    return folder, run_pooled(_to_dcp, 2, folder, timeout=120)


def _same(first, second):
    if isinstance(first, dict):
        first, second = tuple(first.items()), tuple(second.items())
    if isinstance(first, tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            _same(one, other)
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.mark.parametrize("way", ["dcp", "checkpoint"])
def test_dcp_keeps_the_state_of_every_rank(saved_by_dcp, way):
    folder, saved = saved_by_dcp
    for rank, (said, state, diloco) in enumerate(run_pooled(_from_dcp, 2, folder, way)):
        assert said == []
        assert state["adaptive"]["bits"] and state["adaptive"]["step"] == 4
        _same(saved[rank][0], state)
        _same(saved[rank][1], diloco)


@pytest.mark.parametrize("ranks", [1, 3])
def test_dcp_with_another_number_of_ranks(saved_by_dcp, ranks):
    folder, saved = saved_by_dcp
    found = run_pooled(_from_dcp, ranks, folder, "checkpoint")
    assert all(said == [] for said, _, _ in found)
    per_rank = [one["residuals"] for _, _, one in found]
    before = [one["residuals"] for _, one in saved]
    _close(_sum(per_rank), _sum(before), ranks / 2)


def test_dcp_alone_with_another_number_of_ranks(saved_by_dcp):
    folder, _ = saved_by_dcp
    ((said, *_),) = run_pooled(_from_dcp, 1, folder, "dcp")
    state, diloco = sorted(said)
    assert "saved by rank 0 of 2 and are restored on rank 0 of 1; what ranks 1 to 1 owed" in state
    assert "DiLoCo: rank 0 of 2 saved this state, this is rank 0 of 1: the saved residual" in diloco
    for error, _, _ in run_pooled(_from_dcp, 3, folder, "dcp"):
        assert re.search(r"Missing key in checkpoint state_dict: cgx\.ranks\.2", error), error


def _errors(rank, world_size, folder):
    state = _state()
    return [
        failure(lambda: checkpoint.load(state, folder, key="other")),
        failure(lambda: checkpoint.load(state, key="cgx")),
    ]


def test_errors_of_checkpoint(saved_by_dcp):
    ((key, folder),) = run_pooled(_errors, 1, saved_by_dcp[0])
    assert "the checkpoint has nothing under key='other'; it has ['cgx', 'outer']" in key
    assert "neither checkpoint_id nor storage_reader is given" in folder


def _fsdp(rank, world_size, folder):
    compressed = fsdp.compress(sharded_net(world_size), {"bits": 4})
    saved = copy.deepcopy(compressed.state_dict())
    saved["reductions"] = list(range(len(saved["units"])))
    compressed.load_state_dict(saved)
    dcp.save({"steps": compressed}, checkpoint_id=folder)
    fresh = fsdp.compress(sharded_net(world_size), {"bits": 4})
    dcp.load({"steps": fresh}, checkpoint_id=folder)
    return fresh.state_dict() == saved


def test_dcp_of_fsdp(tmp_path):
    assert run_pooled(_fsdp, 2, str(tmp_path)) == [True, True]
