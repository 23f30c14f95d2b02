"""Where memory rounds in the forward and backward pass: each tensor once, wherever it goes."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import Net, equal, gradients, images, mlp, net
from torch_cgx import emulate
from torch_cgx.emulate import ZScore
from torch_cgx.emulate.training.memory import Place, _results

SMAQ = ZScore(6, 8, rounding="zero")  # of its own result, it makes another one
RANDOM = ZScore(6, 8)


class Casts:
    """What is cast: (layer, kind, values before, values behind)."""

    def __init__(self, monkeypatch):
        self.found = []
        own = Place.cast

        def cast(place, x, kind, step, number):
            y = own(place, x, kind, step, number)
            if place._formats[kind] is not None:
                self.found.append((place.name, kind, x.detach().clone(), y.detach().clone()))
            return y

        monkeypatch.setattr(Place, "cast", cast)

    def names(self, kind="activations"):
        return [name for name, one, _, _ in self.found if one == kind]


@pytest.fixture
def casts(monkeypatch):
    return Casts(monkeypatch)


def smaq(x):
    return emulate.cast(x, SMAQ)


def test_outputs_and_gradient_maps_by_hand():
    """A chain of three modules, in plain torch."""
    model, x = mlp(2, dtype=torch.float64), draw(5, 24)
    w, v = model[0], model[2]
    emulation = emulate.apply(model, activations=SMAQ, gradient_maps=emulate.e4m3fn)
    found = model(x)
    found.square().sum().backward()
    y = smaq(x @ w.weight.T.detach() + w.bias.detach())
    z = smaq(nn.functional.gelu(y))
    out = smaq(z @ v.weight.T.detach() + v.bias.detach())
    assert torch.allclose(found, out, rtol=1e-12)
    d_out = emulate.cast(2 * out, "e4m3fn")
    dv = d_out.T @ z
    dz = emulate.cast(d_out @ v.weight.detach(), "e4m3fn")
    y.requires_grad_()
    (dy,) = torch.autograd.grad(nn.functional.gelu(y), y, dz)
    dy = emulate.cast(dy, "e4m3fn")
    torch.testing.assert_close(v.weight.grad, dv, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(w.weight.grad, dy.T @ x, rtol=1e-10, atol=1e-10)
    assert torch.equal(w.bias.grad, dy.sum(0))
    assert repr(emulation) == (
        "Emulation(formats of one's own: 0 GEMM layers, 4 outputs, 0 layers exact)"
    )


def test_nothing_but_outputs_is_rounded_if_only_gradient_maps_are():
    model, x = mlp(2), draw(5, 24, dtype=torch.float32)
    plain = model(x)
    emulate.apply(model, gradient_maps="e2m1")
    assert torch.equal(model(x), plain)


def test_each_tensor_of_a_network_is_cast_once(casts):
    """Not by containers, Identity, Dropout without effect; again where ReLU has changed it."""
    model = net()
    emulate.apply(model, activations=SMAQ, gradient_maps=SMAQ)
    for mode in (model.train(), model.eval()):
        casts.found.clear()
        mode(images()).sum().backward()
        expected = ["conv", "bn", "relu", "block.0", "block.1", "drop", "head"]
        assert casts.names() == expected
        assert sorted(casts.names("gradient_maps")) == sorted(expected)
    by_name = {name: (x, y) for name, kind, x, y in casts.found if kind == "activations"}
    assert torch.equal(by_name["relu"][0], by_name["bn"][1].relu())  # of the stored output


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_all_modes_give_the_same_output(casts, mode):
    """In inference mode, tensors have no versions that tell what has changed them in place."""
    model, x = net().eval(), images()
    emulate.apply(model, activations=SMAQ)
    wanted = model(x)
    names = casts.names()
    casts.found.clear()
    with mode():
        found = model(x)
        assert casts.names() == names
        assert torch.equal(found, wanted)


class _Pair(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.inner, self.make = nn.Linear(24, 24), make

    def forward(self, x):
        return self.make(self.inner(x), x)


Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass
class Unknown:
    """To torch no container."""

    y: torch.Tensor


@pytest.mark.parametrize(
    "make, new",
    [
        (lambda y, x: y, 0),
        (lambda y, x: y.view(-1), 0),
        (lambda y, x: y[1:], 0),
        (lambda y, x: y.t(), 0),
        (lambda y, x: (y, y.T), 0),
        (lambda y, x: {"y": y, "sum": y + 1}, 1),
        (lambda y, x: (z := y * 2, z, [z]), 1),
        (lambda y, x: Point(y * 2, [y, {"z": y - 1}]), 2),
        (lambda y, x: collections.OrderedDict(y=y * 2, n=None, text="no tensor"), 1),
        (lambda y, x: (y, torch.arange(3), y > 0), 0),
        (lambda y, x: y.mul_(2), 1),
        (lambda y, x: y.clone(), 1),
        (lambda y, x: y.sum(), 0),  # a loss
        (lambda y, x: y.sum().reshape(1), 1),
        (lambda y, x: x, 1),  # the input, which no module has made
        (lambda y, x: None, 0),
        (lambda y, x: Unknown(y * 2), 1),
        (lambda y, x: torch.complex(y, y), 0),
        (lambda y, x: y.to(torch.float8_e5m2), 0),
        (lambda y, x: y.to_sparse(), 0),
    ],
)
def test_containers_views_and_other_outputs(casts, make, new):
    """new: of tensors that the outer module makes."""
    model = _Pair(make)
    emulate.apply(model, activations=SMAQ)
    x = draw(6, 24, dtype=torch.float32)
    plain = make(torch.nn.functional.linear(x, model.inner.weight, model.inner.bias), x)
    found = model(x)
    assert casts.names() == ["inner"] + ["model"] * new
    assert type(found) is type(plain)
    if isinstance(found, dict):
        assert list(found) == list(plain)


def test_a_module_that_is_called_twice_casts_each_output(casts):
    shared = nn.Linear(24, 24)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    emulate.apply(model, activations=RANDOM)
    model(draw(6, 24, dtype=torch.float32))
    assert casts.names() == ["0", "1", "0"]
    (_, _, _, first), (_, _, _, second) = casts.found[0], casts.found[2]
    assert not torch.equal(first, second)


def test_a_filter_and_a_child_of_the_name_model(casts):
    """The whole model's name is not its child's."""
    model = nn.ModuleDict({"model": nn.Linear(24, 24)})
    model.forward = lambda x: model["model"](x) * 2
    emulation = emulate.apply(model, activations=SMAQ)
    emulation.measure = True
    model(draw(6, 24, dtype=torch.float32))
    assert sorted(emulation.records) == ["(model)/activations", "model/activations"]
    emulation.remove()
    casts.found.clear()
    emulate.apply(model, activations=SMAQ, filter="^model$")
    model(draw(6, 24, dtype=torch.float32))
    assert casts.names() == ["model"]


def test_memory_of_results_is_not_kept():
    """And what gets the memory of a result that is gone is none."""
    model = nn.Sequential(nn.Tanh())
    emulate.apply(model, activations=SMAQ)
    x = draw(64, 64, dtype=torch.float32)
    wanted = model(x)
    for _ in range(600):
        assert torch.equal(model(x), wanted)
    assert len(_results._found) < 600


# ---- random numbers and checkpoints ----


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_has_the_same_bits(reentrant):
    """What runs again in the backward pass draws the same numbers, step after step."""
    x = draw(8, 24, dtype=torch.float32).requires_grad_()
    found = []
    for again in (False, True):
        # Identity returns the input that the checkpoint has kept, or detached.
        model = nn.Sequential(mlp(2), nn.Sequential(nn.Identity(), *mlp(2)), mlp(2))
        emulate.apply(model, activations=RANDOM, gradient_maps=RANDOM)
        if not again:
            run = model
        elif reentrant:
            run = lambda x, m=model: m[2](checkpoint(m[1], m[0](x), use_reentrant=True))  # noqa: E731
        else:
            run = lambda x, m=model: checkpoint_sequential(m, 3, x, use_reentrant=False)  # noqa: E731
        for _ in range(2):
            model.zero_grad()
            run(x).square().sum().backward()
            found.append([p.grad for p in model.parameters()])
    assert equal(found[0], found[2]) and equal(found[1], found[3])
    assert not equal(found[0], found[1])


def test_gradients_of_random_maps_are_unbiased():
    model, x = mlp(1), draw(16, 24, dtype=torch.float32)
    exact = gradients(model, x)[0]
    emulate.apply(model, gradient_maps=emulate.preset("e4m3", rounding="stochastic"))
    draws = torch.stack([gradients(model, x)[0] for _ in range(300)])
    assert not torch.equal(draws[0], draws[1])
    error, spread = draws.mean(0) - exact, draws.std(0) / 300**0.5
    assert float((error / spread.clamp(min=1e-6)).abs().max()) < 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types_stay(dtype):
    model = Net().to(dtype)
    emulate.apply(model, recipe="smaq68")
    y = model(images().to(dtype))
    y.sum().backward()
    assert y.dtype == dtype and {p.grad.dtype for p in model.parameters()} == {dtype}
    assert y.isfinite().all()
