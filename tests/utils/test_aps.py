"""CGXState(aps=True): gradients that the wire's format would lose arrive, on all ranks alike."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch
from torch import nn

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, cgx_hook
from tests.calls import failure
from tests.distributed import run_pooled
from tests.utils.feedback import MEMORIES
from tests.utils.training import (
    COMPRESSED,
    Branches,
    batch,
    digest,
    exact_mean,
    gather,
    gradients,
    loss_of,
    make_model,
    wrap,
)

FP16 = {"codec": "fp16", "bits": 16}
TINY = 1e-8  # of the loss: most gradients are below the least number of fp16


class Scaled(nn.Module):
    """A model whose gradients are tiny or huge."""

    def __init__(self, scale):
        super().__init__()
        self.net, self.scale = make_model(), scale

    def forward(self, x):
        return self.net(x) * self.scale


def _gradients_of_step(model, rank, step):
    """What the reduction gave, and the exact mean, by name."""
    x, _ = batch(rank, step)
    inner = model.module
    inner.zero_grad()
    with model.no_sync():
        inner(x).sum().backward()
    local = gradients(model)
    inner.zero_grad()
    model(x).sum().backward()
    found = gradients(model)
    return found, {name: exact_mean(gather(value, None)) for name, value in local.items()}


def _relative_errors(found, exact):
    """By name, of the compressed layers."""
    errors = {}
    for name, value in found.items():
        if name.removeprefix("net.") in COMPRESSED:
            wanted = exact[name].double()
            errors[name] = ((value.double() - wanted).norm() / wanted.norm()).item()
    return errors


def _training(rank, world_size):
    """(digests of gradients, largest relative errors) of states with APS, and of one without."""
    results = {}
    for label, scale, aps, ddp in (
        ("tiny", TINY, True, {}),
        ("several buckets", TINY, True, {"bucket_cap_mb": 0.004}),
        ("huge", 1e6, True, {}),
        ("without", TINY, False, {}),
    ):
        state = CGXState(config=FP16, aps=aps)
        model = wrap(Scaled(scale), state, **ddp)
        seen, worst = [], 0.0
        for step in range(3):
            found, exact = _gradients_of_step(model, rank, step)
            seen.append(digest(found))
            worst = max(worst, *_relative_errors(found, exact).values())
            for name in found.keys() - {f"net.{one}" for one in COMPRESSED}:
                assert torch.equal(found[name], exact[name]), name  # exact layers
        results[label] = seen, worst
        if label == "tiny":
            rows = {row["name"]: row["relative_error"] for row in state.report().rows}
            results["report"] = [rows[f"net.{name}"] for name in sorted(COMPRESSED)]
    return results


@pytest.mark.parametrize("world_size", [2, 4])
def test_tiny_and_huge_gradients_arrive(world_size):
    ranks = run_pooled(_training, world_size)
    for label in ("tiny", "several buckets", "huge"):
        assert len({tuple(found[label][0]) for found in ranks}) == 1, label
        assert ranks[0][label][1] < 1e-3, label
    assert ranks[0]["without"][1] > 0.5
    assert all(0 < error < 1e-3 for error in ranks[0]["report"])


def _with_feedback(rank, world_size):
    """By memory: |went in - came out - owed|, relative to the largest gradient, and digests."""
    results = {}
    for memory in MEMORIES:
        state = CGXState(config=FP16, aps=True, error_feedback=True, error_feedback_memory=memory)
        model = wrap(Scaled(TINY), state)
        total: dict[str, torch.Tensor] = {}
        largest = 0.0
        seen = []
        for step in range(4):
            found, exact = _gradients_of_step(model, rank, step)
            seen.append(digest(found))
            for name in exact:
                largest = max(largest, exact[name].abs().max().item())
                total[name] = total.get(name, 0) + exact[name].double() - found[name].double()
        owed = state.state_dict()["error_feedback"]["residuals"]
        off = 0.0
        for name, left in total.items():
            mean = torch.stack(gather(owed[name].double(), None)).mean(0)
            off = max(off, (left - mean).abs().max().item())
        some = max(owed[f"net.{name}"].abs().max().item() for name in COMPRESSED)
        results[memory] = off / largest, some / largest, seen
    return results


def test_residuals_are_owed_in_the_units_of_the_gradients():
    ranks = run_pooled(_with_feedback, 2)
    for memory in MEMORIES:
        assert len({tuple(found[memory][2]) for found in ranks}) == 1
        off, some, _ = ranks[0][memory]
        assert off < {"fp32": 2e-7, "bf16": 1e-4, "8bit": 1e-4}[memory], memory
        assert 0 < some < 2e-3  # half a step of fp16


def _zero_layer(rank, world_size):
    model = wrap(Branches(), CGXState(config=FP16, aps=True), find_unused_parameters=True)
    wrong = []
    for step in range(3):
        model.zero_grad()
        model.module.use_left = step != 1
        x, _ = batch(rank, step)
        (model(x) * TINY).sum().backward()
        used, unused = (model.module.left, model.module.right)[:: 1 if step != 1 else -1]
        if not (used.weight.grad != 0).any():
            wrong.append(f"step {step}: nothing arrived")
        if unused.weight.grad is not None and unused.weight.grad.any():
            wrong.append(f"step {step}: {unused.weight.grad}")
    # On one rank only, and a NaN that the others have to see.
    model.zero_grad()
    model.module.use_left = True
    (model(batch(rank, 5)[0]) * (TINY if rank == 0 else 0.0)).sum().backward()
    if not (model.module.left.weight.grad != 0).any():
        wrong.append("zeros of another rank")
    model.zero_grad()
    (model(batch(rank, 6)[0]) * (1.0 if rank == 0 else float("inf"))).sum().backward()
    if model.module.left.weight.grad.isfinite().any():
        wrong.append("an infinity was lost")
    return wrong


def test_layers_of_zeros_and_infinities():
    assert run_pooled(_zero_layer, 2) == [[]] * 2


def _joined(rank, world_size):
    """Rank 1 ends first, and contributes zeros; the other's gradient arrives as half of it."""
    model = wrap(Scaled(TINY), CGXState(config=FP16, aps=True))
    with model.join():
        for step in range(3 - rank):
            model.zero_grad()
            model(batch(rank, step)[0]).sum().backward()
    if rank == 1:
        return 0.0
    local = make_model()
    (local(batch(0, 2)[0]) * TINY).sum().backward()
    halves = {f"net.{name}": value / 2 for name, value in gradients(local).items()}
    return max(_relative_errors(gradients(model), halves).values())


def test_a_rank_that_has_joined():
    assert 0 < run_pooled(_joined, 2)[0] < 1e-3


def _one_by_one(rank, world_size):
    """torch's "python_reducer" calls the hook with (gradient, parameter)."""
    state = CGXState(config=FP16, aps=True)
    model = wrap(Scaled(TINY), state)
    exact = {}
    found = {}
    for number, (name, parameter) in enumerate(model.module.named_parameters()):
        generator = torch.Generator().manual_seed(10 * number + rank)
        gradient = torch.randn(parameter.shape, generator=generator) * TINY
        exact[name] = exact_mean(gather(gradient, None))
        cgx_hook(state, (gradient, parameter)).wait()
        found[name] = gradient
    return max(_relative_errors(found, exact).values()), digest(found)


def test_gradients_one_by_one():
    first, second = run_pooled(_one_by_one, 2)
    assert first == second and 0 < first[0] < 1e-3


def _resumed(rank, world_size):
    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            (loss_of(model, batch(rank, step)) * TINY).backward()
            optimizer.step()
        return digest(dict(model.module.named_parameters()))

    options = {"config": FP16, "aps": True, "error_feedback": True}
    state = CGXState(**options)
    model = wrap(make_model(), state)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, range(2))
    saved = state.state_dict()
    weights = {name: value.clone() for name, value in model.module.state_dict().items()}
    moments = pickle.loads(pickle.dumps(optimizer.state_dict()))
    whole = train(model, optimizer, range(2, 4))
    again = CGXState(**options)
    again.load_state_dict(saved)
    other = make_model(1)
    other.load_state_dict(weights)
    model = wrap(other, again)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(moments)
    return saved["aps"], whole == train(model, optimizer, range(2, 4))


def test_a_resumed_training_goes_on_with_it():
    assert run_pooled(_resumed, 2) == [(True, True)] * 2


def _errors(rank, world_size):
    """What the first step of these states raises, on this rank."""
    found = []
    for options in (
        {"config": {"bits": 4}, "aps": True},
        {"config": FP16, "overrides": {"second": {"codec": "rotated", "bits": 4}}, "aps": True},
        {"config": {"codec": "fp16"}, "schedule": {0: 16, 5: 32}, "aps": True},
        {"schedule": {0: 32, 5: 4}, "aps": True},
    ):
        model = wrap(make_model(), CGXState(**options))
        try:
            loss_of(model, batch(rank, 0)).backward()
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_codecs_without_a_range_are_errors_of_the_first_step():
    for found in run_pooled(_errors, 2):
        assert "aps=True with the codec 'maxmin" in found[0]
        assert "aps=True with the codec 'rotated" in found[1]
        assert found[2] == ""
        assert "schedule[5]: aps=True with the codec 'maxmin" in found[3]


def _mismatch(rank, world_size, kind):
    codec = "bf16" if rank == 0 and kind == "codecs" else "fp16"
    state = CGXState(codec=codec, bits=16, aps=rank == 0 or kind == "codecs")
    model = wrap(make_model(), state)
    loss_of(model, batch(rank, 0)).backward()


@pytest.mark.parametrize("kind", ["aps", "codecs"])
def test_ranks_that_differ_are_a_mismatch(kind):
    for outcome in run_pooled(_mismatch, 2, kind, check=False, timeout=30):
        assert isinstance(outcome.exception, torch_cgx.MismatchError), outcome.report()
        assert outcome.seconds < 20


def test_arguments():
    state = CGXState(config=FP16, aps=True)
    assert state.aps and "aps=True" in repr(state) and not CGXState().aps
    assert pickle.loads(pickle.dumps(state)).aps
    assert "aps=1; allowed" in failure(lambda: CGXState(aps=1))
    assert "aps=True and adaptive" in failure(lambda: CGXState(adaptive=AdaptiveBits(4), aps=True))
    assert "aps" in failure(lambda: torch_cgx.all_gather_single(aps=True))


def test_loading_compares():
    with_it, without = CGXState(config=FP16, aps=True), CGXState(config=FP16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_it.load_state_dict(with_it.state_dict())
        without.load_state_dict(without.state_dict())
    with pytest.warns(UserWarning, match="has aps=True, this one aps=False, which is used"):
        without.load_state_dict(with_it.state_dict())
    with pytest.warns(UserWarning, match="has aps=False, this one aps=True, which is used"):
        with_it.load_state_dict(without.state_dict())
    assert with_it.aps and not without.aps
    assert "aps is 3; allowed" in failure(
        lambda: without.load_state_dict({**without.state_dict(), "aps": 3})
    )
