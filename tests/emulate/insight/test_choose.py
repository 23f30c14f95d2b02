"""choose: formats of layers under a budget of bits."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.emulate.insight.test_blame import X, _gradient, _loss, _net, _relative
from torch_cgx import emulate
from torch_cgx.emulate.gemm.formats import gemm_formats

CANDIDATES = ["mxfp4", "mxfp6", "mxfp8", "exact"]


def _alone(candidate):
    """The squared error of each layer with this candidate alone."""
    found = {}
    for layer in ("first", "middle", "last"):
        model = _net()
        exact = _gradient(model)
        if candidate == "exact":
            found[layer] = 0.0
            continue
        with emulate.apply(model, layers={f"^{layer}$": emulate.recipe(candidate)["gemm"]}):
            found[layer] = _relative(_gradient(model), exact) ** 2
    return found


@pytest.mark.parametrize("budget", [4.5, 5.5, 7.0, 12.0, 32.0])
def test_the_choice_is_within_the_budget_and_near_the_best(budget):
    found = emulate.choose(_net(), X, CANDIDATES, budget, loss=_loss)
    assert found.bits <= budget
    bits = {"mxfp4": 4.25, "mxfp6": 6.25, "mxfp8": 8.25, "exact": 32.0}
    # Values of input, weight and gradient; blocks of 8 outputs are short ones.
    values = {"first": 64 * 32 + 48 * 32 + 64 * 48, "middle": 64 * 48 + 64 * 48 + 64 * 64}
    values["last"] = 64 * 64 + 8 * 64 + 64 * 8
    errors = {one: _alone(one) for one in CANDIDATES}
    best, whole = float("inf"), sum(values.values())
    for picked in itertools.product(CANDIDATES, repeat=3):
        layers = dict(zip(values, picked, strict=True))
        cost = sum(bits[one] * values[layer] for layer, one in layers.items()) / whole
        if cost <= budget:
            best = min(best, sum(errors[one][layer] for layer, one in layers.items()))
    largest = max(errors["mxfp4"].values())
    assert found.error**2 <= best + largest
    assert found.error**2 == pytest.approx(
        sum(errors[one][layer] for layer, one in found.layers.items()), rel=1e-6, abs=1e-12
    )


def test_a_larger_budget_has_no_larger_error_and_32_bits_none():
    found = [emulate.choose(_net(), X, CANDIDATES, b, loss=_loss).error for b in (5, 6, 8, 32)]
    assert found == sorted(found, reverse=True) and found[-1] == 0


def test_the_recipe_is_what_was_chosen():
    found = emulate.choose(_net(), X, CANDIDATES, 6.0, loss=_loss)
    model = _net()
    with emulate.apply(model, recipe=found.recipe) as emulation:
        cast = {name for name, one in found.layers.items() if one != "exact"}
        assert set(emulation.layers) == cast
        for name in cast:
            gemm = emulate.recipe(found.layers[name])["gemm"]
            assert emulation.layers[name] == str(gemm_formats(gemm))
    assert "all" in found.table() and "first" in str(found)


def test_candidates_of_all_kinds():
    gemm = {"input": "e4m3fn", "weight": "e4m3fn"}
    named = {"mine": gemm, "float": emulate.Float(4, 3), "nvfp4": "nvfp4", "exact": "exact"}
    found = emulate.choose(_net(), X, named, 20.0, loss=_loss)
    assert set(found.layers.values()) <= set(named)
    half = emulate.choose(_net(), X, {"mine": gemm, "exact": None}, 31.9, loss=_loss)
    assert set(half.layers.values()) == {"mine", "exact"} or half.bits <= 31.9


@pytest.mark.parametrize(
    "candidates, budget, error, text",
    [
        (["mxfp4", "mxfp6"], 3.0, ValueError, r"budget_bits=3.0; .*at least 4.279"),
        (["mxfp4"], 5.0, ValueError, "at least two"),
        ("mxfp4", 5.0, TypeError, "candidates='mxfp4'"),
        (["mxfp4", "smaq68"], 5.0, ValueError, "'smaq68' has no formats of GEMMs"),
        (["mxfp4", "mxfp5"], 5.0, ValueError, "recipe='mxfp5'"),
        (["mxfp4", "mxfp6"], 0, ValueError, "budget_bits=0"),
        (["mxfp4", "mxfp6"], "5", ValueError, "budget_bits='5'"),
    ],
)
def test_bad_arguments(candidates, budget, error, text):
    model = _net()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(error, match=text):
        emulate.choose(model, X, candidates, budget, loss=_loss)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert type(model.first) is torch.nn.Linear


def test_the_projections_of_an_attention_count_with_all_their_values():
    attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 8, 64, generator=generator) for _ in range(3))
    found = emulate.choose(attention, (q, k, v), ["mxfp4", "exact"], 20.0)
    # in_proj has three inputs, weights and gradients, out_proj one of each.
    share = (4.25 if found.layers["in_proj"] == "mxfp4" else 32.0) * 0.75
    share += (4.25 if found.layers["out_proj"] == "mxfp4" else 32.0) * 0.25
    assert found.bits == pytest.approx(share, rel=1e-6) and found.bits <= 20


def test_a_chosen_recipe_is_a_plain_dict():
    recipe = emulate.recipe("nvfp4")
    named = emulate.choose(_net(), X, {"a": recipe, "exact": "exact"}, 5.5, loss=_loss).recipe
    assert named["layers"]["^middle$"] == recipe["gemm"]
    assert "hadamard" not in emulate.without(named, "hadamard")["layers"]["^middle$"]
    found = emulate.choose(_net(), X, ["mxfp4", "exact"], 5.5, loss=_loss)
    assert found.recipe["layers"]["^middle$"] == "mxfp4"
