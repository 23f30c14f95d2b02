"""emulate.apply before the fit() of Lightning and the train() of the HF Trainer, on two ranks."""

from __future__ import annotations

import re

import pytest

from tests.distributed import ROOT
from tests.recipes.running import RECIPES, needs_recipes, run_ranks

pytestmark = [needs_recipes, pytest.mark.slow]

LINE = r"rank (\d): (\w+), loss ([\d.]+) to ([\d.]+), weights (\w+), ([\d.]+) bits of (\S+)"
MEMORY = {"activations", "gradient_maps", "gradients", "weights"}
GEMMS = {"forward.input", "forward.weight", "dgrad.gradient", "dgrad.weight", "wgrad.gradient"}


@pytest.mark.parametrize(
    "script, state",
    [("emulated_lightning.py", {"momentum_buffer"}), ("emulated_hf.py", {"exp_avg", "exp_avg_sq"})],
)
def test_one_line_before_the_training(script, state):
    """The optimizer is made later; weights are equal on both ranks; losses fall, but for 6 bits of
    AdamW's squares, whose small ones become 0."""
    path = str(ROOT / "tests" / "recipes" / script)
    finished = run_ranks(path, "mxfp8", "smaq68", env={"PYTHONPATH": str(RECIPES)})
    found = {}
    for rank, recipe, first, last, weights, bits, kinds in re.findall(LINE, finished.output):
        limit = 1.5 if recipe == "smaq68" and "exp_avg_sq" in state else 0.9
        assert float(last) < limit * float(first)
        found.setdefault(recipe, {})[rank] = (weights, float(bits), set(kinds.split(",")))
    assert {recipe: sorted(ranks) for recipe, ranks in found.items()} == {
        "mxfp8": ["0", "1"],
        "smaq68": ["0", "1"],
    }
    for ranks in found.values():
        assert ranks["0"][0] == ranks["1"][0], "weights differ between ranks"
    (_, eight, gemms), (_, six, memory) = found["mxfp8"]["0"], found["smaq68"]["0"]
    assert GEMMS <= gemms and 8 < eight < 9
    assert memory == MEMORY | {f"optimizer_state.{key}" for key in state} and 6 < six < 8
