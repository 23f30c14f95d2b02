"""Randomized linear layers and VarianceEstimator of torch_cgx.compat.fewbit."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.activations.kept import kept, saved_by
from tests.activations.projection.cases import inputs
from torch_cgx import activations
from torch_cgx.compat import fewbit
from torch_cgx.compat.fewbit.functional.linear import projected_rows

# Section 1.1.5 of the facts on FewBit: n, ratio, dim, max, min.
ROWS = [
    ((10, 0.25, None, None, None), 2),
    ((10, 0.05, None, None, 3), 3),
    ((100, 0.5, 7, None, None), 7),
    ((100, 0.9, None, 20, None), 20),
    ((100, 0.9, None, 20, 30), 20),
    ((2, None, 64, None, None), 64),
    ((10, 0.5, 0, 0, 0), 5),
]


@pytest.mark.parametrize(("given", "rows"), ROWS)
def test_the_number_of_rows(given: tuple[Any, ...], rows: int) -> None:
    assert projected_rows(*given) == rows
    n, ratio, dim, most, least = given
    x, weight = torch.randn(n, 3), torch.randn(2, 3, requires_grad=True)
    _, saved = saved_by(fewbit.functional.linear_grp, x, weight, None, ratio, dim, most, least)
    assert saved[0].shape == (rows, 3)


def test_no_rows_are_an_error() -> None:
    layer = fewbit.LinearGRP(3, 2, proj_dim_ratio=0.05)
    with pytest.raises(ValueError, match="proj_dim_ratio=0.05 of 10 rows keeps none"):
        layer(torch.randn(10, 3))
    layer(torch.randn(20, 3)).sum().backward()
    assert layer(torch.randn(0, 3)).shape == (0, 2)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({}, ValueError, "proj_dim_ratio=None and proj_dim=None"),
        ({"proj_dim": 0}, ValueError, "proj_dim=0"),
        ({"proj_dim": 2, "proj_dim_min": -1}, ValueError, "proj_dim_min=-1"),
        ({"proj_dim": 2, "proj_dim_min": 3, "proj_dim_max": 2}, ValueError, "proj_dim_max=2 below"),
        ({"proj_dim_ratio": 0.5, "matmul": "normal"}, ValueError, "matmul='normal'"),
        ({"proj_dim_ratio": 0.5, "matmul": "dct"}, ValueError, "allowed: matmul='srht'"),
        ({"proj_dim_ratio": 0.5, "matmul": "dft"}, ValueError, "allowed: matmul='srht'"),
        ({"proj_dim_ratio": -0.5}, ValueError, "proj_dim_ratio=-0.5"),
        ({"proj_dim_ratio": math.nan}, ValueError, "proj_dim_ratio=nan"),
        ({"proj_dim_ratio": "0.5"}, TypeError, "proj_dim_ratio='0.5'"),
        ({"proj_dim": 2.0}, TypeError, "proj_dim=2.0"),
        ({"proj_dim": 2, "generator": 3}, TypeError, "generator is of type int"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        fewbit.RandomizedLinear(4, 4, **wrong)
    if "below" not in says:
        with pytest.raises(error, match=says):
            fewbit.functional.linear_randomized(torch.ones(4, 4), torch.ones(4, 4), **wrong)


@pytest.mark.parametrize("matmul", ["gaussian", "rademacher", "srht", "wta", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_only_the_weights_gradient_is_an_estimate(matmul: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = fewbit.LinearGRP(6, 4, dtype=dtype, proj_dim=30, matmul=matmul)
    # A view that is not contiguous, which FewBit refuses.
    x = torch.randn(6, 20, 3, dtype=dtype).permute(2, 1, 0).requires_grad_()
    dy = torch.randn(3, 20, 4, dtype=dtype)
    y = layer(x)
    assert torch.equal(y, F.linear(x, layer.weight, layer.bias))
    found = torch.autograd.grad(y, (x, layer.bias, layer.weight), dy)
    wanted = torch.autograd.grad(F.linear(x, layer.weight, layer.bias), (x, layer.bias), dy)
    torch.testing.assert_close(found[:2], wanted)
    assert found[2].shape == layer.weight.shape and found[2].dtype == dtype
    exact = (dy.flatten(0, 1).t() @ x.flatten(0, 1)).double()
    mean = torch.stack(
        [torch.autograd.grad(layer(x), layer.weight, dy)[0].double() for _ in range(300)]
    ).mean(0)
    assert abs(float((mean * exact).sum().detach() / exact.square().sum().detach()) - 1) < 0.15
    assert float(((found[2].double() - exact).norm() / exact.norm()).detach()) > 0.2


def test_v18_the_slope_over_2000_draws() -> None:
    torch.manual_seed(3)
    x, weight, _, dy = inputs()
    exact, total = dy.t() @ x, torch.zeros_like(weight)
    weight.requires_grad_()
    for _ in range(2000):
        y = fewbit.functional.linear_grp(x, weight, None, None, 32, matmul="rademacher")
        total += torch.autograd.grad(y, weight, dy)[0]
    assert abs(float((total / 2000 * exact).sum() / exact.square().sum()) - 1) < 0.03


def test_v15_bytes() -> None:
    layer = fewbit.LinearGRP(64, 32, proj_dim_ratio=0.1)
    x = torch.randn(128, 64)
    _, size = kept(lambda: layer(x), layer.parameters())
    assert size == 3072 + 8  # the key
    assert kept(lambda: nn.Linear(64, 32)(x))[1] >= 32768


def test_the_generator_repeats_projections() -> None:
    x, weight = torch.randn(40, 5), torch.randn(3, 5, requires_grad=True)

    def gradients(generator: torch.Generator | None) -> list[torch.Tensor]:
        layer = fewbit.LinearGRP(5, 3, proj_dim=8, generator=generator)
        return [torch.autograd.grad(layer(x).sum(), layer.weight)[0] for _ in range(2)]

    first, again = (gradients(torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])  # FewBit on a GPU: one projection for all steps
    state = torch.get_rng_state()
    fewbit.functional.linear_grp(
        x, weight, None, 0.5, generator=torch.Generator().manual_seed(1)
    ).sum().backward()
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(1)
    plain = gradients(None)
    torch.manual_seed(1)
    assert torch.equal(plain[0], gradients(None)[0]) and not torch.equal(plain[0], plain[1])


def test_the_order_of_the_functions_arguments() -> None:
    x, weight = torch.randn(100, 4), torch.randn(2, 4, requires_grad=True)
    arguments = (None, 0.9, None, 20, 3, "gaussian", torch.Generator().manual_seed(0))
    _, saved = saved_by(fewbit.functional.linear_grp, x, weight, *arguments)
    assert saved[0].shape == (20, 4)


def test_layers_are_modules_like_torchs() -> None:
    layer = fewbit.RandomizedLinear(4, 3, False, proj_dim_ratio=0.5, proj_dim_min=2)
    assert fewbit.RandomizedLinear is fewbit.LinearGRP and layer.bias is None
    assert repr(layer) == (
        "LinearGRP(in_features=4, out_features=3, bias=False, proj_dim_ratio=0.5, "
        "proj_dim_min=2, matmul='gaussian')"
    )
    assert copy.deepcopy(layer)(torch.ones(8, 4)).shape == (8, 3)
    nn.Linear(4, 3, False).load_state_dict(layer.state_dict())
    with torch.no_grad():
        assert layer(torch.ones(1, 4)).shape == (1, 3)  # would keep no row; nothing is kept


def test_linear_crs_samples_columns() -> None:
    torch.manual_seed(0)
    layer = fewbit.LinearCRS(12, 10)
    assert layer.proj_dim == 5 and layer.bias is not None
    assert repr(layer) == "LinearCRS(in_features=12, out_features=10, bias=True, proj_dim=5)"
    assert fewbit.LinearCRS(12, 10, False, proj_dim=3).bias is None
    x, dy = torch.randn(30, 12), torch.randn(30, 10)
    exact, total = dy.t() @ x, torch.zeros(10, 12)
    for _ in range(1000):
        (found,) = torch.autograd.grad(layer(x), layer.weight, dy)
        assert int((found != 0).any(0).sum()) == 5
        columns = found.abs().sum(0) > 0
        torch.testing.assert_close(found[:, columns], exact[:, columns] * 12 / 5)
        total += found
    assert abs(float((total / 1000 * exact).sum() / exact.square().sum()) - 1) < 0.06
    weight = torch.randn(10, 12, requires_grad=True)
    y = fewbit.functional.linear_crs(x, weight, None, 12)
    torch.testing.assert_close(torch.autograd.grad(y, weight, dy)[0], exact)
    with pytest.raises(ValueError, match="proj_dim=0"):
        fewbit.LinearCRS(4, 4, proj_dim=0)
    with pytest.raises(ValueError, match="nopairs=0"):
        fewbit.functional.linear_crs(x, weight, None, 0)


def test_caught_gradients() -> None:
    storage = fewbit.functional.GradientStorage()
    x, way = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    y = fewbit.functional.catch_gradients(x, storage)
    assert torch.equal(y, x) and storage.gradient is None
    (y * way).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, way)
    assert storage.gradient is not None and torch.equal(storage.gradient, way)
    storage.clear()
    assert storage.gradient is None and "None" in repr(storage)
    with pytest.raises(TypeError, match="list"):
        fewbit.functional.catch_gradients(x, [])  # type: ignore[arg-type]


def test_the_variance_estimator() -> None:
    """V14: correlation .74, 37 and 6.5 (FewBit keeps 37 twice)."""
    layer = fewbit.LinearGRP(2, 1, proj_dim=2)
    seen: list[tuple[Any, ...]] = []
    watch = fewbit.VarianceEstimator(layer, lambda *found: seen.append(found))
    assert np.isnan(watch.variance).all() and math.isnan(watch.correlation)
    x = torch.tensor([[1.0, 0], [0, 2]])
    (watch(x) * torch.tensor([[1.0], [3]])).sum().backward()
    assert layer.weight.grad is not None
    np.testing.assert_allclose(seen, [(0.74, 37, 6.5, 1)], rtol=1e-6)
    np.testing.assert_allclose((watch.correlation, *watch.variance), (0.74, 37, 6.5), rtol=1e-6)
    assert watch.last is not None and watch.last.expected == pytest.approx(43.5)
    watch(x).sum().backward()
    assert watch.step == 2 and list(watch.parameters()) == list(layer.parameters())
    with pytest.raises(TypeError, match="LinearGRP"):
        fewbit.VarianceEstimator(activations.Linear(2, 2))  # type: ignore[arg-type]


def test_a_row_is_enough_without_autograd() -> None:
    layer = fewbit.RandomizedLinear(8, 4, proj_dim_ratio=0.1)
    x = torch.randn(1, 8)
    with torch.no_grad():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    with pytest.raises(ValueError, match="proj_dim_ratio=0.1 of 1 rows keeps none"):
        layer(x)


def test_numbers_of_numpy() -> None:
    x = torch.randn(10, 8)
    count: Any = np.int64(3)
    part: Any = np.float32(0.3)
    wrong: Any = np.bool_(True)
    one = fewbit.RandomizedLinear(8, 4, proj_dim=count)
    two = fewbit.RandomizedLinear(8, 4, proj_dim_ratio=part)
    three = fewbit.LinearCRS(8, 4, proj_dim=count)
    for layer in (one, two, three):
        layer(x).sum().backward()
    assert one.rows_of(10) == two.rows_of(10) == 3 and type(one.rows_of(10)) is int
    with pytest.raises(TypeError, match="proj_dim="):
        fewbit.RandomizedLinear(8, 4, proj_dim=wrong)


def test_compile_with_dynamic_sizes_and_ratios() -> None:
    torch.compiler.reset()

    def call(layer: nn.Module, x: torch.Tensor) -> Any:
        return layer(x)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for n, ratio in ((10, 0.3), (20, 0.4), (30, 0.5)):
        layer = fewbit.RandomizedLinear(8, 4, proj_dim_ratio=ratio, matmul="rows")
        compiled(layer, torch.ones(n, 8)).sum().backward()
        assert layer.weight.grad is not None
        torch.testing.assert_close(layer.weight.grad, torch.full((4, 8), float(n)))


def test_one_output_has_one_column() -> None:
    assert fewbit.LinearCRS(8, 1).proj_dim == 1 and fewbit.LinearCRS(8, 6).proj_dim == 3
