"""Error feedback of CGXState over steps and rebuilt buckets, and where DDP calls no hook."""

from __future__ import annotations

import gc
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.error_feedback import ErrorFeedback, check_codec
from tests.distributed import run_pooled
from tests.utils.feedback import MEMORIES, feedback_state, owed
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


class Ledger:
    """Of one rank, by name: what its gradients were, and what came out of the reductions."""

    def __init__(self):
        self.went_in, self.came_out = {}, {}

    def book(self, local, found):
        for into, values in ((self.went_in, local), (self.came_out, found)):
            for name, value in values.items():
                into[name] = into.get(name, 0) + value.double()

    def close(self, state):
        return self.went_in, self.came_out, owed(state)


def _off(ranks, world_size):
    """The largest |went in - came out - owed| over all values, relative to the largest gradient."""
    came_out = ranks[0][1]
    largest, off = 0.0, 0.0
    for name, out in came_out.items():
        left = -world_size * out
        for went_in, _, left_over in ranks:
            left = left + went_in.get(name, 0) - left_over[name].double()
            largest = max(largest, went_in[name].abs().max().item() if name in went_in else 0)
        off = max(off, left.abs().max().item())
    return off / largest


def _steps(rank, world_size, memory, steps, options):
    state = feedback_state(memory)
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
    for _, _, left_over in ledgers:
        assert left_over["norm.weight"].abs().max() == 0  # exact
        assert left_over["first.weight"].dtype == (
            torch.bfloat16 if memory == "bf16" else torch.float32
        )
        assert left_over["first.weight"].shape == (128, 64)
        assert (left_over["first.weight"].abs().max() > 0) == (world_size > 1)


def _no_sync(rank, world_size):
    state = feedback_state()
    model = wrap(make_model(), state)
    ledger = Ledger()
    for step in range(3):
        local = local_gradients(model, batch(rank, 2 * step))
        for name, value in local_gradients(model, batch(rank, 2 * step + 1)).items():
            local[name] += value
        model.zero_grad()
        before = owed(state)
        with model.no_sync():
            loss_of(model, batch(rank, 2 * step)).backward()
        after = owed(state)
        assert all(torch.equal(before[name], after[name]) for name in before)
        loss_of(model, batch(rank, 2 * step + 1)).backward()
        ledger.book(local, gradients(model))
    return ledger.close(state)


def test_the_residual_waits_in_no_sync():
    assert _off(run_pooled(_no_sync, 2), 2) < 1e-5


def _join(rank, world_size):
    state = feedback_state()
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
    state = feedback_state()
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
    state = feedback_state()
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
        finite = all(bool(residual.isfinite().all()) for residual in owed(state).values())
        seen.append((before == digest(dict(model.named_parameters())), finite))
    return seen, digest(dict(model.named_parameters()))


def test_a_step_that_a_scaler_skips_does_not_poison_the_residual():
    first, second = run_pooled(_skipped, 2)
    assert first == second
    assert first[0] == [(False, True), (True, True), (False, True), (False, True)]


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
    state = feedback_state()
    module = make_model()
    model = wrap(module, state)
    loss_of(model, batch(rank, 0)).backward()
    before = owed(state)
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
    return closed, set(owed(state))


def test_residuals_follow_their_parameters_to_another_instance():
    ranks = run_pooled(_moved_on, 2)
    assert _off([closed for closed, _ in ranks], 2) < 1e-5
    assert all(names == {"weight", "bias"} for _, names in ranks)
