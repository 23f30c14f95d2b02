"""One training: paired seeds, sums of nodes, divergence, errors, and what is left as it was."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.emulate.comparison import toy
from torch_cgx import emulate
from torch_cgx.emulate.comparison import RunError
from torch_cgx.emulate.comparison.recipes import resolve
from torch_cgx.emulate.comparison.run import Size, made, train
from torch_cgx.emulate.comparison.sweep import nodes_of

EXACT = resolve([])[0]
NAMES = ("fp32", "bf16", "mxfp4", "smaq68", "cpd43+aps")


def watched(task):
    """The task, and a list that gets weights before training, batches, and weights after."""
    seen = []

    def model():
        made = task.model()
        seen.append(("model", [p.detach().clone() for p in made.parameters()]))
        return made

    def batch_of(*key):
        batch = task.batch_of(*key)
        seen.append(("batch", [one.clone() for one in batch]))
        return batch

    def validate(model):
        seen.append(("trained", [p.detach().clone() for p in model.parameters()]))
        return task.validate(model)

    changes = {"model": model, "batch_of": batch_of, "validate": validate}
    return dataclasses.replace(task, **changes), seen


def trained(recipe, size, seed=0, **changes):
    """Result, and the weights."""
    task, seen = watched(toy.task(**changes))
    result = train(task, recipe, seed, size)
    return result, seen[-1][1]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_recipes_of_a_seed_have_equal_weights_and_batches():
    seen = {}
    for recipe in resolve(NAMES):
        for seed in (0, 1):
            task, found = watched(toy.task())
            train(task, recipe, seed, Size(3, 8))
            seen[recipe.name, seed] = found[:-1]
    for (name, seed), found in seen.items():
        assert len(found) == 4, name
        for (kind, ours), (_, theirs) in zip(found, seen["fp32", seed], strict=True):
            assert equal(ours, theirs), (name, seed, kind)
    assert not equal(seen["fp32", 0][0][1], seen["fp32", 1][0][1])
    assert not equal(seen["fp32", 0][1][1], seen["fp32", 1][1][1])


def test_the_same_twice():
    for name in NAMES:
        recipe = resolve([name])[-1]
        (first, weights), (second, again) = (trained(recipe, Size(3, 8)) for _ in range(2))
        assert equal(weights, again)
        assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_result():
    task = toy.task()
    found = train(task, EXACT, 0, Size(3, 8))
    assert found["bits"] == 32 and found["diverged"] is None and found["seconds"] > 0
    assert found["every"] == 1 and len(found["curve"]) == 3
    assert 0 < found["loss"] < 1 and 0 <= found["accuracy"] <= 1
    steps = []
    long = train(task, EXACT, 0, Size(103, 8), lambda: steps.append(0))
    assert (len(steps), long["every"], len(long["curve"])) == (103, 2, 52)
    assert long["loss"] < found["loss"]


def gradients(model, parts):
    found = []
    for x, y in parts:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("name", ["fp32", "cpd43", "cpd30+aps", "cpd43+kahan"])
def test_nodes_are_summed_as_by_hand(name):
    """Four micro-batches of two samples, one step of SGD."""
    recipe = resolve([name])[-1]
    task = toy.task()
    _, weights = trained(recipe, Size(1, 8, nodes=4))
    model, _ = made(task, 5)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), made(task, 0)[0].parameters(), strict=True):
            parameter.copy_(value)
    x, y = task.batch_of(0, 0, 8)
    rate = 0.5 * task.rate(0, 1)
    cast = (lambda x: x) if recipe.sums is None else lambda x: emulate.cast(x, recipe.sums.format)
    parts = list(zip(x.split(2), y.split(2), strict=True))
    for given, old, new in zip(gradients(model, parts), model.parameters(), weights, strict=True):
        shift = 1.0
        if recipe.sums is not None and recipe.sums.aps:  # 8 is the largest number of (3, 0)
            most = max(float(one.abs().max()) for one in given) * 4
            shift = 2.0 ** (3 - np.ceil(np.log2(most)))
            given = [cast(one * shift) for one in given]
        total, excess = torch.zeros_like(given[0]), torch.zeros_like(given[0])
        for one in given:
            if name.endswith("kahan"):
                wanted = cast(one - excess)
                longer = cast(total + wanted)
                excess = cast(cast(longer - total) - wanted)
                total = longer
            else:
                total = cast(total + one)
        assert torch.equal(new, (old - rate * (total / shift / 4)).detach())


def test_one_node_is_cast_alone():
    recipe = resolve(["cpd30"])[1]
    task = toy.task()
    _, weights = trained(recipe, Size(1, 8))
    model, _ = made(task, 0)
    [*given] = gradients(model, [task.batch_of(0, 0, 8)])
    for (one,), old, new in zip(given, model.parameters(), weights, strict=True):
        step = emulate.cast(one, recipe.sums.format) * 0.5
        assert torch.equal(new, (old - step).detach())


def test_nodes_of_float32_make_the_batch():
    _, whole = trained(EXACT, Size(3, 8))
    _, parts = trained(EXACT, Size(3, 8, nodes=8))
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "given, text",
    [
        ({"batch": 4, "nodes": 8}, "emulate_node=8 and ranks=1 with batch=4; allowed: a batch"),
        ({"batch": 10, "nodes": 2, "ranks": 2}, "emulate_node=2 and ranks=2 with batch=10"),
        ({"batch": 8, "nodes": 0}, "emulate_node=0; allowed: integers from 1"),
        ({"batch": 8, "threads": True}, "threads=True; allowed: integers from 1"),
    ],
)
def test_sizes_that_do_not_fit(given, text):
    with pytest.raises(ValueError, match=text):
        Size(1, **given)


def test_dropout_leaves_out_the_same():
    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2))

    seen = []
    for recipe in resolve(["mxfp4"]):
        task = toy.task(model)

        def loss(model, batch, of=task.loss):
            hook = model[2].register_forward_hook(lambda _m, _i, out: seen.append(out == 0))
            with hook:
                return of(model, batch)

        train(dataclasses.replace(task, loss=loss), recipe, 0, Size(3, 8))
    assert len(seen) == 6 and not torch.equal(seen[0], seen[1])
    assert equal(seen[:3], seen[3:])


def test_a_training_that_diverges_ends():
    def explode(model):
        return torch.optim.SGD(model.parameters(), lr=1e30)

    steps = []
    task = toy.task(optimizer=explode, rate=lambda step, steps: 1.0)
    found = train(task, EXACT, 0, Size(20, 8), lambda: steps.append(0))
    assert 0 < found["diverged"] < 19 and len(steps) == found["diverged"] + 1
    assert found["loss"] is None and found["accuracy"] is None
    assert found["curve"][-1] is None and found["bits"] == 32


def test_a_validation_that_is_not_finite_diverged():
    task = dataclasses.replace(toy.task(), validate=lambda model: {"loss": float("nan")})
    assert train(task, EXACT, 0, Size(2, 8))["diverged"] == 2


def test_the_program_is_as_before():
    threads = torch.get_num_threads()
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    train(toy.task(), EXACT, 0, Size(2, 8, threads=threads + 1))
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])
    assert torch.get_num_threads() == threads


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, x):
        return self.table((x[:, 0] > 0).long())


@pytest.mark.parametrize(
    "task, recipe, text",
    [
        (
            toy.task(Sparse),
            "cpd43",
            "recipe cpd43, seed 3: TypeError: the gradient of table.weight is torch.sparse_coo",
        ),
        (toy.task(lambda: 3), "fp32", "TypeError: the task's model is of type int"),
        (toy.task(batch=25), "fp32", "ValueError: batch=25 exceeds the 24 samples"),
        (
            dataclasses.replace(toy.task(), validate=lambda model: {"accuracy": 1.0}),
            "fp32",
            r"ValueError: validate returned \['accuracy'\]; allowed: loss",
        ),
        (
            toy.task(loss=lambda x, y: 1 // 0),
            "fp32",
            "recipe fp32, seed 3: ZeroDivisionError: integer division",
        ),
    ],
)
def test_errors_name_the_training(task, recipe, text):
    with pytest.raises(RunError, match=text) as error:
        train(task, resolve([recipe])[-1], 3, Size(1, task.batch))
    assert error.value.__cause__ is not None


def test_a_failed_training_leaves_no_recipe_in_the_model():
    models = []

    def model():
        models.append(toy.net())
        return models[-1]

    task = dataclasses.replace(toy.task(model), validate=lambda model: 1 // 0)
    with pytest.raises(RunError):
        train(task, resolve(["mxfp4"])[1], 0, Size(1, 8))
    emulate.apply(models[0], recipe="mxfp4").remove()  # twice would be an error


def test_nodes_that_sum_micro_batches_of_their_own_first():
    """2x4: two nodes of four micro-batches, as CPD emulates more nodes than there are ranks."""
    recipe = resolve(["cpd43"])[1]
    task = toy.task()
    _, weights = trained(recipe, Size(1, 8, nodes=8, inner=4))
    model, _ = made(task, 0)
    x, y = task.batch_of(0, 0, 8)
    rate = 0.5 * task.rate(0, 1)
    parts = list(zip(x.split(1), y.split(1), strict=True))

    def cast(values):
        return emulate.cast(values, recipe.sums.format)

    for given, old, new in zip(gradients(model, parts), model.parameters(), weights, strict=True):
        total = torch.zeros_like(given[0])
        for node in (given[:4], given[4:]):
            own = torch.zeros_like(total)
            for one in node:
                own = cast(own + cast(one))
            total = cast(total + own)
        assert torch.equal(new, (old - rate * (total / 8)).detach())
    assert nodes_of("8x32") == (256, 32) and nodes_of(4) == (4, 1)
    for bad in ("8x0", "x", 0, True, 2.0):
        with pytest.raises(ValueError, match="emulate_node="):
            nodes_of(bad)
