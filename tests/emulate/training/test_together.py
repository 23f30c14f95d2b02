"""apply together with the rest: types, autocast, GradScaler, compress_saved, few-bit modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import equal, gradients, images, mlp, net, step
from torch_cgx import activations, emulate

RECIPES = ["bf16", "fp8_delayed", "mxfp8", "nvfp4", "smaq68", "cpd43"]
X = draw(21, 24, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", RECIPES)
def test_types_of_models(recipe, dtype):
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    emulate.apply(model, optimizer, recipe)
    for _ in range(2):
        loss = step(model, optimizer, images().to(dtype))
    assert loss.dtype == dtype and loss.isfinite()
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("recipe", ["mxfp8", "fp8_current", "fp8_block128"])
def test_a_float64_model_is_a_float32_one_but_for_its_sums(recipe):
    found = []
    for dtype in (torch.float32, torch.float64):
        model = net().to(dtype)
        emulate.apply(model, recipe={**emulate.recipe(recipe), "first_last": "cast"})
        found.append(gradients(model, images().to(dtype)))
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm()) <= 0.05 * float(other.norm()) + 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_operands_of_its_type(dtype):
    """As a model whose inputs and weights have been cast to it."""
    model, same = mlp(2), mlp(2)
    for one in (model, same):
        emulate.apply(one, gemm="mxfp4", first_last="cast")
    with torch.autocast("cpu", dtype):
        y = model(X)
    y.sum().backward()
    narrow = mlp(2).to(dtype)
    emulate.apply(narrow, gemm="mxfp4", first_last="cast")
    wanted = narrow(X.to(dtype))
    wanted.sum().backward()
    assert y.dtype == dtype and torch.equal(y, wanted)
    for p, q in zip(model.parameters(), narrow.parameters(), strict=True):
        assert p.dtype == p.grad.dtype == torch.float32
        torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", dtype, enabled=False):
        assert torch.equal(model(X), same(X))


@pytest.mark.parametrize("recipe", RECIPES)
def test_autocast_of_a_convolutional_network(recipe):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    emulate.apply(model, optimizer, recipe)
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(images()).square().mean()
    loss.backward()
    optimizer.step()
    assert loss.isfinite() and not equal(list(model.parameters()), before)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_float64_under_autocast_is_torchs_own_error():
    model = mlp(1, dtype=torch.float64)
    x = X.double()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = model(x).dtype
        emulate.apply(model, gemm="mxfp4", first_last="cast")
        assert model(x).dtype == wanted


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "smaq68"])
def test_a_grad_scaler(recipe):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    emulate.apply(model, optimizer, recipe)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(images()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 256 and loss.isfinite()


# ---- what saves memory ----


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "smaq68"])
def test_compressed_saved_tensors(recipe):
    """They change gradients, not outputs; exact where they keep all bits."""
    outputs, found = [], []
    for compressed in (False, True):
        model = mlp(3)
        emulate.apply(model, recipe=recipe, seed=1)
        if compressed:
            with activations.compress_saved({"bits": 8}, min_size=0):
                y = model(X)
        else:
            y = model(X)
        y.square().sum().backward()
        outputs.append(y.detach())
        found.append([p.grad for p in model.parameters()])
    assert torch.equal(*outputs)
    for exact, one in zip(*found, strict=True):
        assert float((one - exact).norm()) < 0.1 * float(exact.norm())


@pytest.mark.parametrize("order", ["convert first", "apply first"])
@pytest.mark.parametrize("recipe", ["mxfp8", "smaq68"])
def test_few_bit_modules(recipe, order):
    model, plain = mlp(3), mlp(3)
    if order == "convert first":
        activations.convert(model, activations=3)
    emulation = emulate.apply(model, recipe=recipe, seed=1)
    if order == "apply first":
        activations.convert(model, activations=3)
    emulate.apply(plain, recipe=recipe, seed=1)
    torch.testing.assert_close(model(X), plain(X), rtol=1e-2, atol=1e-2)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    gradients(model, X)
    if order == "convert first":
        emulation.remove()
    elif recipe == "smaq68":  # modules whose outputs were cast have been replaced
        with pytest.raises(RuntimeError, match=r"1 is another module, a GELU"):
            emulation.remove()
    else:
        emulation.remove()
        assert type(model[0]) is nn.Linear


def test_an_accumulated_gradient_is_cast_once():
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    emulate.apply(model, optimizer, gradients=emulate.ZScore(6, 8, rounding="zero"))
    whole = gradients(mlp(2), X)
    parts = [X[:10], X[10:]]
    for part in parts:
        model(part).square().sum().backward()
    optimizer.step()
    for p, exact in zip(model.parameters(), whole, strict=True):
        wanted = emulate.cast(exact, emulate.ZScore(6, 8, rounding="zero"))
        torch.testing.assert_close(p.grad, wanted, rtol=1e-1, atol=0.1 * float(exact.std()))
