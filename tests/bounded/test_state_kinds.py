"""State dicts of all schedulers and optimizers of torch come back, and go on where they were."""

from __future__ import annotations

import collections
import inspect
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from tests.bounded.helpers import gaussian, same
from torch_cgx import bounded

SCHEDULERS: dict[str, Any] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.MultiStepLR(o, [2, 3, 3])]
    ),
    "ConstantLR": lr_scheduler.ConstantLR,
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, mode="exp_range"),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, [lambda step: 0.9**step, Decay(0.8)]),
    "LinearLR": lr_scheduler.LinearLR,
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 3, 3]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.MultiStepLR(o, [2, 3])], [2]
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


class Decay:
    """LambdaLR saves the attributes of objects, and no functions."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, step: int) -> float:
        return self.factor**step


def test_every_scheduler_of_torch_is_here():
    base = lr_scheduler.LRScheduler
    found = {
        name
        for name, one in vars(lr_scheduler).items()
        if inspect.isclass(one) and issubclass(one, base) and not name.startswith("_")
    }
    assert found - {"LRScheduler"} == set(SCHEDULERS) - {"SWALR"}


def rates(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[list[float]]:
    found = []
    for step in range(steps):
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0 + step // 2)
        else:
            scheduler.step()
        found.append([float(group["lr"]) for group in optimizer.param_groups])
    return found


def optimizer_of(tensor_rate: bool = False) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(3))]} for _ in range(2)]
    rate = torch.tensor(0.1) if tensor_rate else 0.1
    return torch.optim.SGD(groups, lr=rate, momentum=0.9)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_where_they_were(tmp_path, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of SequentialLR
        optimizers = [optimizer_of(), optimizer_of()]
        first, second = (SCHEDULERS[name](one) for one in optimizers)
        rates(first, optimizers[0], 3)
        state = [first.state_dict(), optimizers[0].state_dict()]
        bounded.save(state, tmp_path / "a", max_error=0)
        back = bounded.load(tmp_path / "a")
        assert same(back, state)
        optimizers[1].load_state_dict(back[1])
        second.load_state_dict(back[0])
        expected = rates(first, optimizers[0], 5)
        assert rates(second, optimizers[1], 5) == expected


def test_rates_that_are_tensors(tmp_path):
    optimizer = optimizer_of(tensor_rate=True)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 3])
    rates(scheduler, optimizer, 3)
    state = [scheduler.state_dict(), optimizer.state_dict()]
    bounded.save(state, tmp_path / "a", max_error=0)
    assert same(bounded.load(tmp_path / "a"), state)


OPTIMIZERS = sorted(
    name
    for name, one in vars(torch.optim).items()
    if inspect.isclass(one) and issubclass(one, torch.optim.Optimizer) and name != "Optimizer"
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_come_back(tmp_path, name):
    more: dict[str, Any] = {"Adam": {"amsgrad": True}, "ASGD": {"lambd": 1e-3}}.get(name, {})
    parameters = [torch.nn.Parameter(gaussian(8, 6, seed=seed)) for seed in (0, 1)]
    kind = getattr(torch.optim, name)
    optimizer = kind(parameters, **more)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = sum(one.square().sum() for one in parameters)
        total.backward()
        if name == "SparseAdam":
            for one in parameters:
                one.grad = one.grad.to_sparse()
        return total

    for _ in range(2):
        optimizer.step(loss)
    state = optimizer.state_dict()
    bounded.save(state, tmp_path / "a", max_error=0)
    back = bounded.load(tmp_path / "a")
    assert same(back, state)
    kind([torch.nn.Parameter(gaussian(8, 6)) for _ in range(2)], **more).load_state_dict(back)


def test_counters_come_back_as_counters(tmp_path):
    state = {"a": collections.Counter({30: 1, "x": 2.5, (1, 2): -3}), "b": collections.Counter()}
    bounded.save(state, tmp_path / "a", max_error=0)
    back = bounded.load(tmp_path / "a")
    assert same(back, state) and back["a"][7] == 0
    assert bounded.load(tmp_path / "a", keys=["a.30"]) == {"a.30": 1}


@pytest.mark.parametrize(
    "value",
    [np.timedelta64(3, "s"), np.timedelta64(3, "D"), np.timedelta64("NaT"), np.datetime64(1, "s")],
)
def test_times_of_numpy_are_refused(tmp_path, value):
    """As numbers they would lose their unit."""
    for state in ({"a": value}, {"a": [value]}):
        with pytest.raises(TypeError, match=r"^a(\.0)? is a numpy\.(time|date)"):
            bounded.save(state, tmp_path / "a", max_error=0)
    assert not list(tmp_path.iterdir())


def test_an_error_for_a_dtype_names_all_that_are_allowed(tmp_path):
    with pytest.raises(ValueError, match=r"float8_e4m3fn, allowed: float32, .*view\(torch.uint8\)"):
        bounded.compress(torch.zeros(3, dtype=torch.float8_e4m3fn))
    odd = torch.empty(3, dtype=torch.bits8)
    with pytest.raises(
        ValueError, match="^a: dtype is bits8, allowed: .*complex128, float8_e4m3fn"
    ):
        bounded.save({"a": odd}, tmp_path / "a", max_error=0)
    with pytest.raises(ValueError, match="dtype is bits8, allowed: .*complex128$"):
        bounded.compress(odd)
