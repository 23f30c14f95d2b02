"""Fingerprints of tasks: equal where the task is, in each process, and of what they consist."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn

from tests import warm
from tests.distributed import ROOT
from tests.emulate.comparison import toy
from torch_cgx.emulate.comparison.fingerprint import changed, fingerprint
from torch_cgx.emulate.comparison.run import Size

SIZE = Size(8, 8)


class Normed(nn.Module):
    """A buffer that the loss changes, and settings of an optimizer that are no numbers."""

    def __init__(self):
        super().__init__()
        self.norm, self.net, self.empty = nn.BatchNorm1d(4), toy.net(), nn.Parameter(torch.zeros(0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.net(self.drop(self.norm(x)))


def optimizer(model):
    made = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), foreach=False)
    made.param_groups[0] |= {"schedule": warm.python, "object": object(), "more": {"a": (1, 0.1)}}
    return made


def task(**changes):
    return toy.task(Normed, **{"optimizer": optimizer, **changes})


def test_equal_in_each_process_and_as_json():
    here = fingerprint(task(), SIZE)
    assert json.loads(json.dumps(here, allow_nan=False)) == here
    assert "0x" not in str(here)
    code = (
        "import json, random, torch; torch.set_num_threads(2); torch.rand(3); random.random()\n"
        "from tests.emulate.comparison import test_fingerprint as t\n"
        "print(json.dumps(t.fingerprint(t.task(), t.SIZE)))"
    )
    done = subprocess.run(
        [*warm.python(), "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == here


def test_the_program_is_as_before():
    threads = torch.get_num_threads()
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    fingerprint(task(), SIZE)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])
    assert torch.get_num_threads() == threads


def test_settings_of_optimizers_are_exact():
    """repr of a tensor has four digits."""

    def of(rate):
        def make(model):
            return torch.optim.AdamW(model.parameters(), lr=torch.tensor(rate), foreach=False)

        return fingerprint(task(optimizer=make), SIZE)

    assert changed(of(0.1234567), of(0.1234567)) == []
    assert changed(of(0.1234567), of(0.1234568)) == ["optimizer"]


class Tensors(UserDict):
    """A Mapping that is no dict, as tokenizers return."""


@dataclasses.dataclass
class Record:
    x: object


@pytest.mark.parametrize(
    "wrap", [lambda x: Tensors(x=x), lambda x: Record(x), lambda x: [x.numpy()], lambda x: (x, 1)]
)
def test_batches_of_all_kinds(wrap):
    def of(x):
        changes = {"batch_of": lambda *key: wrap(x), "loss": lambda model, batch: sum_of(model)}
        return fingerprint(dataclasses.replace(toy.task(), **changes), SIZE)

    def sum_of(model):
        return sum(p.sum() for p in model.parameters())

    x = torch.arange(8.0)
    assert changed(of(x), of(x.clone())) == []
    assert changed(of(x), of(x.flip(0))) == ["first batch"]
    assert changed(of(x), of(x.view(2, 4))) == ["first batch"]


def test_numbers_that_are_computed_have_a_tolerance():
    here = fingerprint(toy.task(), SIZE)
    near = {**here, "loss": f"{float(here['loss']) * (1 + 1e-6):.9g}"}
    assert near != here and changed(near, here) == []
    assert changed({**here, "loss": f"{float(here['loss']) * 1.01}"}, here) == ["loss"]
    assert changed({**here, "loss": "words", "more": 1}, here) == ["loss", "more"]
    assert changed(None, here) == list(here)


def test_a_loss_that_is_not_finite():
    first = toy.task()
    broken = dataclasses.replace(first, loss=lambda *given: first.loss(*given) * float("nan"))
    found = [fingerprint(broken, SIZE) for _ in range(2)]
    assert found[0]["loss"] == "nan" and changed(*found) == []
    json.dumps(found[0], allow_nan=False)


def test_the_loss_is_of_one_micro_batch():
    """All of them in one pass may not fit the memory."""
    seen = []
    first = toy.task()

    def loss(model, batch):
        seen.append(len(batch[0]))
        return first.loss(model, batch)

    fingerprint(dataclasses.replace(first, loss=loss), Size(8, 8, ranks=2, nodes=2))
    assert seen == [2]
