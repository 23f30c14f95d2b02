"""The key of stochastic rounding of saved tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.activations.kept import gradients, normal
from tests.activations.saved.saving import FP32, back, make_model
from torch_cgx import activations
from torch_cgx.activations import compress_saved


def _payload_of(x: torch.Tensor, context: compress_saved) -> torch.Tensor:
    (y,) = back(x, context=context)
    return y


def test_the_key_of_stochastic_rounding() -> None:
    x = normal(4000)

    def of_step(step: int) -> torch.Tensor:
        return _payload_of(x, compress_saved(step=step))

    assert torch.equal(of_step(3), of_step(3)) and not torch.equal(of_step(3), of_step(4))
    torch.manual_seed(5)
    first, second = (_payload_of(x, compress_saved()) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(_payload_of(x, compress_saved()), first)
    a, b = back(x, x.clone(), context=compress_saved(step=3))
    assert not torch.equal(a, b)  # each tensor has its number
    state = torch.get_rng_state()
    _payload_of(x, compress_saved(FP32))  # without random numbers, none is drawn
    _payload_of(x, compress_saved(step=1))
    assert torch.equal(torch.get_rng_state(), state)


def test_stochastic_rounding_is_unbiased_over_steps() -> None:
    x = normal(256)
    mean = torch.zeros(256, dtype=torch.float64)
    for step in range(400):
        mean += _payload_of(x, compress_saved({"bits": 2}, min_size=8, step=step)).double() / 400
    unit = float(x.max() - x.min()) / 3
    assert float((mean - x).abs().max()) < 5 * unit / 2 / math.sqrt(400)


def test_rounding_is_stochastic_by_default_at_four_bits_and_less() -> None:
    x = normal(4000)
    for bits, stochastic in ((2, True), (4, True), (5, False), (8, False)):
        config = {"codec": "maxmin", "bits": bits}
        same = torch.equal(
            _payload_of(x, compress_saved(config, step=1)),
            _payload_of(x, compress_saved(config, step=2)),
        )
        assert same != stochastic, bits


def test_entries_round_each_in_its_own_way_while_older_graphs_live() -> None:
    x = normal(4096)
    weight = torch.ones(4096, requires_grad=True)
    context = compress_saved({"bits": 2})
    total = torch.zeros(())
    for _ in range(32):
        with context:
            total = total + (weight * x).sum() / 32
    (mean,) = torch.autograd.grad(total, weight)
    with context:
        (one,) = torch.autograd.grad((weight * x).sum(), weight)
    assert float((mean - x).norm()) < 0.3 * float((one - x).norm())


def test_a_resumed_run_rounds_as_one_that_was_never_stopped() -> None:
    x = normal(32, 64)

    def trained(steps: int, model: nn.Module, handle: Any) -> list[torch.Tensor]:
        for _ in range(steps):
            model.zero_grad()
            model(x).sum().backward()
        return gradients(model)

    model = make_model()
    wanted = trained(5, model, activations.compress(model, {"bits": 3}))
    first, second = make_model(), make_model()
    handle = activations.compress(first, {"bits": 3})
    trained(3, first, handle)
    resumed = activations.compress(second, {"bits": 3})
    resumed.load_state_dict(handle.state_dict())
    for a, b in zip(trained(2, second, resumed), wanted, strict=True):
        assert torch.equal(a, b)
    refused: tuple[Any, ...] = ({}, {"step": -1}, {"step": True}, {"step": 1, "x": 2}, None)
    for state in refused:
        with pytest.raises(ValueError, match="step"):
            resumed.load_state_dict(state)
