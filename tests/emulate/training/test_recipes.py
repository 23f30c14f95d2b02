"""Recipes: plain dicts with sources, that one can print, change and take parts of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.emulate.training.models import equal, gradients, mlp
from torch_cgx import emulate
from torch_cgx.emulate import Block, Float, ZScore

NAMED = (
    "fp8_delayed fp8_current fp8_block128 mxfp8 mxfp6 mxfp4 nvfp4 smaq68 smaq57 cpd(4,3)".split()
)
X = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))


def test_the_recipes_of_the_issue_are_there():
    assert set(NAMED) <= set(emulate.recipes())


@pytest.mark.parametrize("name", emulate.recipes())
def test_each_is_a_plain_dict_of_its_own(name):
    recipe, other = emulate.recipe(name), emulate.recipe(name)
    assert type(recipe) is dict and recipe == other
    assert recipe["name"] == name and len(recipe["source"]) > 20
    assert any(word in recipe["source"] for word in ("arXiv", "IEEE", "OCP", "Transformer Engine"))
    text = repr(recipe)
    names = {cls.__name__: cls for cls in (Block, Float, ZScore)}
    assert eval(text, names) == recipe  # can be printed, kept and read again
    wipe(recipe)
    assert emulate.recipe(name) == other != recipe
    kept = copy.deepcopy(other)
    emulation = emulate.apply(mlp(9), recipe=other)
    assert other == kept and emulation.recipe == other
    emulation.recipe["gemm"] = None
    assert emulate.recipe(name) == kept


def wipe(given):
    for key, value in list(given.items()):
        if isinstance(value, dict):
            wipe(value)
        elif isinstance(value, list):
            value.clear()
        given[key] = None


@pytest.mark.parametrize(
    "name, same",
    [
        ("cpd43", "cpd(4,3)"),
        ("CPD(4,3)", "cpd(4,3)"),
        ("cpd(4, 3)", "cpd(4,3)"),
        ("smaq57", "smaq57"),
        ("smaq(5,7)", "smaq57"),
        ("MXFP8", "mxfp8"),
        (" nvfp4 ", "nvfp4"),
    ],
)
def test_other_spellings(name, same):
    assert emulate.recipe(name) == emulate.recipe(same)


def test_other_numbers():
    cpd = emulate.recipe("cpd(6,9)")
    assert cpd["gradients"]["format"] == Float(6, 9, variant="cpd") and cpd["name"] == "cpd(6,9)"
    smaq = emulate.recipe("smaq(10,12)")["activations"]
    assert (smaq.main_bits, smaq.outlier_bits) == (10, 12)
    assert emulate.recipe("cpd30")["gradients"]["format"] == Float(3, 0, variant="cpd")


@pytest.mark.parametrize(
    "name", ["", "cpd", "cpd(4)", "cpd4", "smaq6", "fp32", "mxfp", None, 3, ["mxfp8"]]
)
def test_names_that_do_not_exist(name):
    with pytest.raises(ValueError, match="recipe=.*; allowed: bf16, .*cpd.E,M., smaq.MAIN,OUTLIER"):
        emulate.recipe(name)


# ---- what they hold, from their sources ----


def test_transformer_engines_fp8():
    for name, scale in (("fp8_delayed", "delayed"), ("fp8_current", "current")):
        gemm = emulate.recipe(name)["gemm"]
        assert {key: one["format"] for key, one in gemm.items()} == {
            "input": "e4m3fn",
            "weight": "e4m3fn",
            "gradient": "e5m2",
        }
        assert {one["scale"] for one in gemm.values()} == {scale}
    assert emulate.recipe("fp8_delayed")["gemm"]["input"]["history"] == 1024


def test_deepseeks_blocks():
    """Tiles of 1 x 128 and weights of 128 x 128, with scales of float32."""
    gemm = emulate.recipe("fp8_block128")["gemm"]
    assert gemm["input"] == gemm["gradient"] == "fp8_block128"
    assert gemm["weight"].axis == (128, 128) and gemm["weight"].scale == "fp32"
    assert gemm["weight"].element == Float(4, 3, variant="fn")


def test_nvfp4_has_the_four_parts_of_its_paper():
    """Stochastic rounding of gradients alone, weights of 16 x 16, Hadamard, chosen layers exact."""
    recipe = emulate.recipe("nvfp4")
    emulation = emulate.apply(nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))), recipe=recipe)
    assert emulation.exact == ("0", "17", "18", "19")
    assert emulation.layers["1"] == (
        "forward.input, wgrad.input: nvfp4; forward.weight, dgrad.weight: nvfp4 16x16; "
        "dgrad.gradient, wgrad.gradient: nvfp4 stochastic; hadamard 16"
    )


def test_a_rectangle_is_one_tensor_forward_and_backward():
    """The weight of dgrad has the values of the forward pass, transposed."""
    layer = nn.Linear(32, 48, bias=False, dtype=torch.float64)
    emulate.apply(layer, gemm={"weight": emulate.preset("nvfp4", axis=(16, 16))}, first_last="cast")
    eye = torch.eye(32, dtype=torch.float64)
    seen = layer(eye).detach().T
    x = torch.zeros(48, 32, dtype=torch.float64).requires_grad_()
    layer(x).backward(torch.eye(48, dtype=torch.float64))
    assert torch.equal(x.grad, seen) and not torch.equal(seen, layer.weight)
    assert torch.equal(
        seen, emulate.cast(layer.weight.detach(), emulate.preset("nvfp4", axis=(16, 16)))
    )


def test_mx_and_smaq():
    assert emulate.recipe("mxfp8")["gemm"] == emulate.preset("mxfp8_e4m3", scale_rounding="rceil")
    assert emulate.recipe("mxfp6")["gemm"] == emulate.preset("mxfp6_e3m2")
    assert emulate.recipe("mxfp4")["gemm"] == emulate.preset("mxfp4")
    smaq = emulate.recipe("smaq68")
    kinds = {"activations", "gradients", "gradient_maps", "optimizer_state", "weights"}
    assert kinds < set(smaq) and smaq["weights"]["except"] == ["BatchNorm2d"]
    formats = {smaq[kind]["format"] if kind == "weights" else smaq[kind] for kind in kinds}
    assert len(formats) == 1 and formats.pop().rounding == "stochastic"


# ---- changes ----


def test_a_changed_dict_takes_effect():
    recipe = emulate.recipe("nvfp4")
    recipe["gemm"]["hadamard"] = 0
    recipe["gemm"]["gradient"] = None
    recipe["first_last"] = "cast"
    recipe["layers"] = {"^2$": "exact"}
    recipe["activations"] = "bf16"
    emulation = emulate.apply(mlp(3), recipe=recipe)
    wanted = "forward.input, wgrad.input: nvfp4; forward.weight, dgrad.weight: nvfp4 16x16"
    assert emulation.layers == {"0": wanted, "4": wanted} and emulation.exact == ("2",)
    assert "6 outputs" in repr(emulation) or "5 outputs" in repr(emulation)
    del recipe["gemm"], recipe["layers"]
    assert emulate.apply(mlp(3), recipe=recipe).layers == {}


def test_arguments_replace_entries():
    """None is none: to leave an entry out, change the dict."""
    model, same = mlp(4), mlp(4)
    emulate.apply(model, recipe="mxfp8", gemm="mxfp4", first_last="cast", gradients=None)
    emulate.apply(same, gemm="mxfp4", first_last="cast")
    assert equal(gradients(model, X), gradients(same, X))
    both = emulate.apply(mlp(4), recipe="mxfp8", activations="bf16", weights="bf16")
    assert both.recipe["activations"] == "bf16" and len(both.layers) == 2


@pytest.mark.parametrize("part", ["hadamard", "stochastic", "blocks2d", "first_last"])
def test_without_a_part(part):
    recipe = emulate.recipe("nvfp4")
    kept = copy.deepcopy(recipe)
    changed = emulate.without(recipe, part)
    assert recipe == kept != changed and changed["name"] == f"nvfp4-{part}"
    wanted = copy.deepcopy(kept)
    wanted["name"] = changed["name"]
    if part == "hadamard":
        del wanted["gemm"]["hadamard"]
    elif part == "stochastic":
        wanted["gemm"]["gradient"] = emulate.preset("nvfp4")
    elif part == "blocks2d":
        wanted["gemm"]["weight"] = emulate.preset("nvfp4")
    else:
        wanted["first_last"] = "cast"
    assert changed == wanted
    with pytest.raises(ValueError, match=f"has no {part}"):
        emulate.without(changed, part)
    emulate.apply(mlp(4), recipe=changed)


def test_without_parts_of_other_dicts():
    random = emulate.preset("e2m1", rounding="stochastic")
    nested = {"gemm": {"dgrad": {"gradient": random, "weight": "mxfp4"}, "hadamard": 16}}
    assert emulate.without(nested, "stochastic")["gemm"]["dgrad"]["gradient"] == emulate.e2m1
    assert emulate.without(nested, "hadamard")["gemm"] == {"dgrad": nested["gemm"]["dgrad"]}
    plain = {"gemm": emulate.preset("mxfp4", rounding="stochastic"), "name": "own"}
    assert emulate.without(plain, "stochastic") == {"gemm": emulate.mxfp4, "name": "own-stochastic"}
    smaq = emulate.without(emulate.recipe("smaq68"), "stochastic")
    assert smaq["weights"]["format"] == smaq["activations"]
    assert smaq["activations"].rounding == "nearest"
    assert emulate.without({"gemm": "bf16"}, "first_last")["first_last"] == "cast"


def test_parts_that_do_not_exist():
    for name, part in (("mxfp8", "hadamard"), ("mxfp8", "stochastic"), ("bf16", "first_last")):
        with pytest.raises(ValueError, match=f"{name} has no {part}"):
            emulate.without(emulate.recipe(name), part)
    with pytest.raises(ValueError, match="part='scales'; allowed: hadamard, stochastic, blocks2d"):
        emulate.without(emulate.recipe("nvfp4"), "scales")
    with pytest.raises(TypeError, match="the recipe is of type str; allowed: a dict"):
        emulate.without("nvfp4", "hadamard")
