"""Error feedback of CGXState: over steps, rebuilt buckets and restarts, and where DDP does not call
the hook.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.error_feedback import ErrorFeedback, check_codec
from tests.distributed import run_pooled
from tests.utils.training import (
    Branches,
    batch,
    digest,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    wrap,
)

MEMORIES = ["fp32", "bf16", "8bit"]


def _state(memory="fp32", bits=2, **options):
    return CGXState(
        config={"bits": bits, "bucket_size": 64},
        error_feedback=True,
        error_feedback_memory=memory,
        **options,
    )


def _owed(state):
    return state.state_dict()["error_feedback"]["residuals"]


class Ledger:
    """Of one rank, by name: what its gradients were, and what came out of the reductions."""

    def __init__(self):
        self.went_in, self.came_out = {}, {}

    def book(self, local, found):
        for into, values in ((self.went_in, local), (self.came_out, found)):
            for name, value in values.items():
                into[name] = into.get(name, 0) + value.double()

    def close(self, state):
        return self.went_in, self.came_out, _owed(state)


def _off(ranks, world_size):
    """The largest |went in - came out - owed| over all values, relative to the largest gradient."""
    came_out = ranks[0][1]
    largest, off = 0.0, 0.0
    for name, out in came_out.items():
        left = -world_size * out
        for went_in, _, owed in ranks:
            left = left + went_in.get(name, 0) - owed[name].double()
            largest = max(largest, went_in[name].abs().max().item() if name in went_in else 0)
        off = max(off, left.abs().max().item())
    return off / largest


def _steps(rank, world_size, memory, steps, options):
    state = _state(memory)
    model = wrap(make_model(), state, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger = Ledger()
    for step in range(steps):
        data = batch(rank, step)
        local = local_gradients(model, data)
        optimizer.zero_grad()
        loss_of(model, data).backward()
        ledger.book(local, gradients(model))
        optimizer.step()
    return *ledger.close(state), digest(dict(model.named_parameters()))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.004}], ids=["", "several buckets"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_come_out_or_are_owed(memory, world_size, options):
    # DDP rebuilds its buckets after the first step.
    ranks = run_pooled(_steps, world_size, memory, 5, options)
    assert len({found[3] for found in ranks}) == 1
    ledgers = [found[:3] for found in ranks]
    assert _off(ledgers, world_size) < {"fp32": 1e-5, "bf16": 2e-2, "8bit": 2e-2}[memory]
    for _, _, owed in ledgers:
        assert owed["norm.weight"].abs().max() == 0  # exact
        assert owed["first.weight"].dtype == (torch.bfloat16 if memory == "bf16" else torch.float32)
        assert owed["first.weight"].shape == (128, 64)
        assert (owed["first.weight"].abs().max() > 0) == (world_size > 1)


def _no_sync(rank, world_size):
    state = _state()
    model = wrap(make_model(), state)
    ledger = Ledger()
    for step in range(3):
        local = local_gradients(model, batch(rank, 2 * step))
        for name, value in local_gradients(model, batch(rank, 2 * step + 1)).items():
            local[name] += value
        model.zero_grad()
        before = _owed(state)
        with model.no_sync():
            loss_of(model, batch(rank, 2 * step)).backward()
        after = _owed(state)
        assert all(torch.equal(before[name], after[name]) for name in before)
        loss_of(model, batch(rank, 2 * step + 1)).backward()
        ledger.book(local, gradients(model))
    return ledger.close(state)


def test_the_residual_waits_in_no_sync():
    assert _off(run_pooled(_no_sync, 2), 2) < 1e-5


def _join(rank, world_size):
    state = _state()
    model = wrap(make_model(), state)
    ledger = Ledger()
    with model.join():
        for step in range(3 + 2 * rank):
            local = local_gradients(model, batch(rank, step))
            model.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            ledger.book(local, gradients(model))
    return ledger.close(state)


def test_a_joined_rank_contributes_zeros_and_what_it_owes():
    first, second = run_pooled(_join, 2)
    assert _off([(first[0], second[1], first[2]), second], 2) < 1e-5


def _unused(rank, world_size):
    state = _state()
    torch.manual_seed(0)
    model = wrap(Branches(), state, find_unused_parameters=True)
    ledger = Ledger()
    for step in range(4):
        model.module.use_left = (step + rank) % 2 == 0  # another one on each rank
        local = local_gradients(model, batch(rank, step))
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        ledger.book(local, gradients(model))
    return ledger.close(state)


def test_unused_parameters_contribute_what_they_owe():
    assert _off(run_pooled(_unused, 2), 2) < 1e-5


def _skipped(rank, world_size):
    state = _state()
    model = wrap(make_model(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = []
    for step in range(4):
        before = digest(dict(model.named_parameters()))
        optimizer.zero_grad()
        loss = loss_of(model, batch(rank, step))
        if step == 1 and rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        finite = all(bool(residual.isfinite().all()) for residual in _owed(state).values())
        seen.append((before == digest(dict(model.named_parameters())), finite))
    return seen, digest(dict(model.named_parameters()))


def test_a_step_that_a_scaler_skips_does_not_poison_the_residual():
    first, second = run_pooled(_skipped, 2)
    assert first == second
    assert first[0] == [(False, True), (True, True), (False, True), (False, True)]


def _train(model, optimizer, rank, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        optimizer.step()
    return digest(dict(model.module.named_parameters()))


def _restart(rank, world_size, memory):
    state = _state(memory)
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
        fresh = _state(memory) if how == "state_dict" else pickle.loads(pickled)
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
    state = _state()
    model = wrap(make_model(), state)
    loss_of(model, batch(rank, 0)).backward()
    return state.state_dict()


def _restored(rank, world_size, saved):
    state = _state()
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
        state = _state()
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
    state = _state(named_parameters=nn.Linear(3, 3))
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
        _state().load_state_dict(state)


def test_a_state_without_error_feedback_drops_residuals_with_a_warning():
    section = {**SECTION, "residuals": {"a": torch.zeros(2)}}
    with pytest.warns(UserWarning, match="drops the residuals of 1 parameters"):
        CGXState().load_state_dict({"version": 1, "error_feedback": section})
    with pytest.raises(ValueError, match="error_feedback holds 3; allowed"):
        CGXState().load_state_dict({"version": 1, "error_feedback": 3})
    assert CGXState().state_dict() == {"version": 1}
    CGXState().load_state_dict({"version": 1})


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"error_feedback": 1}, TypeError, "error_feedback=1; allowed: True, False"),
        ({"error_feedback_memory": "fp16"}, ValueError, "'fp16'; allowed: 'fp32', 'bf16', '8bit'"),
        ({"error_feedback_memory": 8}, TypeError, "error_feedback_memory=8; allowed: 'fp32'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        CGXState(**arguments)


def test_a_codec_without_a_bound_on_residuals_is_refused():
    for rounding in ("nearest", "stochastic"):
        codec = torch_cgx.codecs.MaxMin(bits=1, rounding=rounding)
        with pytest.raises(ValueError, match="maxmin bits=1 .*allowed at 1 bit: codec 'rotated'"):
            check_codec(codec._engine)
    for codec in (
        torch_cgx.codecs.MaxMin(bits=2),
        torch_cgx.codecs.Rotated(bits=1),
        torch_cgx.codecs.Trellis(bits=1),
    ):
        check_codec(codec._engine)


ONE_BIT = {
    "params": {"config": {"bits": 1}},
    "override": {"overrides": {"weight": {"bits": 1}}},
    "stochastic": {"config": {"bits": 1, "rounding": "stochastic"}},
    "candidates": {"adaptive": AdaptiveBits(average_bits=3)},
    "options": {},
}


def _one_bit(rank, world_size, given, group_options):
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**group_options))
    state = CGXState(error_feedback=True, **given)
    model = wrap(make_model(), state, process_group=group)
    before = torch_cgx.stats(group)["calls"]
    try:
        loss_of(model, batch(rank, 0)).backward()
    except ValueError as error:
        return str(error), torch_cgx.stats(group)["calls"] - before
    return "", -1


@pytest.mark.parametrize("name", ONE_BIT)
def test_maxmin_at_one_bit_is_refused_with_the_first_bucket(name):
    options = {"bits": 1} if name == "options" else {}
    for text, calls in run_pooled(_one_bit, 2, ONE_BIT[name], options):
        assert "'maxmin bits=1 " in text and "allowed at 1 bit: codec 'rotated'" in text, text
        assert calls == 0
        if name == "candidates":
            assert "candidates has 1" in text and "or candidates=(2, 3, 4, 6, 8)" in text


def _eight_bits_elsewhere(rank, world_size):
    feedback, buffer = ErrorFeedback("8bit"), torch.zeros(4, device="meta")
    with pytest.raises(ValueError, match="'8bit' with gradients on meta; allowed there: 'fp32'"):
        feedback.take(((1, 4),), [buffer], buffer, dist.group.WORLD)
    return True


def test_8_bits_are_for_the_memory_of_the_host():
    assert run_pooled(_eight_bits_elsewhere, 1) == [True]


def _mean_of_targets(rank, world_size, feedback):
    """Each rank pulls the weights to a target of its own; the minimum is at the mean of these."""
    torch.manual_seed(rank)
    target = torch.randn(64, 64)
    module = nn.Linear(64, 64, bias=False)
    nn.init.zeros_(module.weight)
    params = {"codec": "rotated", "bits": 1}
    state = CGXState(config=params, error_feedback=feedback)
    model = wrap(module, state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    mean = torch.zeros(64, 64)  # of the weights over the second half
    for step in range(200):
        optimizer.zero_grad()
        weights = model(torch.eye(64)).T
        ((weights - target).square().sum() / 2).backward()
        optimizer.step()
        if step >= 100:
            mean += module.weight.detach() / 100
    minimum = target.clone()
    dist.all_reduce(minimum, op=dist.ReduceOp.AVG)
    return ((mean - minimum).norm() / minimum.norm()).item()


def test_one_bit_finds_the_minimum_with_error_feedback():
    (without, _), (with_, _) = (run_pooled(_mean_of_targets, 2, on) for on in (False, True))
    assert with_ < 0.1, (with_, without)
    assert with_ < without / 2, (with_, without)


def _moved_on(rank, world_size):
    """A state goes on to another DDP instance, first of the same module, then of another one."""
    state = _state()
    module = make_model()
    model = wrap(module, state)
    loss_of(model, batch(rank, 0)).backward()
    before = _owed(state)
    del model

    gc.collect()
    module.zero_grad()
    model = wrap(module, state)
    ledger = Ledger()
    ledger.book(local_gradients(model, batch(rank, 1)), {})
    for name, residual in before.items():
        ledger.went_in[name] += residual.double()
    loss_of(model, batch(rank, 1)).backward()
    ledger.book({}, gradients(model))
    closed = ledger.close(state)
    del model, module
    gc.collect()
    other = wrap(nn.Linear(64, 40), state)
    loss_of(other, batch(rank, 0)).backward()
    return closed, set(_owed(state))


def test_residuals_follow_their_parameters_to_another_instance():
    ranks = run_pooled(_moved_on, 2)
    assert _off([closed for closed, _ in ranks], 2) < 1e-5
    assert all(names == {"weight", "bias"} for _, names in ranks)


def test_the_hook_says_what_is_wrong_with_names():
    state = _state()
    state.load_state_dict(
        {"version": 1, "error_feedback": {**SECTION, "residuals": {"a": torch.zeros(2)}}}
    )
    with pytest.raises(RuntimeError, match="names for the restored residuals"):
        state.residual([nn.Parameter(torch.zeros(2))], torch.zeros(2), None)  # type: ignore[arg-type]
