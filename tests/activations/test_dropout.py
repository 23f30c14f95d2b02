"""Dropout: statistics, equal masks in both directions, replay, and what is kept."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.activations.kept import kept, same
from torch_cgx.activations.layers.dropout import Dropout, dropout

KEEPS: tuple[Any, ...] = ("replay", "bits")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_zeros_come_with_probability_p_and_the_mean_stays(keep: Any, p: float) -> None:
    torch.manual_seed(1)
    n = 200_000
    y = dropout(torch.ones(n), p, keep=keep)
    deviation = (p * (1 - p) / n) ** 0.5
    zeros = y == 0
    assert abs(float(zeros.float().mean()) - p) < 5 * deviation
    assert abs(float(y.mean()) - 1) < 5 * deviation / (1 - p)
    torch.testing.assert_close(y[~zeros], torch.full_like(y[~zeros], 1 / (1 - p)))
    # Neighbours are independent: both are zero with probability p^2.
    both = float((zeros[1:] & zeros[:-1]).float().mean())
    assert abs(both - p * p) < 6 * (p * p * (1 - p * p) / n) ** 0.5 + 2 * deviation


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_has_the_mask_of_forward(keep: Any, dtype: torch.dtype) -> None:
    x = ones(5, 7, 11, dtype=dtype)
    y = dropout(x.transpose(0, 2), 0.3, keep=keep)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.dtype == dtype and y.shape == (11, 7, 5)
    assert same(gradient, y.detach().transpose(0, 2)) and 0 < int((y == 0).sum()) < y.numel()


def test_bits_are_torchs_mask() -> None:
    x = torch.randn(1000, requires_grad=True)
    torch.manual_seed(3)
    y = dropout(x, 0.25, keep="bits")
    torch.manual_seed(3)
    expected = F.dropout(x, 0.25)
    torch.testing.assert_close(y, expected)
    assert torch.equal(y == 0, expected == 0)


@pytest.mark.parametrize(("keep", "expected"), [("replay", 0), ("bits", 125)])
def test_kept_bytes(keep: Any, expected: int) -> None:
    x = ones(1000)
    assert kept(lambda: dropout(x, 0.1, keep=keep))[1] == expected
    assert kept(lambda: F.dropout(x, 0.1))[1] >= 1000
    with torch.no_grad():
        assert kept(lambda: dropout(x, 0.1, keep=keep))[1] == 0


@pytest.mark.parametrize("keep", KEEPS)
def test_manual_seed_and_checkpoint_replay(keep: Any) -> None:
    module = Dropout(0.5, keep=keep)
    x = torch.randn(64, requires_grad=True)
    found = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        found.append((module(x), module(x)))
    assert same(found[0][0], found[1][0]) and same(found[0][1], found[1][1])
    assert not torch.equal(found[0][0], found[0][1])
    assert not torch.equal(found[0][0], found[2][0])
    torch.manual_seed(5)
    y = checkpoint(lambda x: module(x).sin(), x, use_reentrant=False)
    (again,) = torch.autograd.grad(y.sum(), x)
    (eager,) = torch.autograd.grad(found[0][0].sin().sum(), x)
    assert same(again, eager)


@pytest.mark.parametrize("keep", KEEPS)
def test_ends_of_p_and_modes(keep: Any) -> None:
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    assert torch.equal(dropout(x, 0.0, keep=keep), x)
    assert torch.equal(dropout(x, 1.0, training=False, keep=keep), x)
    y = dropout(x, 1.0, keep=keep)
    assert torch.equal(y, torch.zeros(3))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(3))
    module = Dropout(0.9, keep=keep).eval()
    assert torch.equal(module(x), x)
    assert dropout(torch.zeros(0, 3), 0.5, keep=keep).shape == (0, 3)
    single = dropout(torch.tensor(2.0), 0.5, keep=keep)
    assert float(single) in (0.0, 4.0)


@pytest.mark.parametrize("keep", KEEPS)
def test_in_place(keep: Any) -> None:
    x = ones(100)
    middle = x * 2
    y = Dropout(0.5, inplace=True, keep=keep)(middle)
    assert y is middle or y.data_ptr() == middle.data_ptr()
    assert set(y.detach().unique().tolist()) == {0.0, 4.0}
    y.sum().backward()
    assert x.grad is not None and same(x.grad, y.detach())
    with pytest.raises(RuntimeError, match="leaf Variable"):
        Dropout(0.5, inplace=True, keep=keep)(x)


@pytest.mark.parametrize("keep", KEEPS)
def test_second_derivatives(keep: Any) -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 50, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.5, keep=keep)
    mask = y.detach() / x.detach()
    (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * mask**3 * x.detach())


@pytest.mark.parametrize("keep", KEEPS)
def test_compiles_into_one_graph(keep: Any) -> None:
    torch.compiler.reset()
    compiled = torch.compile(Dropout(0.5, keep=keep), fullgraph=True, backend="aot_eager")
    x = ones(400)
    y, size = kept(lambda: compiled(x))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert same(gradient, y.detach()) and set(y.detach().unique().tolist()) == {0.0, 2.0}
    assert size == 50
    inplace = Dropout(0.5, inplace=True, keep=keep)
    compiled = torch.compile(lambda x: inplace(x * 2), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert same(gradient, y.detach()) and set(y.detach().unique().tolist()) == {0.0, 4.0}
    torch.compiler.reset()


def test_module_is_torchs() -> None:
    module = Dropout(0.2)
    assert isinstance(module, nn.Dropout) and not module.state_dict()
    assert repr(module) == "Dropout(p=0.2, inplace=False, keep='replay')"
    assert copy.deepcopy(module).keep == "replay"


def test_bad_arguments() -> None:
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="p="):
            dropout(torch.ones(3), p)
    with pytest.raises(ValueError, match="dropout probability"):
        Dropout(2.0)
    with pytest.raises(ValueError, match="keep='mask'; allowed"):
        Dropout(0.1, keep="mask")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int64"):
        dropout(torch.ones(3, dtype=torch.int64), 0.5)


def test_the_layout_is_kept() -> None:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    for keep in ("replay", "bits"):
        y = dropout(x, 0.5, keep=keep)
        assert y.is_contiguous(memory_format=torch.channels_last)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, (y != 0).float() * 2)
