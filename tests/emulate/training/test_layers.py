"""Which layers of a model round, and that each does what a QuantLinear does."""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from tests.emulate.gemm import operands
from tests.emulate.gemm.operands import PARTS, draw
from tests.emulate.training.models import equal, gradients, mlp
from torch_cgx import emulate
from torch_cgx.emulate import Float

EXACT = Float(8, 23)  # of float32 values
DOUBLE = torch.float64


def seen(model, x):
    """By layer, its input, output and the gradients of both, of one pass."""
    found = {}

    def keep(name):
        def hook(module, inputs, output):
            grads = found.setdefault(name, {"x": inputs[0].detach(), "y": output.detach()})
            inputs[0].register_hook(lambda grad: grads.update(dx=grad))
            output.register_hook(lambda grad: grads.update(dy=grad))

        return hook

    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    handles = [module.register_forward_hook(keep(name)) for name, module in linear]
    model(x.requires_grad_()).square().sum().backward()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("formats", ["mxfp4", PARTS], ids=["mxfp4", "parts"])
def test_each_layer_of_a_model(formats):
    """The first and the last are exact."""
    model = mlp(5, 40, DOUBLE)
    emulation = emulate.apply(model, gemm=formats)
    assert list(emulation.layers) == ["2", "4", "6"] and emulation.exact == ("0", "8")
    for name, pass_ in seen(model, draw(21, 40)).items():
        layer = model.get_submodule(name)
        used = None if name in ("0", "8") else formats
        y, dx, dw = operands.linear(
            pass_["x"], layer.weight.detach(), layer.bias.detach(), pass_["dy"], used
        )
        for found, wanted in ((pass_["y"], y), (pass_["dx"], dx), (layer.weight.grad, dw)):
            torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "recipe", [name for name in emulate.recipes() if "gemm" in emulate.recipe(name)]
)
def test_recipes_are_what_their_layers_do(recipe):
    """By a QuantLinear of the recipe's formats, over two steps."""
    given = emulate.recipe(recipe)
    model = mlp(1, 40, DOUBLE)
    with emulate.apply(model, gemm=given["gemm"], first_last="cast", seed=3):
        layer = emulate.QuantLinear(40, 40, dtype=DOUBLE, inputs=given["gemm"], seed=3)
        layer.load_state_dict(model[0].state_dict())
        for number in range(2):
            x = draw(33, 40, seed=number)
            assert equal(gradients(model, x), gradients(layer, x))


def test_a_plain_gemm_level_changes_no_outputs_behind_it():
    """A GEMM's result is not rounded to the format."""
    model = nn.Sequential(nn.Linear(8, 8, dtype=DOUBLE))
    emulate.apply(model, gemm="e2m1", first_last="cast")
    y = model(draw(5, 8))
    assert not torch.equal(emulate.cast(y, "e2m1"), y)


# ---- which layers ----


@pytest.mark.parametrize(
    "first_last, exact",
    [
        ("exact", "0 9"),
        (None, "0 9"),
        ("cast", ""),
        ((0, 0), ""),
        ((2, 0), "0 1"),
        ((0, 3), "7 8 9"),
        ([1, 0.15], "0 8 9"),
        ((0.1, 0.2), "0 8 9"),
        ((0.11, 0), "0 1"),
        ((0.7, 0.2), "0 1 2 3 4 5 6 8 9"),
    ],
)
def test_first_and_last_layers(first_last, exact):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    emulation = emulate.apply(model, gemm="e4m3fn", first_last=first_last)
    assert " ".join(emulation.exact) == exact
    assert {*emulation.layers} == {str(i) for i in range(10)} - {*exact.split()}


def test_shares_are_not_rounded_up_beyond_themselves():
    """0.07 * 100 is 7.000000000000001."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(100)))
    assert len(emulate.apply(model, gemm="e4m3fn", first_last=(0.07, 0)).exact) == 7


@pytest.mark.parametrize(
    "first_last",
    ["first", "Exact", (1,), (1, 1, 1), (1, 1.0), (-1, 0), (True, 1), 2, (1, float("nan"))],
)
def test_other_values_of_first_last(first_last):
    model = mlp()
    with pytest.raises(ValueError, match="first_last=.*; allowed: 'exact' .one each., 'cast'"):
        emulate.apply(model, gemm="e4m3fn", first_last=first_last)
    assert {type(m) for m in model} == {nn.Linear, nn.GELU}


def test_formats_of_chosen_layers():
    """Before first_last, in the order in which they are given; "exact" and None leave a layer."""
    model = mlp(6)
    layers = {"^0$": "mxfp4", "^[02]$": "e5m2", "4": "exact", "6": None, "8|10": {"input": "e4m3"}}
    emulation = emulate.apply(model, gemm="bf16", layers=layers)
    assert emulation.layers == {
        "0": "mxfp4",
        "2": "e5m2",
        "8": "forward.input, wgrad.input: e4m3",
        "10": "forward.input, wgrad.input: e4m3",
    }
    assert emulation.exact == ("4", "6")
    alone = emulate.apply(mlp(), layers={"2": "mxfp4"})  # without other formats
    assert alone.layers == {"2": "mxfp4"} and alone.exact == ("0", "4", "6")


def test_a_filter_takes_names():
    model = nn.ModuleDict({"body": mlp(4), "head": nn.Linear(24, 24)})
    emulation = emulate.apply(model, gemm="bf16", filter="^body.[24]")
    assert list(emulation.layers) == ["body.2", "body.4"] and emulation.exact == ()


class _Sub(nn.Linear):
    pass


class _Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def test_layers_with_a_forward_of_their_own_are_named():
    model = nn.Sequential(
        _Sub(4, 4), _Own(4, 4), nn.LSTM(4, 4), nn.Linear(4, 4), nn.Bilinear(4, 4, 4)
    )
    model[3].forward = lambda x: x  # as some libraries wrap a layer
    with pytest.warns(UserWarning, match=r"exact: 1 \(_Own\), 2 \(LSTM\), 3 \(Linear\), 4 \(Bilin"):
        emulation = emulate.apply(model, gemm="bf16", first_last="cast")
    assert list(emulation.layers) == ["0"]
    assert emulation.left == (("1", "_Own"), ("2", "LSTM"), ("3", "Linear"), ("4", "Bilinear"))
    assert isinstance(model[0], _Sub)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        emulation.remove()
        emulate.apply(model, gemm="bf16", first_last="cast", filter="0").remove()
        emulate.apply(model, weights="bf16")


def test_complex_layers_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64))
    with pytest.warns(UserWarning, match=r"exact: 1 \(Linear\)"):
        assert list(emulate.apply(model, gemm="bf16", first_last="cast").layers) == ["0"]


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights(wrap):
    model, plain = (wrap(mlp(1, 8)[0]) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    x = draw(5, 8, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    emulation = emulate.apply(model, gemm=EXACT, first_last="cast")
    assert all(map(torch.equal, model.state_dict().values(), before.values()))  # no power iteration
    for one, other in zip(gradients(model, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert list(emulation.layers) == [""]
    emulation.remove()
    assert type(model).__name__ == "ParametrizedLinear"


def test_a_layer_that_is_used_twice_is_one_layer():
    shared = nn.Linear(24, 24)
    model = nn.Sequential(shared, nn.GELU(), shared, nn.Linear(24, 24))
    model[3].weight = shared.weight  # tied
    random = emulate.preset("e4m3fn", rounding="stochastic")
    emulation = emulate.apply(model, gemm={"forward": {"input": random}}, first_last="cast")
    assert list(emulation.layers) == ["0", "3"]
    x = draw(5, 24, dtype=torch.float32)
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert emulation.state_dict()["step"] == 4  # each use is a pass


def test_conv1d_of_transformers(monkeypatch):
    module = types.ModuleType("transformers.pytorch_utils")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Conv1D(nn.Module):
        __module__ = module.__name__

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(draw(40, 24, seed=1))  # [in, out]
            self.bias = nn.Parameter(draw(24, seed=3))

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, 40), self.weight).view(*x.shape[:-1], 24)

    model, x, grad = (
        nn.Sequential(Conv1D()),
        draw(3, 7, 40).requires_grad_(),
        draw(3, 7, 24, seed=2),
    )
    emulation = emulate.apply(model, gemm=PARTS, first_last="cast")
    assert list(emulation.layers) == ["0"]
    y = model(x)
    y.backward(grad)
    layer = model[0]
    rows = (
        x.detach().view(21, 40),
        layer.weight.detach().T,
        layer.bias.detach(),
        grad.view(21, 24),
    )
    wanted = operands.linear(*rows, PARTS)
    for one, other in zip(
        (y.view(21, 24), x.grad.view(21, 40), layer.weight.grad.T), wanted, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    emulation.remove()
    torch.testing.assert_close(
        model(x), F.linear(x, layer.weight.T, layer.bias), rtol=1e-11, atol=1e-11
    )
