"""A training that is resumed gives the bits of one that was never stopped, with every codec; random
numbers are keyed by steps, which all ranks share and no two calls do.
"""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, DiLoCo, fsdp
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.sharding import batch as ids_of
from tests.utils.sharding import loss_of as loss_of_ids
from tests.utils.sharding import sharded_net, whole_parameters
from tests.utils.training import batch, digest, gradients, loss_of, make_model, wrap
from torch_cgx import _steps

STOCHASTIC = {"bits": 3, "bucket_size": 64, "rounding": "stochastic"}
CODECS = {
    "stochastic": STOCHASTIC,
    "rotated": {"codec": "rotated", "bits": 3},
    "trellis": {"codec": "trellis", "bits": 2},
}
SRA = dict.fromkeys(("CGX_INNER_REDUCTION_TYPE", "CGX_CROSS_REDUCTION_TYPE"), "SRA")


def _train(model, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, batch(rank, 1000 + step)).backward()
        loss_of(model, batch(rank, step)).backward()
        loss_of(model, batch(rank, 2000 + step)).backward()  # accumulates: two reductions a step
        optimizer.step()
    return digest(dict(model.module.named_parameters()))


def _resumed(rank, world_size, states, ddp):
    """By state: whether 6 steps end as 3, and 3 more after a restart. The states of `whole` and of
    the resumed run reduce over one group, whose calls go on.
    """
    found = []
    for options in states:
        options = dict(options)
        if "adaptive" in options:
            options["adaptive"] = AdaptiveBits(**options["adaptive"])
        state = CGXState(**options)
        model = wrap(make_model(), state, **ddp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        _train(model, optimizer, rank, range(3))
        saved = (model.module.state_dict(), optimizer.state_dict(), state.state_dict())
        torch.save(saved, file := io.BytesIO())
        whole = _train(model, optimizer, rank, range(3, 6))
        end = state.state_dict()["steps"]
        del model, optimizer, state
        file.seek(0)
        weights, moments, own = torch.load(file, weights_only=True)
        again, state = make_model(), CGXState(**options)
        again.load_state_dict(weights)
        model = wrap(again, state, **ddp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer.load_state_dict(moments)
        state.load_state_dict(own)
        resumed = _train(model, optimizer, rank, range(3, 6))
        found.append((resumed == whole, state.state_dict()["steps"] == end, whole))
        del model, optimizer, state, again
    return found


def _states(**more):
    return [{"config": config, **more} for config in CODECS.values()]


SEVERAL = {"bucket_cap_mb": 0.004}  # buckets, which DDP lays out anew after the first step


@pytest.mark.parametrize(
    ("world_size", "states", "ddp", "env"),
    [
        (2, _states() + _states(error_feedback=True), {}, {}),
        (2, _states() + _states(error_feedback=True, error_feedback_memory="8bit"), SEVERAL, {}),
        (2, [{"adaptive": {"average_bits": 3, "every": 2}, **_states()[1]}], SEVERAL, {}),
        (3, _states(), SEVERAL, {"CGX_INNER_REDUCTION_TYPE": "ONESHOT"}),
        # The rank that sums does not round its own contribution: the layout must stay.
        (3, _states(error_feedback=True), {**SEVERAL, "find_unused_parameters": True}, SRA),
        (4, _states(), SEVERAL, [{"CGX_HOST_ID": host} for host in "aabb"]),
    ],
    ids=["one bucket", "several buckets", "adaptive", "ONESHOT", "SRA", "two hosts"],
)
def test_a_resumed_training_gives_the_same_bits(world_size, states, ddp, env):
    ranks = run_pooled(_resumed, world_size, states, ddp, env=env, timeout=120)
    for found in zip(*ranks, strict=True):
        assert len({whole for _, _, whole in found}) == 1
        assert all(same and steps for same, steps, _ in found), found


def _equal_gradients():
    """Two parameters of equal gradients, in a model; and their gradients after a backward pass."""
    model = torch.nn.Module()
    model.a, model.b = (torch.nn.Parameter(torch.zeros(64, 64)) for _ in range(2))
    model.forward = lambda x: ((model.a + model.b) * x).sum()
    return model


def _keys(rank, world_size):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))
    seen = []
    for _ in range(2):  # states on one group
        model = _equal_gradients()
        state = CGXState(config=STOCHASTIC)
        wrapped = wrap(model, state, bucket_cap_mb=0.004)
        for _ in range(3):
            wrapped.zero_grad()
            wrapped(x).backward()
            seen += [model.a.grad.clone(), model.b.grad.clone()]
        del wrapped
    for step in (0, 0, 1, 7, 0):  # of calls of its own, the numbers of a state's steps
        y = x.clone()
        torch_cgx.all_reduce(y, dist.ReduceOp.AVG, config=STOCHASTIC, step=step)
        seen.append(y)
    return [digest({"x": one}) for one in seen]


def test_no_two_reductions_draw_equal_numbers():
    first, second = run_pooled(_keys, 2)
    assert first == second
    *rest, again = first
    assert len(set(rest)) == len(rest) == 16
    assert again == rest[12]  # the first call of step 0


def _explicit(rank, world_size):
    """Calls with steps: alike in another order of calls, and as `simulate` predicts."""
    x = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(world_size)]
    ends = []
    for before in (0, 3):
        for _ in range(before):
            torch_cgx.all_reduce(x[rank].clone(), config=STOCHASTIC)
        y = x[rank].clone()
        torch_cgx.all_reduce(y, config=STOCHASTIC, step=5 + before * 0)
        simulated = torch_cgx.simulate(x, STOCHASTIC, step=5).result
        assert torch.equal(y, simulated)
        part = torch.empty(500)
        z = x[rank].clone()[:1000]
        torch_cgx.reduce_scatter_single(part, z, config=STOCHASTIC, step=6)
        whole = torch.empty(1000)
        torch_cgx.all_gather_single(whole, part, config=STOCHASTIC, step=7)
        layers = torch.ones(20, dtype=torch.int64)
        torch_cgx.all_reduce(layers, step=8)  # what the engine does not serve
        assert layers.tolist() == [world_size] * 20
        ends.append(digest({"y": y, "part": part, "whole": whole}))
    for step, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError), (2**63, ValueError)):
        with pytest.raises(error, match=r"allowed: integers of 0 to 2\*\*63 - 1, None"):
            torch_cgx.all_reduce(x[0].clone(), config=STOCHASTIC, step=step)
    return ends


def test_explicit_calls_take_a_step():
    for ends in run_pooled(_explicit, 2):
        assert ends[0] == ends[1]


def _other_steps(rank, world_size, kind):
    if kind == "state":
        state = CGXState(config=STOCHASTIC)
        model = wrap(make_model(), state)
        if rank == 1:
            state.load_state_dict({**state.state_dict(), "steps": {"step": 50, "number": 1}})
        return failure(loss_of(model, batch(rank, 0)).backward)
    step = {"call": 40 + rank * 10, "none": None if rank == 0 else 50}[kind]
    x = torch.randn(5000)
    return failure(lambda: torch_cgx.all_reduce(x, config=STOCHASTIC, step=step))


@pytest.mark.parametrize("hosts", ["aa", "ab"])
@pytest.mark.parametrize("kind", ["state", "call", "none"])
def test_ranks_with_other_steps_are_named(kind, hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    mine = {"state": "step 0", "call": "step 40"}.get(kind, "values, 3 bits")
    for text in run_pooled(_other_steps, 2, kind, env=env):
        assert text.startswith("MismatchError: ")
        first, second = text.splitlines()[1:3]
        assert first.startswith("  rank 0 runs") and mine in first, text
        assert second.startswith("  rank 1 runs") and second.endswith("step 50"), text


def _diloco(rank, world_size):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))

    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64)
        inner = torch.optim.SGD(model.parameters(), 0.1)
        outer = torch.optim.Adam(model.parameters(), 0.01)
        return model, inner, DiLoCo(model, inner, outer, every=2, config=CODECS["rotated"])

    def run(model, inner, diloco, steps):
        for _ in range(steps):
            model.zero_grad()
            model(x).square().mean().backward()
            inner.step()
            diloco.step()

    found = []
    for steps in (1, 5):  # a checkpoint before the first outer step, and one of a later round
        parts = make()
        run(*parts, steps)
        torch.save([part.state_dict() for part in parts], file := io.BytesIO())
        run(*parts, 6)
        file.seek(0)
        again = make()
        for part, saved in zip(again, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(saved)
        torch_cgx.all_reduce(torch.ones(10))
        run(*again, 6)
        found.append(torch.equal(parts[0].weight, again[0].weight))
    return found


def test_a_resumed_diloco_gives_the_same_bits():
    assert run_pooled(_diloco, 2) == [[True, True]] * 2


def _fsdp(rank, world_size):
    def make():
        net = sharded_net(world_size)
        compressed = fsdp.compress(net, {**STOCHASTIC, "bits": 2}, min_size=64)
        return net, compressed, torch.optim.SGD(net.parameters(), 0.1)

    def run(net, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            loss_of_ids(net, ids_of(rank, step)).backward()
            optimizer.step()

    net, compressed, optimizer = make()
    run(net, optimizer, range(2))
    shards = [p.detach().to_local().clone() for p in net.parameters()]
    saved = copy.deepcopy(compressed.state_dict())
    run(net, optimizer, range(2, 4))
    again, fresh, optimizer = make()
    with torch.no_grad():
        for p, shard in zip(again.parameters(), shards, strict=True):
            p.to_local().copy_(shard)
    assert fresh.state_dict()["reductions"] == [0] * len(saved["units"])
    fresh.load_state_dict(saved)
    run(again, optimizer, range(2, 4))
    first, second = whole_parameters(net), whole_parameters(again)
    same = all(torch.equal(first[name], second[name]) for name in first)
    errors = [
        failure(lambda state=state: fresh.load_state_dict(state))
        for state in ({}, {**saved, "units": ["x"]}, {**saved, "version": 2},
                      {**saved, "reductions": [-1] * len(saved["units"])})
    ]  # fmt: skip
    return same, saved["reductions"], errors


def test_a_resumed_fsdp2_training_gives_the_same_bits():
    for same, reductions, errors in run_pooled(_fsdp, 2):
        assert same and set(reductions) == {2}
        assert "the state is []; allowed: a dict of version, units" in errors[0]
        assert "the state is of another model, or of other fully_shard modules: ['x']" in errors[1]
        assert "has version 2; allowed: 1" in errors[2]
        assert "step=-1; allowed: integers of 0 to" in errors[3]


class _Backend:
    def __init__(self, serial):
        self.serial = serial


def test_numbers_of_counters():
    here, there = _Backend(-5), _Backend(-6)
    first, second, third = (_steps.StepCounter(f"counter {i}") for i in range(3))
    assert [one.tensor_number(here) >> 32 for one in (first, second)] == [1, 2]
    assert third.tensor_number(there, 9) == (1 << 32) + 9
    assert _steps.number_of_call(here, 4) == 0 and _steps.number_of_call(here, 4) == 1
    # A restored counter takes its number over; who had it is warned when it goes on.
    restored = _steps.StepCounter("the restored")
    restored.load_state_dict({"step": 7, "number": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert restored.tensor_number(here) >> 32 == 1
        second.tensor_number(here)
    with pytest.warns(UserWarning, match="counter 0 and another object .* have the number 1"):
        first.tensor_number(here)
    # A part that comes again begins a new step, as after a backward pass that failed.
    first.begin({1, 2})
    first.begin({3})
    assert first.step == 0 and first.state_dict() == {"step": 1, "number": 1}
    first.begin({2})
    assert first.step == 1
    first.end()
    first.abandon()
    assert first.state_dict() == {"step": 2, "number": 1}


def _failed_pass(rank, world_size):
    """A backward pass that fails on all ranks after some buckets: its numbers are used up."""
    state = CGXState(config=STOCHASTIC)
    model = wrap(make_model(), state, bucket_cap_mb=0.004)
    for step in range(2):
        loss_of(model, batch(rank, step)).backward()
    handle = model.module.first.weight.register_hook(lambda g: 1 / 0)
    broken = failure(loss_of(model, batch(rank, 2)).backward)
    handle.remove()
    return broken, state.state_dict()["steps"]["step"], len(gradients(model))


def test_a_failed_backward_pass_uses_up_its_step():
    for broken, step, _ in run_pooled(_failed_pass, 2):
        assert broken.startswith("ZeroDivisionError") and step == 3
