"""Where memory rounds around an optimizer's step: against the same optimizer, cast by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import equal, images, mlp, net, step
from torch_cgx import _format_sums, emulate
from torch_cgx.emulate import Float, ZScore

SMAQ = ZScore(6, 8, rounding="zero")
OPTIMIZERS = {
    "sgd": lambda p, **o: torch.optim.SGD(p, lr=0.1, **o),
    "momentum": lambda p, **o: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3, **o),
    "nesterov": lambda p, **o: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **o),
    "adam": lambda p, **o: torch.optim.Adam(p, lr=1e-2, **o),
    "amsgrad": lambda p, **o: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, **o),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
    "adagrad": lambda p, **o: torch.optim.Adagrad(p, lr=1e-2, **o),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
}
NUMBERS = {"step", "mu_product", "eta", "mu"}  # of a step, which no memory holds for each value
FORMATS = {"gradients": "e5m2", "weights": "bf16", "optimizer_state": Float(8, 5)}


def given(seed=0):
    return draw(8, 24, seed=seed, dtype=torch.float32)


def by_hand(model, optimizer, x, formats, backward=True):
    """A step, its casts in their order: gradients, then the step, then weights and state."""
    if backward:
        optimizer.zero_grad()
        model(x).square().mean().backward()
    params = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        if "gradients" in formats:
            for p in params:
                p.grad.copy_(emulate.cast(p.grad, formats["gradients"]))
        optimizer.step()
        for p in params:
            if "weights" in formats:
                p.copy_(emulate.cast(p, formats["weights"]))
            for key, value in optimizer.state[p].items():
                if "optimizer_state" in formats and torch.is_tensor(value) and key not in NUMBERS:
                    value.copy_(emulate.cast(value, formats["optimizer_state"]))


def state_of(optimizer):
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]


def pairs(name, model=None, **options):
    """Two equal models with equal optimizers."""
    model = model or mlp(2)
    other = copy.deepcopy(model)
    make = OPTIMIZERS[name]
    return (model, make(model.parameters(), **options)), (
        other,
        make(other.parameters(), **options),
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kinds", [*FORMATS, " ".join(FORMATS)])
def test_casts_come_at_their_time(name, kinds):
    formats = {kind: FORMATS[kind] for kind in kinds.split()}
    (model, optimizer), (plain, own) = pairs(name)
    emulate.apply(model, optimizer, **formats)
    for number in range(3):
        step(model, optimizer, given(number))
        by_hand(plain, own, given(number), formats)
        assert equal(list(model.parameters()), list(plain.parameters()))
        assert equal(state_of(optimizer), state_of(own))
        if "gradients" in formats:
            grads = ([p.grad for p in one.parameters()] for one in (model, plain))
            assert equal(*grads)


@pytest.mark.parametrize("way", ["foreach", "fused"])
@pytest.mark.parametrize("name", ["momentum", "adam", "amsgrad", "adagrad"])
def test_foreach_and_fused_steps(name, way):
    (model, optimizer), (plain, own) = pairs(name, **{way: True})
    emulate.apply(model, optimizer, **FORMATS)
    for number in range(3):
        step(model, optimizer, given(number))
        by_hand(plain, own, given(number), FORMATS)
    assert equal(list(model.parameters()), list(plain.parameters()))
    assert equal(state_of(optimizer), state_of(own))


@pytest.mark.parametrize("as_keyword", [True, False])
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_closure_makes_the_gradients_in_the_step(name, as_keyword):
    (model, optimizer), (plain, own) = pairs(name)
    emulate.apply(model, optimizer, **FORMATS)

    def closure():
        optimizer.zero_grad()
        loss = model(given()).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        loss = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
        assert float(loss.detach()) > 0
        by_hand(plain, own, given(), FORMATS)
    assert equal(list(model.parameters()), list(plain.parameters()))


def test_lbfgs_with_formats_of_gradients_and_weights():
    model = mlp(2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    emulate.apply(model, optimizer, gradients="bf16", weights="bf16")

    def closure():
        optimizer.zero_grad()
        loss = model(given()).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    for p in model.parameters():
        assert torch.equal(p, emulate.cast(p.detach(), "bf16"))
        assert torch.equal(p.grad, emulate.cast(p.grad, "bf16"))


def test_several_groups_and_parameters_that_are_left():
    """Those of other models, without a gradient, or that the filter or the optimizer leaves."""
    model, other = nn.ModuleDict({n: nn.Linear(24, 24) for n in "abcd"}), nn.Linear(24, 24)
    parts = [{"params": model["a"].parameters()}, {"params": [*model["b"].parameters()], "lr": 0.0}]
    parts += [{"params": [*other.parameters(), *model["d"].parameters()]}]
    optimizer = torch.optim.SGD(parts, lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = [p.detach().clone() for p in other.parameters()]
    emulate.apply(model, optimizer, weights="e2m1", filter="^[abc]")
    loss = sum(model[n](given()).sum() for n in "abc") + other(given()).sum()
    loss.backward()
    for p in other.parameters():
        p.grad.zero_()
    optimizer.step()
    now = model.state_dict()
    for name, value in now.items():
        cast = emulate.cast(value, "e2m1")
        assert torch.equal(value, cast) == (name[0] in "ab")
        assert torch.equal(value, before[name]) == (name[0] in "cd")
    assert torch.equal(now["b.weight"], emulate.cast(before["b.weight"], "e2m1"))
    assert equal(list(other.parameters()), kept)


def test_parameters_that_a_step_leaves_stay():
    """SmaQ's result is not its own cast: weights that are not trained would wander."""
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    emulate.apply(model, optimizer, recipe="smaq68")
    step(model, optimizer, given())
    frozen, state = model[0].weight.detach().clone(), optimizer.state[model[0].weight]
    momentum = state["momentum_buffer"].clone()
    model[0].requires_grad_(False)
    step(model, optimizer, given())
    assert torch.equal(model[0].weight, frozen)
    assert torch.equal(state["momentum_buffer"], momentum)


def test_an_optimizer_that_is_made_later():
    """Any that steps the model's parameters, and no other one's."""
    (model, _), (plain, own) = pairs("adam")
    other = nn.Linear(24, 24)
    emulation = emulate.apply(model, **FORMATS)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    for number in range(2):
        step(model, optimizer, given(number))
        by_hand(plain, own, given(number), FORMATS)
        step(other, others, given(number))
    assert equal(list(model.parameters()), list(plain.parameters()))
    assert not torch.equal(other.weight, emulate.cast(other.weight.detach(), "bf16"))
    emulation.remove()
    step(model, optimizer, given())
    assert not equal(
        list(model.parameters()), [emulate.cast(p.detach(), "bf16") for p in model.parameters()]
    )


def test_two_optimizers_of_one_model():
    model = mlp(2)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.1)
    emulate.apply(model, weights="e4m3")
    model(given()).sum().backward()
    kept = model[2].weight.detach().clone()
    first.step()
    assert torch.equal(model[2].weight, kept)
    second.step()
    for p in model.parameters():
        assert torch.equal(p, emulate.cast(p.detach(), "e4m3"))


# ---- SmaQ ----


def test_smaqs_vector():
    """V1 of seeds.md 2.5, as a weight after a step that moves nothing."""
    values = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 20]
    wanted = [1.0993829, 2.1795063, 3.2596295, 4.3397532, 5.0598354]
    wanted += [6.1399589, 6.8600411, 7.9401646, 8.6602468, 19.8729572]
    model = nn.Linear(10, 1, bias=False)
    model.weight.data.copy_(torch.tensor([values]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    emulate.apply(model, optimizer, weights=SMAQ)
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([wanted]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["adam", "amsgrad", "adagrad", "adadelta", "adamax", "nadam"])
def test_squares_stay_non_negative(name):
    """SmaQ rounds values near 0 below it; a root is taken of these."""
    model = mlp(2)
    optimizer = OPTIMIZERS[name](model.parameters())
    emulate.apply(model, optimizer, optimizer_state=ZScore(3, 5))
    for number in range(4):
        step(model, optimizer, given(number))
    roots = {"exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg", "acc_delta", "exp_inf"}
    found = [v for s in optimizer.state.values() for k, v in s.items() if k in roots]
    assert found and all(float(one.min()) >= 0 for one in found)
    assert all(p.isfinite().all() for p in model.parameters())
    if name == "adam":
        averages = [s["exp_avg"] for s in optimizer.state.values()]
        assert any(float(one.min()) < 0 for one in averages)


def test_weights_of_batch_norms_stay_exact():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    emulation = emulate.apply(model, optimizer, "smaq68")
    step(model, optimizer, images())
    kinds = {row.tensor: set() for row in emulation.ledger().rows}
    for row in emulation.ledger().rows:
        kinds[row.tensor].add(row.layer)
    exempt = {"bn.weight", "bn.bias", "block.1.weight", "block.1.bias"}
    every = {name for name, _ in model.named_parameters()}
    assert kinds["weights"] == every - exempt
    assert kinds["gradients"] == kinds["optimizer_state.momentum_buffer"] == every


@pytest.mark.parametrize("kinds", ["weights gradients", "optimizer_state"])
def test_random_numbers_are_others_for_each_tensor_and_step(kinds):
    model = nn.ModuleList([nn.Linear(24, 24, bias=False) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    random = emulate.preset("e2m1", rounding="stochastic")
    emulate.apply(model, optimizer, **dict.fromkeys(kinds.split(), random))
    found = []
    for _ in range(2):
        for layer in model:
            layer.weight.data.fill_(0.3)
            layer.weight.grad = torch.full((24, 24), 0.3)
            optimizer.state[layer.weight].clear()
        optimizer.step()
        for layer in model:
            tensors = [layer.weight.detach(), layer.weight.grad]
            if kinds == "optimizer_state":
                tensors = [optimizer.state[layer.weight]["momentum_buffer"]]
            found += [one != 0 for one in tensors]
    for i, one in enumerate(found):
        assert 0.5 < float(one.float().mean()) < 0.7
        assert not any(torch.equal(one, other) for other in found[:i])


# ---- APS ----


def test_aps_puts_small_gradients_into_the_formats_range():
    """As the sum of one rank that simulate() makes, of each parameter by itself."""
    (model, optimizer), _ = pairs("sgd")
    recipe = emulate.recipe("cpd(4,3)")
    format = recipe["gradients"]["format"]
    recipe["gradients"]["aps"] = True
    emulation = emulate.apply(model, optimizer, recipe)
    emulation.measure = True
    (1e-7 * model(given()).square().mean()).backward()
    exact = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    assert all(bool((emulate.cast(one, format) == 0).all()) for one in exact)
    for p, one in zip(model.parameters(), exact, strict=True):
        wanted = _format_sums.FormatSum(format, aps=True).run([one], 0)
        assert torch.equal(p.grad, wanted) and p.grad.any()
    for (name, _), one in zip(model.named_parameters(), exact, strict=True):
        record = emulation.records[f"{name}/gradients"]
        assert record["amax"] == pytest.approx(float(one.abs().max()), rel=1e-6)
        assert record["sqnr"] > 25 and record["saturated"] == 0


def test_aps_of_gradients_that_are_zero_or_not_finite():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    emulation = emulate.apply(model, optimizer, gradients={"format": "e4m3", "aps": True})
    emulation.measure = True
    model.weight.grad, model.bias.grad = torch.zeros(8, 8), torch.full((8,), float("inf"))
    optimizer.step()
    assert not model.weight.grad.any() and model.bias.grad.isnan().all()


# ---- GradScaler ----


@pytest.mark.parametrize("way", [{}, {"fused": True}])
@pytest.mark.parametrize("unscale", [False, True])
def test_a_grad_scaler_scales_nothing_that_is_cast(way, unscale):
    """Gradients are cast without the scale, which a fused step divides by itself."""
    (model, optimizer), (plain, own) = pairs("adam", **way)
    emulate.apply(model, optimizer, **FORMATS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for number in range(3):
        optimizer.zero_grad()
        scaler.scale(model(given(number)).square().mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        by_hand(plain, own, given(number), FORMATS)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", [{}, {"fused": True}])
def test_a_step_that_a_grad_scaler_skips_changes_nothing(way):
    (model, optimizer), _ = pairs("adam", **way)
    emulate.apply(model, optimizer, "smaq68")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    step(model, optimizer, given())
    weights = [p.detach().clone() for p in model.parameters()]
    state = [one.clone() for one in state_of(optimizer)]
    optimizer.zero_grad()
    scaler.scale(model(given()).square().mean() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**11
    assert equal(list(model.parameters()), weights)
    assert equal(state_of(optimizer), state)


# ---- steps in steps ----


class Twice(torch.optim.SGD):
    """Calls its base's step, which torch has given hooks, too."""

    def step(self, closure=None):
        return super().step(closure)


class Around(torch.optim.Optimizer):
    """Calls another optimizer's step, and moves weights by itself."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    one.add_(0.001)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("given_to", ["optimizer", "none"])
@pytest.mark.parametrize("kind", ["base", "inner"])
def test_steps_in_steps_cast_once(kind, given_to, closure):
    torch.optim.SGD([torch.zeros(1)])  # now SGD.step has hooks
    model, plain = mlp(2), mlp(2)
    optimizer = Twice(model.parameters(), lr=0.1, momentum=0.9)
    own = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    if kind == "inner":
        optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    formats = {"gradients": SMAQ, "weights": SMAQ, "optimizer_state": SMAQ}
    emulate.apply(model, optimizer if given_to == "optimizer" else None, **formats)
    if kind == "inner" and given_to == "optimizer":
        formats.pop("optimizer_state")  # which the outer one has not

    def backward():
        optimizer.zero_grad()
        loss = model(given()).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        if closure:
            optimizer.step(backward)
        else:
            backward()
            optimizer.step()
        by_hand(plain, own, given(), {k: v for k, v in formats.items() if k == "gradients"})
        params = list(plain.parameters())
        with torch.no_grad():
            for _ in range(2 if kind == "inner" and given_to == "none" else 1):
                last = kind == "base" or given_to == "optimizer" or _ == 1
                for p in params:
                    if kind == "inner" and last:
                        p.add_(0.001)
                    p.copy_(emulate.cast(p, SMAQ))
            if "optimizer_state" in formats:
                for p in params:
                    buffer = own.state[p]["momentum_buffer"]
                    buffer.copy_(emulate.cast(buffer, SMAQ))
    assert equal(list(model.parameters()), list(plain.parameters()))
    assert equal([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_a_step_after_one_that_failed():
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    emulate.apply(model, optimizer, gradients="e5m2", weights="bf16")

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        optimizer.step(fails)
    step(model, optimizer, given())
    for p in model.parameters():
        assert torch.equal(p, emulate.cast(p.detach(), "bf16"))
        assert torch.equal(p.grad, emulate.cast(p.grad, "e5m2"))
