"""cgx_utils.DiLoCo: exact at 32 bits, equal on all ranks at any, nothing lost by error feedback."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import DiLoCo
from tests.compat.training import Net, Normed, batch, loss_of, values
from tests.distributed import run_pooled

CONFIG = {"bits": 4, "bucket_size": 64}


def _net(seed=3):
    torch.manual_seed(seed)
    return Net()


def _outer(model):
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def _local_step(model, inner, rank, step):
    inner.zero_grad()
    loss = loss_of(model, batch(rank, step))
    loss.backward()
    inner.step()
    return loss.item()


def _values(model):
    return values(model.named_parameters())


def _equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---- results


def _simulated(world_size, rounds, every):
    """Algorithm 1 of the paper on one process, without a collective."""
    start = _net()
    nets = [copy.deepcopy(start) for _ in range(world_size)]
    inners = [torch.optim.AdamW(net.parameters(), lr=3e-3) for net in nets]
    outer = _outer(start)
    for number in range(rounds):
        for rank, (net, inner) in enumerate(zip(nets, inners, strict=True)):
            for step in range(every):
                _local_step(net, inner, rank, number * every + step)
        for p, *locals_ in zip(*(net.parameters() for net in [start, *nets]), strict=True):
            total = sum((p.detach() - q.detach()) for q in locals_)
            p.grad = total / world_size
        outer.step()
        for net in nets:
            net.load_state_dict(start.state_dict())
    return _values(start)


def _exact(rank, world_size):
    model = _net(3 + rank)  # rank 0's counts
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with DiLoCo(model, inner, every=3, config={"bits": 32}):
        for step in range(12):
            _local_step(model, inner, rank, step)
    _equal(_values(model), _simulated(world_size, 4, 3))


@pytest.mark.parametrize("ranks", [1, 2])
def test_32_bits_are_the_papers_algorithm(ranks):
    run_pooled(_exact, ranks)


def _trained(rank, world_size, steps, dtype):
    model = _net().to(dtype)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, equal, kept = [], [], []
    with DiLoCo(model, inner, _outer(model), every=5, config=CONFIG) as diloco:
        for step in range(steps):
            x, y = batch(rank, step)
            inner.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
            loss.backward()
            before = model.first.weight.grad
            inner.step()
            kept.append(model.first.weight.grad is before)
            losses.append(loss.item())
            everyone = [torch.empty_like(model.blocks[0].up.weight) for _ in range(world_size)]
            dist.all_gather(everyone, model.blocks[0].up.weight.detach())
            equal.append(all(torch.equal(everyone[0], one) for one in everyone))
    counters = torch_cgx.stats()
    sent = counters["bytes_sent"] / diloco.rounds
    return losses, equal, all(kept), _values(model), counters["compressed_calls"], sent


@pytest.mark.parametrize("ranks, dtype", [(2, torch.float32), (3, torch.bfloat16)], ids=str)
def test_ranks_meet_in_each_outer_step(ranks, dtype):
    found = run_pooled(_trained, ranks, 60, dtype)
    for losses, equal, kept, parameters, calls, sent in found:
        assert sum(losses[-10:]) < 0.6 * sum(losses[:10]) and kept
        assert equal == [(step + 1) % 5 == 0 for step in range(60)]
        _equal(parameters, found[0][3])
        assert calls == 12
        if ranks == 2:
            # 5 matrices of 34816 values at 4 bits and 8 bytes for each 64, 1224 exact values.
            expected = 34816 // 2 + 34816 // 64 * 8 + 1224 * 4
            assert 0 <= sent - expected < 128


class _Constant(nn.Module):
    """Its inner steps make the same change each time, another one on each rank."""

    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64, 64))
        self.bias = nn.Parameter(torch.zeros(64))
        generator = torch.Generator().manual_seed(rank)
        self.change = [torch.randn(p.shape, generator=generator) for p in self.parameters()]

    def step(self, inner):
        for parameter, change in zip(self.parameters(), self.change, strict=True):
            parameter.grad = change.clone()
        inner.step()


def _constant(rank, world_size, bits, error_feedback, rounds):
    model = _Constant(rank)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"bits": bits, "bucket_size": 64}
    diloco = DiLoCo(model, inner, outer, every=1, config=config, error_feedback=error_feedback)
    errors = []
    for number in range(1, rounds + 1):
        model.step(inner)
        diloco.step()
        change = [_Constant(r).change for r in range(world_size)]
        exact = -number * (sum(one[0].double() for one in change) / world_size)
        errors.append((model.weight.double() - exact).norm().item() / exact.norm().item())
        mean = sum(one[1].double() for one in change) / world_size
        torch.testing.assert_close(model.bias.double(), -number * mean, rtol=1e-5, atol=1e-5)
    return errors


@pytest.mark.parametrize("bits", [2, 4])
def test_error_feedback_loses_nothing(bits):
    """The sum over rounds of a constant change tends to the exact one, at 1 / rounds."""
    rounds = 80
    found = run_pooled(_constant, 2, bits, True, rounds)[0]
    first = found[0]
    assert found[-1] < 8 * first / rounds and found[9] < 8 * first / 10
    without = run_pooled(_constant, 2, bits, False, rounds)[0]
    assert without[-1] > 0.9 * without[0] and abs(without[0] - first) < 1e-6


@pytest.mark.parametrize("reduction, hosts", [("RING", "aaa"), ("SRA", "aaa"), ("SRA", "aab")])
def test_error_feedback_returns_all_roundings(reduction, hosts):
    """Those of sums, too, whatever the reduction."""
    names = ("CGX_INNER_REDUCTION_TYPE", "CGX_CROSS_REDUCTION_TYPE")
    env = [{"CGX_HOST_ID": host, **dict.fromkeys(names, reduction)} for host in hosts]
    found = run_pooled(_constant, 3, 2, True, 40, env=env)[0]
    assert found[-1] < 8 * found[0] / 40


# ---- states


def _resumed(rank, world_size, broken):
    def make(model):
        inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
        return inner, DiLoCo(model, inner, _outer(model), every=4, config=CONFIG)

    def run(model, inner, diloco, steps):
        with diloco:
            for step in steps:
                _local_step(model, inner, rank, step)

    model = _net()
    inner, diloco = make(model)
    run(model, inner, diloco, range(10))
    saved = copy.deepcopy((model.state_dict(), inner.state_dict(), diloco.state_dict()))
    run(model, inner, diloco, range(10, 20))
    again = _net(99)
    inner, diloco = make(again)
    for part, state in zip((again, inner, diloco), saved, strict=True):
        part.load_state_dict(state)
    assert (diloco.local_steps, diloco.rounds) == (2, 2)
    if broken and rank == 1:
        diloco._start[0][0, 0] += 1
    run(again, inner, diloco, range(10, 20))
    _equal(_values(model), _values(again))
    return diloco.rounds


def test_a_restored_run_continues_with_the_same_bits():
    assert run_pooled(_resumed, 2, False) == [5, 5]


def test_ranks_restored_from_different_starts_are_named():
    outcomes = run_pooled(_resumed, 2, True, check=False)
    for outcome in outcomes:
        assert isinstance(outcome.exception, torch_cgx.MismatchError)
        assert "start of the round differs between ranks: rank 0 has" in outcome.error


def _one_rank_restored(rank, world_size):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config=CONFIG)
    if rank == 1:
        diloco.load_state_dict({**diloco.state_dict(), "rounds": 5})
    _local_step(model, inner, rank, 0)
    diloco.step()


def test_a_state_that_only_one_rank_has_loaded_is_named():
    for outcome in run_pooled(_one_rank_restored, 2, check=False):
        assert isinstance(outcome.exception, torch_cgx.MismatchError)
        assert "rounds differs between ranks: rank 0 has 0" in outcome.error


def _foreign_states(rank, world_size):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config=CONFIG)
    _local_step(model, inner, rank, 0)
    diloco.step()
    good = diloco.state_dict()
    left = good["residuals"]["first.weight"].norm().item()
    other = copy.deepcopy(good)
    other["start"]["first.weight"] = torch.zeros(3, 3)
    fewer = copy.deepcopy(good)
    del fewer["residuals"]["last.bias"]
    unsound = copy.deepcopy(good)
    unsound["residuals"]["last.bias"][0] = float("nan")
    cases = [
        ({"start": 1}, r"the state is \['start'\]; allowed: a dict of start, outer, residuals"),
        (None, "the state is NoneType"),
        (other, r"'start' is of another model: 'first.weight' has the shape \(3, 3\)"),
        (fewer, r"'residuals' is of another model: it differs in \['last.bias'\]"),
        (unsound, "the residual of 'last.bias' holds a NaN or Inf; allowed: finite values"),
        ({**good, "rounds": "x"}, "rounds='x'; allowed: an integer >= 0"),
        ({**good, "local_steps": -1}, "local_steps=-1; allowed: an integer >= 0"),
    ]
    for state, text in cases:
        with pytest.raises(ValueError, match=text):
            diloco.load_state_dict(state)
    _equal(good["start"], diloco.state_dict()["start"])
    with pytest.warns(UserWarning, match=r"of 7 .* this is rank \d of 2: the saved residuals"):
        diloco.load_state_dict({**good, "world_size": 7})
    dropped = diloco.state_dict()["residuals"]["first.weight"].norm().item()
    return left, dropped


def test_states_of_another_model_or_group():
    assert all(left > 0 and dropped == 0 for left, dropped in run_pooled(_foreign_states, 2))


# ---- what can go wrong


def _nonfinite(rank, world_size, mode, found):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, _outer(model), every=2, config=CONFIG, nonfinite=mode)
    for step in range(2):
        _local_step(model, inner, rank, step)
        diloco.step()
    start, before = _values(model), copy.deepcopy(diloco.state_dict())
    _local_step(model, inner, rank, 2)
    diloco.step()
    _local_step(model, inner, rank, 3)
    if rank == 1:
        with torch.no_grad():
            model.blocks[1].down.weight[3, 4] = float("nan")
    text = rf"round 2 is not finite in {found} of 16 parameters \('"
    if mode == "raise":
        with pytest.raises(torch_cgx.NonFiniteError, match=text):
            diloco.step()
    else:
        with pytest.warns(UserWarning, match=text):
            diloco.step()
    _equal(_values(model), start)
    after = diloco.state_dict()
    _equal(after["residuals"], before["residuals"])
    assert str(after["outer"]) == str(before["outer"]) and diloco.local_steps == 0
    for step in range(4, 6):
        _local_step(model, inner, rank, step)
        diloco.step()
    return _values(model)


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("group, found", [("propagate", 1), ("raise", 16)])
def test_a_change_that_is_not_finite_is_taken_back_everywhere(mode, group, found):
    """A group that raises does not say in which parameter of the bucket."""
    first, second = run_pooled(_nonfinite, 2, mode, found, env={"CGX_NONFINITE": group})
    _equal(first, second)
    assert all(value.isfinite().all() for value in first.values())


def _left_alone(rank, world_size):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config=CONFIG)
    _local_step(model, inner, rank, 0)
    if rank == 1:
        return
    before, state = _values(model), diloco.state_dict()
    with pytest.raises(torch_cgx.CgxError):
        diloco.step()
    _equal(_values(model), before)
    _equal(diloco.state_dict()["residuals"], state["residuals"])
    assert (diloco.local_steps, diloco.rounds) == (1, 0)


def test_a_lost_peer_leaves_the_local_steps_as_they_are():
    run_pooled(_left_alone, 2)


def _buffers(rank, world_size):
    torch.manual_seed(rank)
    model = Normed()
    model.body[1].running_mean.fill_(rank + 5)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config=CONFIG)
    began = model.body[1].running_mean.clone()
    _local_step(model, inner, rank, 0)
    diloco.step()
    return began, model.body[1].running_mean.clone(), _values(model)


def test_buffers_begin_equal_and_stay_local():
    first, second = run_pooled(_buffers, 2)
    assert torch.equal(first[0], torch.full((64,), 5.0)) and torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    _equal(first[2], second[2])


def _with(rank, world_size):
    model = _net()
    frozen = model.last.weight.requires_grad_(False).clone()
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    diloco = DiLoCo(model, inner, every=2, config=CONFIG)
    with diloco:
        with pytest.raises(RuntimeError, match="in use by another"):
            diloco.__enter__()
        _local_step(model, inner, rank, 0)
    _local_step(model, inner, rank, 1)
    assert (diloco.local_steps, diloco.rounds) == (1, 0)
    diloco.sync()
    assert (diloco.local_steps, diloco.rounds) == (0, 1)
    assert torch.equal(model.last.weight, frozen)
    return _values(model)


def test_a_with_counts_inside_only_and_sync_ends_a_round():
    first, second = run_pooled(_with, 2)
    _equal(first, second)


def _refused(rank, world_size):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(_net().parameters(), lr=0.1)
    part = torch.optim.SGD(model.first.parameters(), lr=0.1)
    more = torch.optim.SGD([*model.parameters(), torch.zeros(1)], lr=0.1)
    one = {"bits": 1}
    cases = [
        (TypeError, "model is of type list", {"model": []}),
        (TypeError, "inner is of type NoneType", {"inner": None}),
        (TypeError, "outer is of type int; allowed: torch.optim.Optimizer, None", {"outer": 3}),
        (ValueError, "inner and outer are the same", {"outer": inner}),
        (ValueError, "does not have the model's parameter 'first.weight'", {"outer": other}),
        (ValueError, "does not have the model's parameter 'blocks.0.norm.weight'", {"outer": part}),
        (ValueError, "outer has 1 tensors beside the model's", {"outer": more}),
        (ValueError, "every=0; allowed: integers >= 1", {"every": 0}),
        (TypeError, "every=2.5; allowed: integers >= 1", {"every": 2.5}),
        (TypeError, "error_feedback=1; allowed: True, False", {"error_feedback": 1}),
        (ValueError, "nonfinite='stop'; allowed: 'raise', 'skip'", {"nonfinite": "stop"}),
        (ValueError, "bits='99' is not allowed|bits=99|bits='99'", {"config": {"bits": 99}}),
        (TypeError, "config='4'; allowed: a dict", {"config": "4"}),
        (ValueError, "maxmin bits=1 .* allowed at 1 bit: codec 'rotated'", {"config": one}),
        (ValueError, "maxmin bits=1 ", {"overrides": {"weight": one}}),
        (TypeError, "'first.weight' is torch.float64; allowed", {"model": _net().double()}),
        (ValueError, "no parameter that requires a gradient",
         {"model": _net().requires_grad_(False)}),
    ]  # fmt: skip
    for kind, text, changed in cases:
        given = {"model": model, "inner": inner, "outer": None, "every": 2, **changed}
        with pytest.raises(kind, match=text):
            DiLoCo(given.pop("model"), given.pop("inner"), given.pop("outer"), **given)
    return torch_cgx.stats()["calls"]


def test_bad_input_is_named():
    assert run_pooled(_refused, 2) == [0, 0]


def _differ(rank, world_size, what):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    every = 2 + rank if what == "every" else 2
    bits = 4 + rank if what == "configuration" else 4
    if what == "model" and rank == 1:
        model.last = nn.Linear(64, 9)
    DiLoCo(model, inner, every=every, config={"bits": bits})


@pytest.mark.parametrize("what, shown", [("every", "2"), ("configuration", "bits"), ("model", "8")])
def test_ranks_that_differ_are_named(what, shown):
    for outcome in run_pooled(_differ, 2, what, check=False):
        assert isinstance(outcome.exception, torch_cgx.MismatchError), outcome.error
        text = str(outcome.exception)
        assert text.startswith(f"{what} differs between ranks: rank 0 has") and shown in text
