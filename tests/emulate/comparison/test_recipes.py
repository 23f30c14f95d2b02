"""Names of recipes: parts, options, the reference, and what is refused."""

from __future__ import annotations

import re

import pytest

from torch_cgx import emulate
from torch_cgx.emulate.comparison.recipes import resolve


def test_the_reference_comes_first_and_is_not_applied():
    for asked in (["bf16", "fp32"], ["bf16"]):
        found = resolve(asked)
        assert [one.name for one in found] == ["fp32", "bf16"]
        assert found[0].given is None and found[0].sums is None
        assert found[1].given == emulate.recipe("bf16") and found[1].sums is None


@pytest.mark.parametrize(
    "name, aps, kahan",
    [
        ("cpd43", False, False),
        ("cpd(4,3)+aps", True, False),
        ("cpd43+kahan", False, True),
        ("cpd43+kahan+aps", True, True),
    ],
)
def test_sums_in_a_format_are_for_the_comparison(name, aps, kahan):
    _, found = resolve([name])
    assert found.name == name and found.given is None
    assert found.sums.format == emulate.Float(4, 3, variant="cpd")
    assert (found.sums.aps, found.sums.kahan, found.sums.node) == (aps, kahan, 1)


def test_the_rest_of_a_recipe_is_applied():
    given = {"gemm": "bf16", "gradients": {"format": emulate.Float(5, 2), "aps": True}}
    _, found = resolve({"mine": given})
    assert found.given == {"gemm": "bf16"} and found.sums.aps
    assert "gradients" in given  # not changed


def test_a_mapping_names_recipes():
    found = resolve({"fp32": None, "again": None, "eight": "mxfp8"})
    assert [one.name for one in found] == ["fp32", "again", "eight"]
    assert found[1].given is None and found[2].given == emulate.recipe("mxfp8")


def test_parts_are_left_out():
    _, whole, part = resolve(["nvfp4", "nvfp4-hadamard-stochastic"])
    assert "hadamard" in whole.given["gemm"] and "hadamard" not in part.given["gemm"]
    assert not part.given["gemm"]["gradient"].stochastic
    assert whole.definition != part.definition


def test_kinds_of_tensors_may_stay_exact():
    _, whole, part = resolve(["smaq68", "smaq68-optimizer_state-gradient_maps"])
    assert set(whole.given) - set(part.given) == {"optimizer_state", "gradient_maps"}
    assert part.given["weights"] == whole.given["weights"]
    with pytest.raises(ValueError, match="mxfp8 has no optimizer_state"):
        resolve(["mxfp8-optimizer_state"])


def test_definitions_are_equal_where_recipes_are():
    def definitions():
        return [one.definition for one in resolve([*emulate.recipes(), "cpd43+aps"])]

    assert definitions() == definitions()
    assert len({str(one) for one in definitions()}) == len(emulate.recipes()) + 2
    assert "0x" not in str(definitions())  # no address of an object


@pytest.mark.parametrize(
    "asked, text",
    [
        (["fp3"], "recipe='fp3'; allowed: bf16, "),
        (["mxfp8+aps"], r"recipe mxfp8\+aps: \+aps is for recipes that sum gradients in a format"),
        (["cpd43+more"], "'more' after \\+; allowed: aps, kahan, each once"),
        (["cpd43+aps+aps"], "'aps' after \\+"),
        (["mxfp8-hadamard"], "has no hadamard"),
        (["mxfp8-more"], "part='more'; allowed: hadamard"),
        (["bf16", "bf16"], "the recipe bf16 is named 2 times; allowed: once"),
        ([""], "recipes has ''; allowed: names"),
        ("bf16", "recipes='bf16' is a str; allowed: a list of names"),
        ({"fp32": "bf16"}, "the recipe fp32 is the reference"),
        ({"mine": 3}, "the recipe mine is of type int; allowed: a dict"),
    ],
)
def test_what_is_refused(asked, text):
    with pytest.raises((TypeError, ValueError), match=text):
        resolve(asked)


def test_bits_of_sums():
    import torch

    shapes = [torch.zeros(60), torch.zeros(4)]
    _, plain, shifted = resolve(["cpd43", "cpd30+aps"])
    assert plain.sum_bits(shapes) == 8
    assert shifted.sum_bits(shapes) == 4 + 2 * 32 / 64


@pytest.mark.parametrize(
    "given, text",
    [
        ({"gradients": {"format": "e5m2", "aps": True, "apx": 3}}, "recipe a: gradients has"),
        ({"gradients": {"aps": True}}, "recipe a: gradients has the keys aps"),
        ({"gradients": {"format": "zzz", "aps": False}}, "recipe a: gradients: format is 'zzz'"),
        ({"gem": "mxfp4"}, "recipe a: the recipe has the key 'gem'"),
    ],
)
def test_dicts_are_checked_as_apply_does(given, text):
    with pytest.raises(ValueError, match=text):
        resolve({"a": given})


def test_layers_may_be_compiled_patterns():
    """They are keys, which JSON does not have."""

    def definition(pattern):
        return resolve({"a": {"gemm": "bf16", "layers": {pattern: "exact"}}})[1].definition

    assert definition(re.compile("x")) == definition(re.compile("x"))
    assert definition(re.compile("x")) != definition(re.compile("x", re.IGNORECASE))
    assert definition("x")["layers"] == {"x": "exact"}
