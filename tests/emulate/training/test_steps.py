"""Random numbers of GEMMs over the steps of a training: others each time, the same after a resume,
under activation checkpointing, and from run to run."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import equal, gradients, images, mlp, net, step
from torch_cgx import emulate

RANDOM = emulate.preset("mxfp4", rounding="stochastic", scale_rounding="rceil")
RECIPES = {
    "nvfp4": {"recipe": "nvfp4"},
    "all": {"gemm": RANDOM},
    "gradients": {"gemm": {"gradient": RANDOM}},
    "smaq": {"recipe": "smaq68"},
    "delayed": {"recipe": "fp8_delayed"},
}
X = draw(21, 24, dtype=torch.float32)


def emulated(name, model=None, seed=0, optimizer=None):
    model = model or mlp()
    return model, emulate.apply(model, optimizer, **RECIPES[name], first_last="cast", seed=seed)


@pytest.mark.parametrize("name", ["nvfp4", "all", "gradients", "smaq"])
def test_each_step_each_layer_and_each_seed_draws_its_own(name):
    found = {}
    for seed in (0, 0, 1):
        model, _ = emulated(name, seed=seed)
        found.setdefault(seed, []).append([gradients(model, X) for _ in range(3)])
    first, again = found[0]
    assert all(map(equal, first, again))
    assert not any(equal(one, other) for one, other in zip(first, found[1][0], strict=True))
    assert not equal(first[0], first[1]) and not equal(first[1], first[2])


def test_equal_layers_draw_different_numbers():
    layer = nn.Linear(24, 24, bias=False)
    model = nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(2))
    for one in model:
        one.load_state_dict(layer.state_dict())
    emulate.apply(model, gemm={"gradient": RANDOM}, first_last="cast")
    for one in model:
        one(X).backward(draw(21, 24, seed=2, dtype=torch.float32))
    assert not torch.equal(model[0].weight.grad, model[1].weight.grad)


def test_gradients_are_unbiased():
    """Of a model, whose layers pass their errors on."""
    model = mlp(3)
    exact = gradients(model, X)
    emulate.apply(model, gemm={"gradient": RANDOM}, first_last="cast")
    draws = [gradients(model, X) for _ in range(200)]
    for wanted, *found in zip(exact, *draws, strict=True):
        every = torch.stack(found).double()
        error, spread = every.mean(0) - wanted, every.std(0) / 200**0.5
        scaled = (error / spread.clamp(min=1e-6 * float(wanted.abs().max()))).abs()
        assert float(scaled.max()) < 6


@pytest.mark.parametrize("name", RECIPES)
def test_a_resumed_training_goes_on_as_one_that_never_stopped(name):
    def start():
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, optimizer, emulated(name, model, 3, optimizer)[1]

    whole, optimizer, emulation = start()
    for _ in range(3):
        step(whole, optimizer, images())
    kept = [one.state_dict() for one in (whole, optimizer, emulation)]
    torch.save(kept, file := io.BytesIO())
    kept = torch.load(io.BytesIO(file.getvalue()))
    for _ in range(2):
        step(whole, optimizer, images())
    model, other, resumed = start()
    for one, state in zip((model, other, resumed), kept, strict=True):
        one.load_state_dict(copy.deepcopy(state))
    for _ in range(2):
        step(model, other, images())
    assert equal(list(model.state_dict().values()), list(whole.state_dict().values()))
    assert str(resumed.state_dict()) == str(emulation.state_dict())
    if name != "delayed":
        model, other, _ = start()
        for one, state in ((model, kept[0]), (other, kept[1])):
            one.load_state_dict(copy.deepcopy(state))
        for _ in range(2):
            step(model, other, images())
        assert not equal(list(model.parameters()), list(whole.parameters()))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_activation_checkpointing_has_the_same_bits(name, reentrant):
    found, states = [], []
    for again in (False, True):
        model, emulation = emulated(name, nn.Sequential(mlp(2), mlp(2)))

        def run(x, model=model, again=again):
            if not again:
                return model(x)
            x = checkpoint(model[0], x, use_reentrant=reentrant)
            return checkpoint(model[1], x, use_reentrant=reentrant)

        found.append([])
        for number in range(3):
            model.zero_grad()
            run(((number + 1) * X).requires_grad_()).square().sum().backward()
            found[-1].append([p.grad for p in model.parameters()])
        states.append(str(emulation.state_dict()))
    assert all(map(equal, *found)) and states[0] == states[1]
    assert not equal(found[0][0], found[0][1])


def test_evaluation_counts_for_nothing():
    model, emulation = emulated("all")
    same, _ = emulated("all")
    first = gradients(model, X)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(X), model(X))
    model.train()
    assert equal(first, gradients(same, X)) and equal(gradients(model, X), gradients(same, X))
    assert emulation.state_dict()["step"] == 2


def test_accumulated_batches_draw_their_own():
    """Two forward passes, then one backward pass of their sum."""
    model, _ = emulated("gradients")
    same, _ = emulated("gradients")
    model.zero_grad()
    (model(X).square().sum() + model(X).square().sum()).backward()
    both = [p.grad.clone() for p in model.parameters()]
    first, second = gradients(same, X), gradients(same, X)
    for whole, one, other in zip(both, first, second, strict=True):
        torch.testing.assert_close(whole, one + other, rtol=1e-5, atol=1e-4)


def test_torchs_own_random_numbers_go_on():
    model = mlp()
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    _, emulation = emulated("nvfp4", model)
    gradients(model, X)
    emulation.remove()
    assert torch.equal(torch.rand(4), wanted)
