"""blame: the error of a gradient by layer and kind of tensor."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_cgx import emulate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.norm = nn.LayerNorm(48)
        self.middle = nn.Linear(48, 64)
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return self.last(F.gelu(self.middle(self.norm(F.gelu(self.first(x))))))


def _net(seed=0):
    torch.manual_seed(seed)
    return Net()


def _batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 32, generator=generator), torch.arange(64) % 8


X, Y = _batch()


def _loss(output):
    return F.cross_entropy(output, Y)


def _gradient(model):
    model.zero_grad()
    _loss(model(X)).backward()
    return {name: p.grad.double().clone() for name, p in model.named_parameters()}


def _relative(found, exact):
    error = sum(float((found[name] - exact[name]).square().sum()) for name in exact)
    return (error / sum(float(one.square().sum()) for one in exact.values())) ** 0.5


ALL = {"gemm": emulate.mxfp4, "first_last": "cast", "name": "mine"}


def test_a_planted_bad_layer_is_found():
    model = _net()
    with torch.no_grad():  # a few large values, among which all others of their blocks become 0
        model.middle.weight[:, ::32] *= 200
        model.norm.weight[::32] /= 200
    found = emulate.blame(model, X, ALL, loss=_loss)
    assert found.rows[0].layer == "middle"
    assert next(iter(found.layers())) == "middle"
    assert [row.error for row in found.rows] == sorted((r.error for r in found.rows), reverse=True)
    sound = emulate.blame(_net(), X, ALL, loss=_loss)
    assert found.layers()["middle"] > 2 * sound.layers()["middle"]


@pytest.mark.parametrize("kind", ["input", "weight", "gradient"])
def test_each_row_is_the_error_with_that_operand_alone(kind):
    found = emulate.blame(_net(), X, ALL, loss=_loss)
    rows = {(row.layer, row.kind): row.error for row in found.rows}
    assert len(rows) == 9
    model = _net()
    exact = _gradient(model)
    with emulate.apply(model, gemm={kind: "mxfp4"}, layers={"^(first|last)$": "exact"}):
        assert rows["middle", kind] == pytest.approx(_relative(_gradient(model), exact))
    with emulate.apply(model, recipe=ALL):
        assert found.total == pytest.approx(_relative(_gradient(model), exact))


def test_kinds_where_memory_rounds():
    recipe = {
        "activations": "e4m3fn",
        "gradient_maps": "e5m2",
        "weights": {"format": "e2m1", "except": ["LayerNorm"]},
        "gradients": {"format": emulate.Float(4, 3, variant="cpd"), "aps": True},
        "optimizer_state": "bf16",
    }
    model = _net()
    rows = {(r.layer, r.kind): r.error for r in emulate.blame(model, X, recipe, loss=_loss).rows}
    exact = _gradient(model)
    with emulate.apply(model, gradient_maps="e5m2", filter="^norm$"):
        expected = _relative(_gradient(model), exact)
    assert rows["norm", "gradient_maps"] == pytest.approx(expected)
    changed = _net()
    with torch.no_grad():
        changed.first.weight.copy_(emulate.cast(changed.first.weight, "e2m1"))
    assert rows["first.weight", "weights"] == pytest.approx(_relative(_gradient(changed), exact))
    assert ("norm.weight", "weights") not in rows and ("first.bias", "weights") in rows
    assert 0 < rows["last.weight", "gradients"] < 0.05
    assert ("model", "activations") in rows
    assert not [kind for _, kind in rows if kind.startswith("optimizer")]


def test_the_model_is_as_before():
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 8))
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    storages = [p.data_ptr() for p in model.parameters()]
    random = torch.get_rng_state()
    recipe = {"gemm": "mxfp4", "first_last": "cast", "weights": "e4m3fn", "activations": "smaq"}
    one = emulate.blame(model, X, recipe, loss=_loss)
    assert torch.equal(random, torch.get_rng_state())
    assert torch.equal(model[0].weight.grad, torch.ones(16, 32))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert storages == [p.data_ptr() for p in model.parameters()]
    assert type(model[0]) is nn.Linear and not model[0]._forward_hooks
    torch.set_rng_state(random)
    assert emulate.blame(model, X, recipe, loss=_loss).rows == one.rows
    # Of the same dropout: a format that changes nothing has no error.
    exact = emulate.blame(model, X, {"gemm": emulate.Float(8, 23), "first_last": "cast"})
    assert all(row.error < 1e-6 for row in exact.rows)


def test_batches_and_losses():
    class Hugging(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = _net()

        def forward(self, x, labels=None):
            return {"loss": F.cross_entropy(self.net(x), labels), "logits": None}

    expected = emulate.blame(_net(), X, ALL, loss=_loss)
    batches = [{"x": X, "labels": Y}, (X, Y), [X, Y]]
    for batch in batches:
        found = emulate.blame(Hugging(), batch, ALL)
        assert [row.error for row in found.rows] == [row.error for row in expected.rows]
    without = emulate.blame(_net(), X, ALL)  # random weights of the outputs
    assert without.rows[0].error > 0


def test_table_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    found = emulate.blame(_net(), X, ALL, loss=_loss)
    text = found.table(2)
    assert len(text.splitlines()) == 4 and "all of mine" in text and " %" in text
    found.plot(tmp_path / "blame.png")
    assert (tmp_path / "blame.png").read_bytes().startswith(b"\x89PNG")


def test_accumulation_has_a_row():
    recipe = {"gemm": {"accumulate": "e5m2"}, "first_last": "cast"}
    rows = emulate.blame(_net(), X, recipe, loss=_loss).rows
    assert {row.kind for row in rows} == {"accumulate"} and len(rows) == 3
    assert all(row.error > 0.01 for row in rows)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ((3, ALL), TypeError, "batch is of type int"),
        ((X, "mxfp5"), ValueError, "recipe='mxfp5'"),
        ((X, {"gemm": "mxfp4", "layers": {"nothing": "exact"}}), ValueError, "matches no layer"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        emulate.blame(_net(), *arguments)


def test_bad_losses_and_models():
    with pytest.raises(ValueError, match=r"the loss is \(64, 8\); allowed: a tensor of one value"):
        emulate.blame(_net(), X, ALL, loss=lambda output: output)
    with pytest.raises(ValueError, match="exact gradient has the norm 0.0"):
        emulate.blame(_net(), X, ALL, loss=lambda output: 0 * output.sum())
    with pytest.raises(TypeError, match="loss is of type str"):
        emulate.blame(_net(), X, ALL, loss="mse")
    model = _net()
    with emulate.apply(model, recipe=ALL), pytest.raises(ValueError, match="emulated already"):
        emulate.blame(model, X, ALL, loss=_loss)


def test_the_total_has_weights_and_gradients_too():
    for recipe in ("cpd43", {"weights": "mxfp4"}, {"gradients": {"format": "e5m2", "aps": True}}):
        found = emulate.blame(_net(), X, recipe, loss=_loss)
        assert found.total >= found.rows[0].error > 0
    one = {"weights": "mxfp4", "gradients": "e4m3fn", "activations": "e4m3fn"}
    found = emulate.blame(_net(), X, one, loss=_loss)
    model, exact = _net(), _gradient(_net())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(emulate.cast(parameter, "mxfp4"))
    with emulate.apply(model, activations="e4m3fn"):
        gradient = _gradient(model)
    now = {name: emulate.cast(g.float(), "e4m3fn").double() for name, g in gradient.items()}
    assert found.total == pytest.approx(_relative(now, exact), rel=1e-5)
    with pytest.raises(ValueError, match="the optimizer's state alone"):
        emulate.blame(_net(), X, {"optimizer_state": "e4m3fn"}, loss=_loss)


def test_delayed_scales_are_those_of_the_batch():
    def small(output):
        return 1e-6 * _loss(output)

    totals = {}
    for recipe in ("fp8_current", "fp8_delayed"):
        changed = {**emulate.recipe(recipe), "first_last": "cast"}
        totals[recipe] = emulate.blame(_net(), X, changed, loss=small).total
    assert totals["fp8_delayed"] == totals["fp8_current"]


def test_a_frozen_model_is_named():
    model = _net().requires_grad_(False)
    with pytest.raises(ValueError, match="requires no gradient"):
        emulate.blame(model, X, ALL, loss=_loss)
