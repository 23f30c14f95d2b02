"""Bits decided from all ranks' gradients: against numpy and brute force, and held in between."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from cgx_utils import AdaptiveBits
from cgx_utils.decisions import SAMPLE, Decisions, Layer
from tests import oracle
from tests.distributed import run_pooled
from tests.utils.deciding import (
    BUCKET,
    NUMEL,
    make_state,
    shown_bits,
    spied,
    take_step,
    uneven_model,
)
from tests.utils.test_notices import notices
from tests.utils.training import (
    COMPRESSED,
    Branches,
    batch,
    check_gradients,
    digest,
    gather,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    wrap,
)


def _bytes(numel, bits):
    return numel * bits // 8 + numel // BUCKET * 8


def _codecs(bits, bucket_size=BUCKET):
    return tuple(torch_cgx.codecs.MaxMin(bits=b, bucket_size=bucket_size)._engine for b in bits)


# ---- one layer on one rank


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_errors_of_a_layer_are_those_of_the_codec(dtype):
    torch.manual_seed(0)
    values = (torch.randn(1000) * torch.rand(1000)).to(dtype)
    found = Layer("a", 1000, dtype, _codecs((1, 3, 8))).measure(values, rank=0, step=2)
    exact = values.float().numpy()
    for error, bits in zip(found.tolist(), (1, 3, 8), strict=False):
        spec = oracle.Spec(bits=bits, bucket_size=BUCKET)
        decoded = torch.tensor(oracle.decode(oracle.encode(exact, spec), 1000, spec)).to(dtype)
        wanted = ((decoded.double() - values.double()) ** 2).sum()
        assert error == pytest.approx(float(wanted), rel=1e-12)
    assert found[-1].item() == pytest.approx(
        float((exact.astype(np.float64) ** 2).sum()), rel=1e-12
    )


def test_a_long_layer_is_sampled_by_whole_buckets():
    torch.manual_seed(0)
    numel = 5 * SAMPLE + 100
    scale = torch.linspace(1, 3, numel)
    values = torch.randn(numel) * scale
    layer = Layer("a", numel, torch.float32, _codecs((2, 4), 512))
    found = [layer.measure(values, rank, step=2) for rank in (0, 1)]
    assert torch.equal(*found)
    other_step = layer.measure(values, 0, step=3)
    assert not torch.equal(found[0], other_step)
    for measured in (found[0], other_step):
        for value, codec in zip(measured.tolist(), layer.codecs, strict=False):
            decoded = codec.decode(codec.encode(values), torch.empty_like(values))
            wanted = (decoded.double() - values.double()).square().sum()
            assert value == pytest.approx(float(wanted), rel=0.03)
        assert measured[-1].item() == pytest.approx(float(values.double().square().sum()), rel=0.03)


def test_every_bucket_of_a_long_layer_is_measured_at_some_step():
    unit, units = 512, 3 * SAMPLE // 512
    layer = Layer("a", unit * units, torch.float32, _codecs((1, 2), unit))
    seen = 0.0
    values = torch.zeros(units, unit)
    for number in range(units):
        values[number] = number + 1.0  # equal values: no error, and a square of its own
    for step in range(3):
        seen += float(layer.measure(values, 0, step)[-1]) / 3
    assert seen == pytest.approx(float(values.double().square().sum()))


def test_an_error_budget_out_of_reach_later_takes_the_nearest_choice():
    layer = Layer("a", 1000, torch.float32, _codecs((2, 4)))
    decisions = Decisions(AdaptiveBits(error_budget=0.1, candidates=(2, 4)))
    assert decisions.decide([layer], [[4.0, 0.5, 100.0]]) == [1]
    decisions.bits = {"a": 4}
    assert decisions.decide([layer], [[40.0, 20.0, 100.0]]) == [1]
    assert decisions.decide([layer], [[0.5, 0.1, 100.0]]) == [0]


# ---- ranks


def _trained(rank, world_size, steps):
    exact = dist.new_group(backend="gloo")
    state = make_state()
    plans = spied(state)
    model = wrap(uneven_model(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(1, steps + 1):
        local = local_gradients(model, batch(rank, step))
        parts = {name: gather(local[name], exact) for name in NUMEL}
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        bits = shown_bits(plans[-1])
        levels = 2 ** min(bits.values()) - 1
        check_gradients(gradients(model), local, exact, COMPRESSED, levels=levels, bucket=BUCKET)
        found.append((parts, bits, state.state_dict()["adaptive"]["bits"]))
        optimizer.step()
    same = [a is b for a, b in itertools.pairwise(plans)]
    return found, same, digest(gradients(model)), state.report().rows


def _errors(parts, bits):
    """Of a layer: the squared error, summed over ranks, in float64 by numpy."""
    spec = oracle.Spec(bits=bits, bucket_size=BUCKET)
    total = 0.0
    for part in parts:
        exact = part.numpy().reshape(-1)
        decoded = oracle.decode(oracle.encode(exact, spec), exact.size, spec)
        total += float(((decoded.astype(np.float64) - exact) ** 2).sum())
    return total


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_decide_alike_and_as_brute_force_does(world_size):
    results = run_pooled(_trained, world_size, 9)
    assert len({str((r[0][-1][1:], r[1:])) for r in results}) == 1, "ranks differ"
    found, same, _, rows = results[0]
    candidates = AdaptiveBits(3).candidates
    budget = sum(_bytes(numel, 3) for numel in NUMEL.values())
    decided = {}
    for step, (parts, bits, saved) in enumerate(found, start=1):
        # The bits of a step are those decided before it.
        assert bits == {numel: decided.get(name, 3) for name, numel in NUMEL.items()}, step
        assert step < 3 or bits != {8192: 3, 2048: 3}
        if step in (2, 4, 8):
            options = []
            for choice in itertools.product(candidates, repeat=2):
                if sum(map(_bytes, NUMEL.values(), choice)) <= budget:
                    error = sum(map(_errors, parts.values(), choice))
                    options.append((error, dict(zip(NUMEL, choice, strict=True))))
            error, decided = min(options, key=lambda option: option[0])
        assert saved == decided, step
    # Only a decision makes new plans: the first of DDP's two layouts is that of step 1.
    changed = [i for i, is_same in enumerate(same, start=2) if not is_same]
    assert set(changed) <= {2, 3, 5, 9} and 3 in changed
    assert [row["name"] for row in rows] == [name for name, _ in make_model().named_parameters()]
    by_name = {row["name"]: row for row in rows}
    for name, numel in NUMEL.items():
        row = by_name[name]
        assert (row["numel"], row["codec"]) == (numel, "maxmin")
        assert row["bits"] == found[-1][1][numel]
        assert row["bytes"] == _bytes(numel, row["bits"])
        parts = found[7][0][name]  # of step 8, the last one that was measured
        square = sum(float((p.double() ** 2).sum()) for p in parts)
        expected = (_errors(parts, row["bits"]) / square) ** 0.5
        assert row["relative_error"] == pytest.approx(expected, rel=1e-9)


def _with(rank, world_size, case):
    """A few steps with one of several settings: bits of each step, and what the report has."""
    adaptive, params, options = {
        "start": (AdaptiveBits(3), {"bits": 5}, {}),
        "exact at first": (AdaptiveBits(3), {"bits": 32}, {}),
        "error budget": (AdaptiveBits(error_budget=0.2), {}, {}),
        "fixed": (AdaptiveBits(3), {}, {"overrides": {"second": {"bits": 7}}}),
        "sixteen": (AdaptiveBits(12, (2, 8, 16), 1), {}, {}),
        "stochastic": (AdaptiveBits(2, (1, 2, 4), 1), {"rounding": "stochastic"}, {}),
    }[case]
    state = make_state(adaptive, params, **options)
    plans = spied(state)
    model = wrap(uneven_model(), state)
    for step in range(4):
        take_step(model, rank, step)
    return [shown_bits(plan) for plan in plans], state.report().rows, digest(gradients(model))


@pytest.mark.parametrize(
    "case", ["start", "exact at first", "error budget", "fixed", "sixteen", "stochastic"]
)
def test_settings(case):
    first, second = run_pooled(_with, 2, case)
    assert first == second
    bits, rows, _ = first
    rows = {row["name"]: row for row in rows}
    sent = sum(rows[name]["bytes"] for name in NUMEL)
    if case == "start":
        assert bits[:2] == [{8192: 5, 2048: 5}] * 2
        assert set(bits[2].values()) < set(AdaptiveBits(3).candidates)
    if case == "exact at first":
        assert bits[:2] == [{}, {}] and set(bits[2]) == {8192, 2048}
        assert sent <= sum(_bytes(numel, 3) for numel in NUMEL.values())
    if case == "error budget":
        assert bits[0] == {8192: 8, 2048: 8} and max(bits[-1].values()) < 8
        # Nearly all of the gradient is in this layer.
        assert 0.02 < rows["second.weight"]["relative_error"] < 0.21
    if case == "fixed":
        assert all(step[2048] == 7 and step[8192] == 3 for step in bits)
        # Of the parameter's grad: `adaptive` does not measure this layer.
        assert 0.004 < rows["second.weight"]["relative_error"] < 0.02
    if case == "sixteen":
        assert set(bits[-1].values()) <= {2, 8, 16} and bits[0] == {8192: 8, 2048: 8}
        assert sent <= (8192 + 2048) * 12 // 8 + (8192 + 2048) // BUCKET * 8
    if case == "stochastic":
        assert sent <= sum(_bytes(numel, 2) for numel in NUMEL.values())


def _overflow(rank, world_size, injector):
    """Step 2, which is measured, has gradients that are not finite on one rank."""
    state = make_state()
    model = wrap(uneven_model(), state)
    found = []
    for step in range(1, 6):
        model.zero_grad()
        loss = loss_of(model, batch(rank, step))
        bad = step in (2, 3) and rank == injector
        (loss * float("inf") if bad else loss).backward()
        found.append(state.state_dict()["adaptive"])
    return [(len(s["bits"]), s["step"], s["due"]) for s in found], found[-1]["bits"]


@pytest.mark.parametrize("injector", [0, 1])
def test_gradients_that_are_not_finite_put_the_decision_off(injector):
    first, second = run_pooled(_overflow, 2, injector)
    assert first == second
    assert first[0] == [(0, 2, 2), (0, 3, 3), (0, 4, 4), (2, 5, 8), (2, 6, 8)]


def _branches(rank, world_size):
    torch.manual_seed(0)
    state = make_state(AdaptiveBits(3, every=1))
    model = wrap(Branches(), state, find_unused_parameters=True)
    found = []
    for step in range(4):
        model.module.use_left = step < 2
        take_step(model, rank, step)
        saved = state.state_dict()["adaptive"]
        found.append((saved["bits"], {k: v is None for k, v in saved["errors"].items()}))
    return found


def test_a_layer_without_gradients_keeps_the_bits_of_the_start():
    first, second = run_pooled(_branches, 2)
    assert first == second
    used_left = (
        {"left.weight": 3, "right.weight": 3},
        {"left.weight": False, "right.weight": True},
    )
    assert first[1] == used_left
    assert first[3][1] == {"left.weight": True, "right.weight": False}


def _join(rank, world_size):
    state = make_state(AdaptiveBits(3, every=1))
    model = wrap(uneven_model(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            optimizer.step()
    weights = digest(dict(model.module.named_parameters()))
    return state.state_dict()["adaptive"], weights


def test_join_with_uneven_inputs():
    first, second = run_pooled(_join, 2)
    assert first == second and first[0]["step"] == 6 and len(first[0]["bits"]) == 2


def _logged(rank, world_size, steps):
    with notices() as lines:
        model = wrap(uneven_model(), make_state())
        for step in range(steps):
            take_step(model, rank, step)
    return lines


def test_a_decision_is_one_line_of_rank_0():
    first, second = run_pooled(_logged, 2, 4)
    assert second == [] and len(first) == 2 and first[0].startswith("cgx: compressing 2 of 7")
    assert first[1].startswith("cgx: bits of 2 layers, decided from step 2: 1 with 2, 1 with 6; ")
    assert " bytes per encoding; relative error 0." in first[1]
    assert run_pooled(_logged, 2, 4, env={"CGX_LOG": "off"}) == [[], []]


def _ended(rank, world_size):
    state = make_state()
    model = wrap(uneven_model(), state)
    for step in range(2):
        take_step(model, rank, step)
    del model
    gc.collect()
    dist.destroy_process_group()
    return state.state_dict()["adaptive"]["bits"]


def test_a_group_may_end_while_a_decision_is_under_way():
    assert run_pooled(_ended, 2) == [{"first.weight": 2, "second.weight": 6}] * 2


def test_repr_shows_the_bits_of_the_start_and_the_budget():
    text = repr(make_state(AdaptiveBits(2.5)))
    assert text.startswith("CGXState(bits=2, bucket_size=64, codec='maxmin', min_size=1024, ")
    assert (
        "adaptive=AdaptiveBits(average_bits=2.5, candidates=(1, 2, 3, 4, 6, 8), every=100" in text
    )
    assert repr(make_state(params={"bits": 5})).startswith("CGXState(bits=5, ")


def test_a_report_before_the_first_step():
    report = make_state().report()
    assert report.rows == [] and str(report) == "no step has been taken yet"
