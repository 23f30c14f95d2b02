"""Ranks of a comparison: the same as emulated nodes, exact and in messages, and their failures."""

from __future__ import annotations

import pytest

from tests import warm
from torch_cgx.emulate.comparison import RunError, compare, ranks

MODULE = """
import os
import torch
from torch.distributed import is_initialized  # in a rank
from tests.emulate.comparison import toy

def change(task, loss):
    object.__setattr__(task, "loss", loss)

def make():
    print("words that are no message")
    return toy.task()

def ends():
    task = toy.task()
    loss = task.loss
    change(task, lambda model, batch: os._exit(3) if is_initialized() else loss(model, batch))
    return task

def fails():
    task = toy.task()
    loss = task.loss
    change(task, lambda model, batch: 1 // 0 if is_initialized() else loss(model, batch))
    return task
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"ranked_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    root = __file__.rpartition("/tests/")[0]
    monkeypatch.setenv("PYTHONPATH", root)
    monkeypatch.setattr(ranks, "_PYTHON", warm.python())
    return name


def without_times(comparison):
    return {(run["recipe"], run["seed"]): {**run, "seconds": 0} for run in comparison.runs}


def test_ranks_are_as_nodes(module):
    recipes = ["bf16", "smaq68", "cpd43+aps"]
    task = f"{module}:make"
    shared = without_times(compare(task, recipes, seeds=2, steps=3, ranks=2, progress=False))
    alone = without_times(compare(task, recipes, seeds=2, steps=3, emulate_node=2, progress=False))
    assert list(shared) == list(alone)
    for seed in (0, 1):
        assert shared["fp32", seed] == alone["fp32", seed]
    for key, run in shared.items():
        assert run["diverged"] is None
        assert run["loss"] == pytest.approx(alone[key]["loss"], rel=0.1), key


@pytest.mark.parametrize(
    "factory, text",
    [
        ("fails", "rank [01]: recipe fp32, seed 0: ZeroDivisionError: integer"),
        ("ends", "rank [01] ended with status 3"),
    ],
)
def test_a_rank_that_fails(module, factory, text):
    with pytest.raises(RunError, match=text):
        compare(f"{module}:{factory}", [], seeds=1, ranks=2, progress=False)
