"""Bits decided from all ranks' gradients: against numpy and brute force, held in between, restored
from checkpoints; and every error.
"""

from __future__ import annotations

import gc
import itertools
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState
from cgx_utils.decisions import SAMPLE, Decisions, Layer
from tests import oracle
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.test_notices import notices
from tests.utils.training import (
    COMPRESSED,
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

BUCKET = 64
NUMEL = {"first.weight": 8192, "second.weight": 2048}


def _state(adaptive=None, params=None, **options):
    adaptive = AdaptiveBits(3) if adaptive is None else adaptive
    params = {"bucket_size": BUCKET, **(params or {})}
    return CGXState(None, compression_params=params, adaptive=adaptive, **options)


def _uneven():
    """A model whose second matrix has much larger gradients than its first."""
    model = make_model()
    with torch.no_grad():
        model.second.weight.mul_(0.1)
    return model


def _step(model, rank, step):
    model.zero_grad()
    loss_of(model, batch(rank, step)).backward()


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


# ---- ranks


def _spied(state):
    """The bits of the layers of each bucket, as `plan` returns them, and the plans themselves."""
    plans, inner = [], state.plan

    def plan(parameters, backend):
        plans.append(inner(parameters, backend))
        return plans[-1]

    state.plan = plan
    return plans


def _shown(plan):
    return {numel: codec.bits for numel, codec in plan if codec is not None}


def _trained(rank, world_size, steps):
    exact = dist.new_group(backend="gloo")
    state = _state()
    plans = _spied(state)
    model = wrap(_uneven(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(1, steps + 1):
        local = local_gradients(model, batch(rank, step))
        parts = {name: gather(local[name], exact) for name in NUMEL}
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        bits = _shown(plans[-1])
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
    state = _state(adaptive, params, **options)
    plans = _spied(state)
    model = wrap(_uneven(), state)
    for step in range(4):
        _step(model, rank, step)
    return [_shown(plan) for plan in plans], state.report().rows, digest(gradients(model))


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
        assert rows["second.weight"]["relative_error"] is None
    if case == "sixteen":
        assert set(bits[-1].values()) <= {2, 8, 16} and bits[0] == {8192: 8, 2048: 8}
        assert sent <= (8192 + 2048) * 12 // 8 + (8192 + 2048) // BUCKET * 8
    if case == "stochastic":
        assert sent <= sum(_bytes(numel, 2) for numel in NUMEL.values())


def _overflow(rank, world_size, injector):
    """Step 2, which is measured, has gradients that are not finite on one rank."""
    state = _state()
    model = wrap(_uneven(), state)
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


class _Branches(nn.Module):
    """Uses one of two branches: the other has gradients of zeros."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(64, 40)
        self.right = nn.Linear(64, 40)
        self.use_left = True

    def forward(self, x):
        return (self.left if self.use_left else self.right)(x)


def _branches(rank, world_size):
    torch.manual_seed(0)
    state = _state(AdaptiveBits(3, every=1))
    model = wrap(_Branches(), state, find_unused_parameters=True)
    found = []
    for step in range(4):
        model.module.use_left = step < 2
        _step(model, rank, step)
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
    state = _state(AdaptiveBits(3, every=1))
    model = wrap(_uneven(), state)
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
        model = wrap(_uneven(), _state())
        for step in range(steps):
            _step(model, rank, step)
    return lines


def test_a_decision_is_one_line_of_rank_0():
    first, second = run_pooled(_logged, 2, 4)
    assert second == [] and len(first) == 2 and first[0].startswith("cgx: compressing 2 of 7")
    assert first[1].startswith("cgx: bits of 2 layers, decided from step 2: 1 with 2, 1 with 6; ")
    assert " bytes per encoding; relative error 0." in first[1]
    assert run_pooled(_logged, 2, 4, env={"CGX_LOG": "off"}) == [[], []]


def _ended(rank, world_size):
    state = _state()
    model = wrap(_uneven(), state)
    for step in range(2):
        _step(model, rank, step)
    del model
    gc.collect()
    dist.destroy_process_group()
    return state.state_dict()["adaptive"]["bits"]


def test_a_group_may_end_while_a_decision_is_under_way():
    assert run_pooled(_ended, 2) == [{"first.weight": 2, "second.weight": 6}] * 2


def test_repr_shows_the_bits_of_the_start_and_the_budget():
    text = repr(_state(AdaptiveBits(2.5)))
    assert text.startswith("CGXState(bits=2, bucket_size=64, codec='maxmin', layer_min_size=1024, ")
    assert (
        "adaptive=AdaptiveBits(average_bits=2.5, candidates=(1, 2, 3, 4, 6, 8), every=100" in text
    )
    assert repr(_state(params={"bits": 5})).startswith("CGXState(bits=5, ")


# ---- checkpoints


def _resumed(rank, world_size, way):
    def run(model, state, steps):
        bits = []
        plans = _spied(state)
        for step in steps:
            _step(model, rank, step)
            bits.append(_shown(plans[-1]))
        return bits

    whole_state = _state()
    whole = run(wrap(_uneven(), whole_state), whole_state, range(9))
    state = _state()
    model = wrap(_uneven(), state)
    first = run(model, state, range(4))
    if way == "state_dict":
        saved = pickle.dumps(state.state_dict())
        state = _state()
        state.load_state_dict(pickle.loads(saved))
    else:
        del state.plan  # the spy
        state = pickle.loads(pickle.dumps(state))
    second = run(wrap(model.module, state), state, range(4, 9))
    return whole, first + second, state.state_dict() == whole_state.state_dict()


def test_a_decision_survives_a_checkpoint():
    results = run_pooled(_resumed, 2, "state_dict")
    assert results[0] == results[1]
    whole, resumed, equal = results[0]
    assert whole == resumed and equal
    assert len({str(bits) for bits in whole}) > 1


def test_a_pickled_state_keeps_decisions():
    results = run_pooled(_resumed, 2, "pickle")
    assert results[0] == results[1]
    whole, resumed, _ = results[0]
    # The decision that was under way at step 4 is not in the pickle: step 5 is measured instead.
    assert whole[:4] == resumed[:4] and resumed[4] == whole[3]


class _Other(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.first = nn.Linear(64, outputs)

    def forward(self, x):
        return self.first(x)


def _other_model(rank, world_size):
    state = _state()
    model = wrap(_uneven(), state)
    for step in range(3):
        _step(model, rank, step)
    saved = state.state_dict()
    found = []
    for outputs in (128, 40):
        other = _state()
        other.load_state_dict(saved)  # the names are not known yet
        wrapped = wrap(_Other(outputs), other)
        calls = torch_cgx.stats()["calls"]
        found.append(failure(wrapped(torch.ones(2, 64)).sum().backward))
        assert torch_cgx.stats()["calls"] == calls
        named = _state(named_parameters=_Other(outputs))
        found.append(failure(lambda named=named: named.load_state_dict(saved)))
    return found


def test_a_state_of_another_model_is_refused_before_anything_is_sent():
    first, second = run_pooled(_other_model, 2)
    assert first == second
    missing = "there 'norm.weight' has 128 values, here no parameter is named 'norm.weight'"
    size = "there 'first.weight' has 8192 values, here 'first.weight' has 2560 values"
    for text, words in zip(first, [missing, missing, size, size], strict=True):
        assert text.startswith("ValueError: the restored state is of another model: ")
        assert words in text and "allowed: a state of a model with the same parameters" in text


_ADAPTIVE = {"step": 5, "due": 8, "bits": {"a": 3}, "errors": {"a": 0.1}, "model": {"a": 64}}


@pytest.mark.parametrize(
    ("saved", "error", "words"),
    [
        ([1], TypeError, "given list; allowed: what CGXState.state_dict() returned"),
        ({}, ValueError, "version None; allowed: 1"),
        ({"version": 2}, ValueError, "version 2; allowed: 1"),
        ({"version": 1, "adaptive": {}}, ValueError, "step=None; allowed: int"),
        ({"version": 1, "adaptive": 3}, ValueError, "step=None; allowed: int"),
        (
            {"version": 1, "adaptive": {**_ADAPTIVE, "bits": [3]}},
            ValueError,
            "bits=[3]; allowed: dict",
        ),
        (
            {"version": 1, "adaptive": {**_ADAPTIVE, "bits": {"a": 5}}},
            ValueError,
            "5 bits for 'a'; allowed: the candidates (1, 2, 3, 4, 6, 8)",
        ),
    ],
)
def test_what_no_state_has_written_is_refused(saved, error, words):
    state = _state()
    before = state.state_dict()
    with pytest.raises(error) as caught:
        state.load_state_dict(saved)
    assert words in str(caught.value)
    assert state.state_dict() == before


def test_a_decision_needs_a_state_that_decides():
    with pytest.raises(ValueError, match="section 'adaptive', but this CGXState has none; allowed"):
        CGXState().load_state_dict({"version": 1, "adaptive": _ADAPTIVE})
    CGXState().load_state_dict(CGXState().state_dict())
    _state().load_state_dict(CGXState().state_dict())


# ---- errors


def _cannot(rank, world_size):
    state = _state(AdaptiveBits(error_budget=1e-3, candidates=(2, 4)))
    model = wrap(_uneven(), state)
    _step(model, rank, 0)
    _step(model, rank, 1)
    calls = torch_cgx.stats()["calls"]
    found = failure(lambda: _step(model, rank, 2))
    assert torch_cgx.stats()["calls"] == calls
    return found


def test_a_budget_that_no_candidate_meets():
    first, second = run_pooled(_cannot, 2)
    assert first == second
    assert first.startswith(
        "ValueError: error_budget=0.001 cannot be met: the relative error of 2 "
    )
    assert "candidates (2, 4) is 0." in first and "allowed: that or more, or more bits" in first


def test_an_error_budget_out_of_reach_later_takes_the_nearest_choice():
    layer = Layer("a", 1000, torch.float32, _codecs((2, 4)))
    decisions = Decisions(AdaptiveBits(error_budget=0.1, candidates=(2, 4)))
    assert decisions.decide([layer], [[4.0, 0.5, 100.0]]) == [1]
    decisions.bits = {"a": 4}
    assert decisions.decide([layer], [[40.0, 20.0, 100.0]]) == [1]
    assert decisions.decide([layer], [[0.5, 0.1, 100.0]]) == [0]


def _refused_candidate(rank, world_size):
    model = wrap(_uneven(), _state(AdaptiveBits(3), {"codec": "bf16"}))
    calls = torch_cgx.stats()["calls"]
    found = failure(lambda: _step(model, rank, 0))
    assert torch_cgx.stats()["calls"] == calls
    return found


def test_a_candidate_that_the_codec_does_not_have():
    first, second = run_pooled(_refused_candidate, 2)
    assert first == second
    assert "adaptive: candidates has 1, for '" in first and "bits='1' is not allowed" in first


def _different(rank, world_size):
    model = wrap(_uneven(), _state(AdaptiveBits(3, every=1 + rank)))
    return failure(lambda: [_step(model, rank, step) for step in range(6)])


def test_ranks_with_different_parameters_get_an_error():
    for text in run_pooled(_different, 2, timeout=40, group_timeout=10):
        assert text.startswith("MismatchError") and "ranks disagree on the collective" in text


def test_adaptive_is_an_adaptive_bits():
    with pytest.raises(TypeError, match="adaptive=3; allowed: an AdaptiveBits, None"):
        CGXState(adaptive=3)


def test_a_report_before_the_first_step():
    report = _state().report()
    assert report.rows == [] and str(report) == "no step has been taken yet"
