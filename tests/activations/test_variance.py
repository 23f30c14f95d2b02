"""Variances of estimated gradients: formulas against draws, and the estimator of a layer."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.activations.projection.cases import EVERY, estimates, inputs
from torch_cgx import activations
from torch_cgx.activations.projection.variance import Variance, VarianceEstimator, variance


def test_v14() -> None:
    x, y = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[1.0], [3]])
    found = variance(x, y, 2)
    assert found.correlation == pytest.approx(0.74)
    assert found.sgd == pytest.approx(37)
    assert found.projected == pytest.approx(6.5)
    assert found.expected == pytest.approx((50 + 37) / 2)
    assert variance(x, y, 4).projected == pytest.approx(3.25)


@pytest.mark.parametrize("method", ["gaussian", "rademacher"])
def test_formulas_against_2000_projections_by_numpy(method: Any) -> None:
    random = np.random.default_rng(5)
    # Rows that are alike, so that |X^T Y|^2 counts, and few, so that the sum of squares does.
    x, y = random.standard_normal((6, 5)) + 1.5, random.standard_normal((6, 3)) + 0.8
    k, errors = 4, []
    for _ in range(2000):
        s = random.standard_normal((k, 6))
        s = s if method == "gaussian" else np.sign(s)
        errors.append((((s @ y).T @ (s @ x) / k - y.T @ x) ** 2).sum())
    found = variance(torch.from_numpy(x), torch.from_numpy(y), k, method)
    assert found.expected == pytest.approx(np.mean(errors), rel=0.05)
    other: Any = "rademacher" if method == "gaussian" else "gaussian"
    wrong = variance(torch.from_numpy(x), torch.from_numpy(y), k, other)
    assert abs(wrong.expected / np.mean(errors) - 1) > 0.1  # the test can tell them apart


@pytest.mark.parametrize(("method", "by"), EVERY)
def test_expected_is_the_error_of_the_layer(method: Any, by: Any) -> None:
    torch.manual_seed(2)
    x, weight, _, dy = inputs(rows=22, width=18, out=4)
    x += 0.5
    exact = dy.t() @ x
    draws = estimates(x, weight, dy, 1500, rows=7, method=method, by=by)
    errors = (draws - exact).square().sum((1, 2))
    found = variance(x, dy, 7, method, by).expected
    # Of "wta" it is an estimate.
    within = 0.25 if method == "wta" else 5 * float(errors.std()) / 1500**0.5 / float(errors.mean())
    assert within < 0.26
    assert found == pytest.approx(float(errors.mean()), rel=within)


@pytest.mark.parametrize("method", ["rows", "wta", "srht"])
@pytest.mark.parametrize("by", ["batch", "features"])
def test_all_rows_are_exact(method: Any, by: Any) -> None:
    x, _, _, dy = inputs()
    assert variance(x, dy, 64, method, by).expected == 0
    assert variance(x, dy, 20, method, by).expected > 0
    assert variance(x[:1], dy[:1], 1, method, "batch").expected == 0
    assert math.isnan(variance(x[:1], dy[:1], 1, method).sgd)


def test_shapes_and_dtypes() -> None:
    x, _, _, dy = inputs()
    flat = variance(x, dy, 5)
    assert variance(x.view(4, 16, -1), dy.view(4, 16, -1), 5) == flat
    half = variance(x.bfloat16(), dy.bfloat16(), 5)
    np.testing.assert_allclose(half, flat, rtol=0.02)
    assert math.isnan(variance(x * 0, dy, 5).correlation)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"rows": 0}, ValueError, "rows=0"),
        ({"method": "dct"}, ValueError, "dct"),
        ({"by": "rows"}, ValueError, "by='rows'"),
        ({"input": torch.zeros(3, 2)}, ValueError, r"\(3, 2\)"),
        ({"input": torch.zeros(4, 0)}, ValueError, r"\(4, 0\)"),
        ({"grad": torch.zeros(4, 2).long()}, TypeError, "int64"),
        ({"grad": None}, TypeError, "NoneType"),
    ],
)
def test_errors(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments = {"input": torch.ones(4, 3), "grad": torch.ones(4, 2), "rows": 2, **wrong}
    with pytest.raises(error, match=says):
        variance(**arguments)


def _layer(**options: Any) -> activations.Linear:
    torch.manual_seed(0)
    return activations.Linear(6, 4, **{"keep": 0.5, "method": "gaussian", **options})


def _plain(x: torch.Tensor, y: torch.Tensor, k: int) -> tuple[float, float, float]:
    """By loops of NumPy."""
    a, b = x.detach().double().numpy(), y.detach().double().numpy()
    n = len(a)
    product = np.stack([np.outer(a[i], b[i]) for i in range(n)]).sum(0)
    d = sum((a[i] ** 2).sum() * (b[i] ** 2).sum() for i in range(n))
    both, c = (a**2).sum() * (b**2).sum(), (product**2).sum()
    return c / both, n / (n - 1) * d - c / (n - 1), (both - c) / k


def test_the_estimator_calls_back_in_each_backward_pass() -> None:
    layer, seen = _layer(), []
    batches = [torch.randn(10, 6), torch.randn(8, 6), torch.randn(6, 6)]
    ways = [torch.randn(len(batch), 4) for batch in batches]
    with VarianceEstimator(layer, lambda *found: seen.append(found)) as watch:
        assert watch.last is None and watch.step == 0
        (layer(batches[0]) * ways[0]).sum().backward()
        ((layer(batches[1]) * ways[1]).sum() + (layer(batches[2]) * ways[2]).sum()).backward()
        with torch.no_grad():
            layer(batches[0])
        last = watch.last
    (layer(batches[0]) * ways[0]).sum().backward()  # closed
    assert watch.step == 3 and isinstance(last, Variance) and watch.last is last
    by_step = {found[3]: found[:3] for found in seen}
    assert sorted(by_step) == [1, 2, 3]
    expected = [_plain(x, y, len(x) // 2) for x, y in zip(batches, ways, strict=True)]
    np.testing.assert_allclose(by_step[1], expected[0], rtol=1e-4)
    np.testing.assert_allclose(sorted([by_step[2], by_step[3]]), sorted(expected[1:]), rtol=1e-4)
    assert last[:3] == by_step[3] and last.sgd != last.projected


def test_the_estimator_changes_no_gradient() -> None:
    x, found = torch.randn(10, 6), []
    for watched in (False, True):
        layer = _layer()
        watch = VarianceEstimator(layer) if watched else None
        torch.manual_seed(1)
        y = layer(input=x)
        torch.relu_(y)
        y.square().sum().backward()
        found.append((y.detach(), layer.weight.grad, layer.bias.grad))
        assert watch is None or watch.step == 1
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_input_is_freed_by_backward_and_with_the_graph() -> None:
    layer = _layer()
    with VarianceEstimator(layer) as watch:
        x = torch.randn(10, 6)
        gone = weakref.ref(x.untyped_storage())
        y = layer(x)
        del x
        gc.collect()
        assert gone() is not None
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        gc.collect()
        assert watch.step == 2 and gone() is None  # while the result is there
        x = torch.randn(10, 6)
        gone = weakref.ref(x.untyped_storage())
        y = layer(x)
        del x, y
        gc.collect()
        assert gone() is None and watch.step == 2


def test_exact_layers_and_sampling_layers() -> None:
    x = torch.randn(12, 6)
    with VarianceEstimator(_layer(keep=1.0)) as watch:
        watch.layer(x).square().sum().backward()
        assert watch.last is not None and watch.last.expected == 0
    layer = _layer(method="rows", by="features", keep=0.5)
    y = torch.randn(12, 4)
    with VarianceEstimator(layer) as watch:
        (layer(x) * y).sum().backward()
        assert watch.last == variance(x, y, 3, "rows", "features")
    layer.weight.requires_grad_(False)
    with VarianceEstimator(layer) as watch:
        layer(x.requires_grad_()).sum().backward()
        assert watch.step == 0


def test_what_the_estimator_refuses() -> None:
    wrong: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="activations.Linear"):
        VarianceEstimator(wrong)
    no_function: Any = 3
    with pytest.raises(TypeError, match="callback=3"):
        VarianceEstimator(_layer(), no_function)
    layer, x = _layer(), torch.randn(10, 6)
    with VarianceEstimator(layer):
        y = layer(x)
        x.zero_()
        with pytest.raises(RuntimeError, match="changed in place"):
            y.sum().backward()


def test_numbers_of_numpy_and_none() -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 3)
    count: Any = np.int64(3)
    assert variance(x, y, count) == variance(x, y, 3)
    assert all(type(number) is float for number in variance(x, y, count))
    nothing: Any = None
    with pytest.raises(TypeError, match="rows=None"):
        variance(x, y, nothing)


def test_the_estimator_takes_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(10, 6)
    with VarianceEstimator(_layer()) as watch:
        watch.layer(x).sum().backward()
        assert watch.step == 1
