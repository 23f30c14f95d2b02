"""`emulate.compare`: a sweep that goes on where it was, its rows, table and files."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys

import pytest
import torch

from tests.emulate.comparison import toy
from torch_cgx import emulate
from torch_cgx.emulate.comparison import Comparison, RunError, compare

RECIPES = ["bf16", "mxfp4", "cpd43+aps"]


def without_times(comparison):
    return [{**run, "seconds": 0} for run in comparison.runs]


def run(recipe, seed, loss, accuracy=None, seconds=1.0, diverged=None, bits=8.0):
    return {
        "recipe": recipe,
        "seed": seed,
        "definition": recipe,
        "loss": loss,
        "accuracy": accuracy,
        "diverged": diverged,
        "bits": bits,
        "seconds": seconds,
        "every": 1,
        "curve": [2.0, loss],
    }


SETTINGS = {
    "model": "toy",
    "steps": 2,
    "batch": 8,
    "ranks": 1,
    "emulate_node": 4,
    "threads": 1,
    "torch": "2.13.0",
    "facts": {},
}
BY_HAND = Comparison(
    SETTINGS,
    [
        *(run("fp32", seed, 1.0 + seed, 0.5, bits=32) for seed in range(3)),
        *(
            run("near", seed, 1.0 + seed + d, 0.5 + d, 2.0)
            for seed, d in enumerate((0.1, 0.2, 0.3))
        ),
        run("far", 0, 1.5, 0.25),
        run("far", 1, None, None, 3.0, diverged=1),
        run("far", 2, 2.5, 0.75, 4.0),
    ],
)


def test_rows_by_hand():
    exact, near, far = BY_HAND.rows
    assert (exact["loss"], exact["difference"], exact["interval"]) == (2.0, None, None)
    assert (exact["bits"], exact["time"], exact["seeds"]) == (32, 1, 3)
    half = 4.3027 * 0.1 / math.sqrt(3)
    assert near["loss"] == pytest.approx(2.2) and near["time"] == 2
    assert near["difference"] == pytest.approx(0.2) and near["interval"] == pytest.approx(half)
    assert near["accuracy_difference"] == pytest.approx(0.2)
    assert near["accuracy_interval"] == pytest.approx(half)
    assert (far["diverged"], far["loss"], far["accuracy"], far["time"]) == (1, 2.0, 0.5, 3)
    assert far["difference"] is far["interval"] is far["accuracy_difference"] is None


def test_table_by_hand():
    lines = BY_HAND.table().splitlines()
    head = "toy: 3 seeds, 2 steps of 8 samples, 4 nodes, torch 2.13.0, 1 thread"
    assert lines[0] == head and str(BY_HAND) == BY_HAND.table()
    assert lines[2].split() == "recipe loss to fp32 +- accuracy to fp32 +- bits time".split()
    assert lines[3].split() == ["fp32", "2.0000", "50.00", "%", "32", "1.00x"]
    cells = "near 2.2000 +0.2000 0.2484 70.00 % +20.00 % 24.84 8 2.00x"
    assert lines[4].split() == cells.split()
    assert lines[5].split() == "far 2.0000 1 of 3 diverged 50.00 % 8 3.00x".split()


def test_files(tmp_path):
    BY_HAND.to_csv(tmp_path / "t.csv")
    rows = list(csv.DictReader((tmp_path / "t.csv").open()))
    assert [row["recipe"] for row in rows] == ["fp32", "near", "far"]
    assert rows[0]["difference"] == "" and float(rows[1]["difference"]) == pytest.approx(0.2)
    assert json.loads(BY_HAND.to_json())["rows"] == BY_HAND.rows


def test_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        BY_HAND.plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        BY_HAND.plot(tmp_path / "b.png")


def test_a_comparison_twice_is_the_same(tmp_path, capsys):
    first = compare(toy.task(), RECIPES, seeds=2, progress=False)
    assert capsys.readouterr().err == ""
    second = compare(toy.task(), RECIPES, seeds=2, out=tmp_path)
    assert without_times(first) == without_times(second)
    order = [(one["recipe"], one["seed"]) for one in first.runs]
    assert order == [(name, seed) for name in ["fp32", *RECIPES] for seed in (0, 1)]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8 and lines[1].startswith("cgx: seed 0, bf16: loss ")
    assert lines[-1].endswith("; 8 of 8)")
    # All is there: the same table, times included, and nothing is trained.
    third = compare(dataclasses.replace(toy.task(), validate=int), RECIPES, seeds=2, out=tmp_path)
    assert third == second and capsys.readouterr().err == ""


def test_more_seeds_and_recipes_are_added(tmp_path):
    small = compare(toy.task(), ["bf16"], seeds=1, out=tmp_path, progress=False)
    both = compare(toy.task(), RECIPES, seeds=[1, 0], out=tmp_path, progress=False)
    assert [one for one in both.runs if one in small.runs] == small.runs
    fresh = compare(toy.task(), RECIPES, seeds=[1, 0], progress=False)
    assert without_times(fresh) == without_times(both)
    again = compare(toy.task(), ["bf16"], seeds=1, out=tmp_path, progress=False)
    assert again == small


def test_an_interrupted_sweep_goes_on(tmp_path):
    validations = []

    def stopping(limit):
        task = toy.task()

        def validate(model):
            validations.append(0)
            if len(validations) == limit:
                raise KeyboardInterrupt
            return task.validate(model)

        return dataclasses.replace(task, validate=validate)

    with pytest.raises(KeyboardInterrupt):
        compare(stopping(4), RECIPES, seeds=2, out=tmp_path, progress=False)
    path = tmp_path / "runs.jsonl"
    assert len(path.read_text().splitlines()) == 1 + 3
    path.write_bytes(path.read_bytes()[:-30])  # the machine stopped while it wrote
    found = compare(stopping(0), RECIPES, seeds=2, out=tmp_path, progress=False)
    assert len(validations) == 4 + 6
    assert without_times(found) == without_times(
        compare(toy.task(), RECIPES, seeds=2, progress=False)
    )


def test_other_settings_and_recipes_are_named(tmp_path):
    mine = {"mine": {"gemm": "bf16"}}
    compare(toy.task(), mine, seeds=1, out=tmp_path, progress=False)
    for changes, text in (
        ({"steps": 5}, "steps is 4 there and 5 here"),
        ({"batch": 4}, "batch is 8 there and 4 here"),
        ({"emulate_node": 2}, "emulate_node is 1 there and 2 here"),
    ):
        with pytest.raises(ValueError, match=text):
            compare(toy.task(), mine, seeds=1, out=tmp_path, **changes)
    with pytest.raises(ValueError, match='mine.applied.gemm is "bf16" there and "fp16" here'):
        compare(toy.task(), {"mine": {"gemm": "fp16"}}, seeds=1, out=tmp_path)
    with pytest.raises(ValueError, match="facts.train is 24 there and 25 here"):
        compare(toy.task(facts={"train": 25, "validation": 24}), mine, seeds=1, out=tmp_path)


@pytest.mark.parametrize(
    "given, text",
    [
        ({"seeds": 0}, "seeds=0; allowed: integers from 1"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]; allowed: integers from 1, or a list of different"),
        ({"seeds": [-1]}, r"seeds=\[-1\]: -1; allowed: integers from 0"),
        ({"ranks": 2}, "ranks=2 with a Task; allowed: with a name"),
        ({"data": "texts"}, "data='texts' with a Task; allowed: with a name"),
        ({"emulate_node": 16}, "emulate_node=16 and ranks=1 with batch=8"),
        ({"recipes": ["fp1"]}, "recipe='fp1'; allowed: bf16"),
        ({"task": 3}, "task is of type int; allowed: a Task, a name"),
        ({"task": "digits", "ranks": 2, "recipes": ["cpd43+kahan"]}, "kahan with ranks"),
        ({"task": "digits", "ranks": 2, "recipes": ["cpd(7,7)"]}, "with ranks: float: exponent=7"),
    ],
)
def test_what_is_refused(tmp_path, given, text):
    pytest.importorskip("sklearn")
    asked = {"task": toy.task(), "recipes": ["bf16"]} | given
    with pytest.raises((TypeError, ValueError), match=text):
        compare(asked.pop("task"), asked.pop("recipes"), **asked)


def test_a_recipe_that_does_not_fit_is_found_before_anything_is_trained(tmp_path):
    recipes = {"fits": "bf16", "not": {"gemm": "bf16", "layers": {"nowhere": "exact"}}}
    with pytest.raises(RunError, match="recipe not, seed 0: ValueError: .*nowhere"):
        compare(toy.task(), recipes, seeds=1, out=tmp_path, progress=False)
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 1


def test_the_public_names():
    assert emulate.compare is compare and emulate.Comparison is Comparison


def straight(loss):
    """An equal loss with another gradient."""
    return loss + (loss - loss.detach())


def test_results_of_another_task_of_that_name_are_refused(tmp_path):
    """The user's code has changed since: equal names and counts do not make equal tasks."""
    first = toy.task()

    def of(**changes):
        task = dataclasses.replace(toy.task(), **changes)
        return compare(task, ["bf16"], seeds=1, steps=4, out=tmp_path, progress=False)

    def wider():
        return torch.nn.Sequential(first.model(), torch.nn.Linear(2, 2))

    found = of()
    assert of() == found
    for changes, text in (
        ({"model": wider}, "its model, optimizer, loss, gradient differ"),
        (
            {"optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.123)},
            r'its optimizer differs \(groups\[0\].lr is "0.5" there and "0.123" here\); allowed: ',
        ),
        (
            {"batch_of": lambda *key: tuple(one.flip(0) for one in first.batch_of(*key))},
            "its first batch differs; allowed: the same, or another folder",
        ),
        ({"loss": lambda *given: 2 * first.loss(*given)}, "its loss, gradient differ"),
        ({"loss": lambda *given: straight(first.loss(*given))}, "its gradient differs"),
        ({"rate": lambda step, steps: 1 - step / steps}, "its rate differs"),
        ({"clip": 0.25}, "its clip differs"),
    ):
        with pytest.raises(ValueError, match=f"what is trained is another task than in .*{text}"):
            of(**changes)
    assert of() == found


def test_results_of_before_there_were_fingerprints_are_refused(tmp_path):
    compare(toy.task(), [], seeds=1, out=tmp_path, progress=False)
    path = tmp_path / "runs.jsonl"
    first, *others = path.read_text().splitlines(keepends=True)
    settings = json.loads(first)
    del settings["settings"]["trained"]
    path.write_text("".join([json.dumps(settings) + "\n", *others]))
    with pytest.raises(ValueError, match="another task than in .*: its model, optimizer, "):
        compare(toy.task(), [], seeds=1, out=tmp_path, progress=False)
