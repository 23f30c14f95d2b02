"""Tasks: their batches, cut and shuffled, their validation, and what is refused."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.emulate.comparison import toy
from torch_cgx.emulate.comparison import Task
from torch_cgx.emulate.comparison.batches import Shuffled, split
from torch_cgx.emulate.comparison.builtin import digits_task, gpt
from torch_cgx.emulate.comparison.task import warm_cosine


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index)]), torch.tensor([float(index**2)])


def test_batches_of_an_epoch_are_all_samples_and_follow_the_key():
    batch_of = Shuffled((torch.arange(10), torch.arange(10) * 2))
    epoch = [batch_of(3, step, 3) for step in range(3)]
    seen = torch.cat([x for x, _ in epoch])
    assert len(seen.unique()) == 9
    assert all(torch.equal(2 * x, y) for x, y in epoch)
    again = [Shuffled(batch_of.samples)(3, step, 3)[0] for step in range(3)]
    assert torch.equal(torch.cat(again), seen)
    for other in [(4, 0), (3, 3)]:  # another seed, the next epoch
        assert not torch.equal(batch_of(*other, 3)[0], epoch[0][0])
    with pytest.raises(ValueError, match="batch=11 exceeds the 10 samples to train on"):
        batch_of(0, 0, 11)


def test_a_dataset_is_joined():
    x, y = Shuffled(Squares())(0, 0, 4)
    assert x.shape == (4, 1) and torch.equal(x**2, y)


def test_split_keeps_containers():
    x, y = torch.arange(6), torch.arange(12).view(6, 2)
    assert split(x, 1)[0] is x
    pairs = split(Pair(x, y), 3)
    assert [type(one) for one in pairs] == [Pair] * 3
    assert torch.equal(torch.cat([one.y for one in pairs]), y)
    nested = split({"a": [x, (y,)]}, 2)[1]
    assert torch.equal(nested["a"][0], x[3:]) and torch.equal(nested["a"][1][0], y[3:])


@pytest.mark.parametrize(
    "batch, error, text",
    [
        (torch.zeros(5, 2), ValueError, r"of shape \(5, 2\), which is not cut into 2 equal parts"),
        (torch.tensor(1.0), ValueError, r"of shape \(\)"),
        ((torch.zeros(2), "words"), TypeError, "an object of type str; allowed: tensors"),
    ],
)
def test_a_batch_that_cannot_be_cut(batch, error, text):
    with pytest.raises(error, match=text):
        split(batch, 2)


def test_validation_is_the_mean_of_all_samples():
    x = torch.arange(600.0).view(-1, 1)
    y = (torch.arange(600) % 3 == 0).long()

    class Two(nn.Module):
        def forward(self, x):
            return torch.cat([torch.zeros_like(x), x / 300 - 1], 1)

    task = Task.supervised(Two, (x, y), (x, y))
    logits = Two()(x)
    found = task.validate(Two())
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()))


def test_regression_has_no_accuracy():
    task = Task.supervised(lambda: nn.Linear(1, 1), Squares(), Squares(), loss=F.mse_loss)
    assert set(task.validate(nn.Linear(1, 1))) == {"loss"}
    assert task.facts == {"train": 6, "validation": 6}


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"name": ""}, "name=''; allowed: a str"),
        ({"batch": 0}, "batch=0; allowed: integers from 1"),
        ({"steps": True}, "steps=True; allowed: integers from 1"),
        ({"clip": 0.0}, "clip=0.0; allowed: positive numbers, None"),
        ({"rate": 0.1}, "rate=0.1; allowed: a function"),
    ],
)
def test_bad_fields(changes, text):
    with pytest.raises((TypeError, ValueError), match=text):
        toy.task(**changes)


def test_no_samples():
    with pytest.raises(ValueError, match="validation has no samples"):
        Task.supervised(nn.Identity, toy.points(), (torch.zeros(0), torch.zeros(0)))


def test_rates():
    assert [warm_cosine(step, 20) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert warm_cosine(11, 20) == pytest.approx(0.5)
    assert warm_cosine(0, 1) == 1


def _size(task):
    return sum(p.numel() for p in task.model().parameters())


def test_tasks_of_the_package(tmp_path):
    (tmp_path / "a.txt").write_text("words " * 200)
    text = gpt(tmp_path)
    assert _size(text) == 119_424
    x, y = text.batch_of(0, 0, 3)
    assert x.shape == (3, 64) and torch.equal(x[:, 1:], y[:, :-1])
    assert not torch.equal(x, text.batch_of(1, 0, 3)[0])
    loss = text.loss(text.model(), (x, y))
    assert text.validate(text.model())["loss"] == pytest.approx(float(loss.detach()), rel=0.1)
    (tmp_path / "a.txt").write_text("words " * 201)
    assert gpt(tmp_path).facts != text.facts
    (tmp_path / "a.txt").write_text("words " * 20)
    with pytest.raises(ValueError, match="has 12 bytes to validate; allowed: more than 64"):
        gpt(tmp_path)
    pytest.importorskip("sklearn")
    digits = digits_task()
    assert _size(digits) == 151_306
    assert digits.batch_of(0, 0, 5)[0].shape == (5, 1, 8, 8)
    assert 2.2 < digits.validate(digits.model())["loss"] < 2.4


@pytest.mark.parametrize(
    "train, error, text",
    [
        ((torch.zeros(90, 4), torch.zeros(100)), ValueError, r"train has tensors of \[90, 100\]"),
        ([torch.zeros(9, 4), torch.zeros(9)], TypeError, "train is of type list; allowed: a tuple"),
        (torch.zeros(9, 4), TypeError, "train is of type Tensor"),
        ((), TypeError, "train is of type tuple of nothing; allowed: a tuple of tensors"),
        ((torch.zeros(9, 4), [0] * 9), TypeError, "train is of type tuple of Tensor, list"),
        ((torch.zeros(9, 4), torch.tensor(1.0)), TypeError, "train is of type tuple of"),
        ({"x": torch.zeros(9, 4)}, TypeError, "train is of type dict"),
        (
            torch.utils.data.DataLoader([(torch.zeros(4), 1)]),
            TypeError,
            "train is of type DataLoader; allowed: .*as loader.dataset",
        ),
    ],
)
def test_samples_that_are_refused(train, error, text):
    good = (torch.zeros(9, 4), torch.zeros(9))
    with pytest.raises(error, match=text):
        Task.supervised(lambda: torch.nn.Linear(4, 2), train, good)
    with pytest.raises(TypeError, match=r"model is a Module \(Linear\); allowed: a function"):
        Task.supervised(torch.nn.Linear(4, 2), good, good)
    with pytest.raises(TypeError, match="model is a Module"):
        toy.task(nn.Linear(4, 2))
