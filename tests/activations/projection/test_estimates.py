"""Statistics of the gradient of the weight: its mean, its variance, and what is random."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.activations.kept import saved_by
from tests.activations.projection.cases import EVERY, estimates, inputs, slope, variance
from torch_cgx._hadamard import transform
from torch_cgx.activations.functional import linear
from torch_cgx.activations.projection import function, sampling, sketch


@pytest.mark.parametrize(("method", "by"), EVERY)
def test_the_slope_of_2000_draws_is_1(method: str, by: str) -> None:
    """V18: within 1 +- .03. The tolerance is five standard errors of what was measured, too."""
    torch.manual_seed(3)
    x, weight, _, dy = inputs()
    exact = dy.t() @ x
    found = estimates(x, weight, dy, 2000, keep=0.5, method=method, by=by)
    assert abs(slope(found, exact) - 1) < 0.03
    along = (found * exact).sum((1, 2)) / exact.square().sum()
    assert abs(float(along.mean()) - 1) < 5 * float(along.std()) / 2000**0.5
    # Not a constant: each draw differs from the exact gradient and from the one before.
    assert variance(found, exact) > 0.2
    assert not torch.equal(found[0], found[1])


def test_v13_a_given_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    dy = torch.tensor([[1.0], [0], [-1], [2]])
    weight = torch.zeros(1, 2, requires_grad=True)
    kept: list[torch.Tensor] = []

    def gradient(signs: list[list[float]]) -> torch.Tensor:
        drawn = torch.tensor(signs)
        monkeypatch.setattr(sketch, "_blocks", lambda *given: iter([(0, drawn * given[-1])]))
        y, saved = saved_by(linear, x, weight, method="rademacher", rows=len(signs))
        kept.append(saved[0])
        return torch.autograd.grad(y, weight, dy)[0]

    found = gradient([[1, -1, 1, 1], [1, 1, -1, 1]])
    torch.testing.assert_close(found, torch.tensor([[22.0, 28.0]]))
    torch.testing.assert_close(kept[0] * 2**0.5, torch.tensor([[10.0, 12.0], [6.0, 8.0]]))
    every = [gradient([list(signs)]) for signs in itertools.product((-1.0, 1.0), repeat=4)]
    torch.testing.assert_close(torch.stack(every).mean(0), torch.tensor([[10.0, 12.0]]))


@pytest.mark.parametrize("by", ["batch", "features"])
@pytest.mark.parametrize("method", ["gaussian", "rademacher"])
def test_projections_are_plain_products_with_one_matrix(method: Any, by: Any) -> None:
    x, weight, _, dy = inputs()
    key = torch.tensor(99)
    size = x.shape[0] if by == "batch" else x.shape[1]
    identity = torch.eye(size, dtype=torch.float64)
    s = torch.ops.torch_cgx.projection_project(identity, key, 20, method).numpy()
    assert abs(float((s.T @ s).trace()) / size - 1) < 0.2
    if method == "rademacher":
        assert np.allclose(np.abs(s), 20**-0.5)
    weight.requires_grad_()
    y = linear(x, weight, rows=20, method=method, by=by, _key=key)
    (found,) = torch.autograd.grad(y, weight, dy)
    a, b = x.numpy(), dy.numpy()
    expected = (s @ b).T @ (s @ a) if by == "batch" else b.T @ (a @ s.T) @ s
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 64, 100, 129])
def test_srht_has_orthogonal_rows_of_equal_numbers(n: int) -> None:
    m = 1 << (n - 1).bit_length()
    rows = max(1, n // 2)
    identity = torch.eye(n, dtype=torch.float64)
    s = torch.ops.torch_cgx.projection_project(identity, torch.tensor(5), rows, "srht").numpy()
    np.testing.assert_allclose(np.abs(s), rows**-0.5, rtol=1e-12)
    if n == m:
        np.testing.assert_allclose(s @ s.T, np.eye(rows) * m / rows, atol=1e-12)
    spread = torch.ops.torch_cgx.projection_back(
        torch.eye(rows, dtype=torch.float64), torch.tensor(5), n, "srht"
    )
    np.testing.assert_allclose(spread.numpy(), s, rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 64, 128, 256, 32768])
def test_the_hadamard_transform_is_scipys(rows: int) -> None:
    hadamard: Any = pytest.importorskip("scipy.linalg").hadamard
    x = torch.randn(rows, 3, dtype=torch.float64)
    if rows <= 256:
        np.testing.assert_allclose(transform(x), hadamard(rows) @ x.numpy(), atol=1e-9)
    torch.testing.assert_close(transform(transform(x)), rows * x)


def test_blocks_do_not_change_what_a_projection_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of S, with a last one that is smaller."""
    monkeypatch.setattr(sketch, "_BLOCK", 64)
    x, key = torch.randn(100, 7, dtype=torch.float64), torch.tensor(1)
    for method in ("gaussian", "rademacher", "srht"):
        s = torch.ops.torch_cgx.projection_project(
            torch.eye(100, dtype=torch.float64), key, 9, method
        )
        found = torch.ops.torch_cgx.projection_project(x, key, 9, method)
        torch.testing.assert_close(found, s @ x)
        back = torch.ops.torch_cgx.projection_back(found.t(), key, 100, method)
        torch.testing.assert_close(back, found.t() @ s)


def _reference(norms: np.ndarray, keep: int) -> np.ndarray:
    """min(1, c norm) with the sum `keep`, by bisection for c."""
    low, high = 0.0, 1e18
    for _ in range(400):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * norms).sum() < keep else (low, c)
    return np.minimum(1, high * norms)


@pytest.mark.parametrize("keep", [1, 2, 9, 50, 99, 100])
@pytest.mark.parametrize("power", [0.0, 1.0, 8.0])
def test_wta_keeps_the_largest_for_certain(keep: int, power: float) -> None:
    norms = np.random.default_rng(1).random(100) ** power + 1e-3
    found = sampling.inclusion(torch.from_numpy(norms), keep).numpy()
    np.testing.assert_allclose(found.sum(), keep, rtol=1e-9)
    np.testing.assert_allclose(found, _reference(norms, keep), rtol=1e-4, atol=1e-6)
    x = torch.from_numpy(norms)[:, None]
    hits = np.zeros(100)
    generator = torch.Generator().manual_seed(1)
    for _ in range(500):
        index, factor = sampling.choose(x, generator, keep, "wta")
        assert len(set(index.tolist())) == keep  # none twice
        np.testing.assert_allclose(factor, 1 / found[index], rtol=1e-5)
        hits[index] += 1
    certain = found > 1 - 1e-9
    assert (hits[certain] == 500).all()
    error = np.abs(hits / 500 - found) / np.sqrt(np.maximum(found * (1 - found), 0.05) / 500)
    assert error.max() < 4.5


@pytest.mark.parametrize("fill", [0.0, float("nan"), float("inf"), 1e-38])
def test_rows_without_a_norm(fill: float) -> None:
    x = torch.full((40, 8), fill)
    index, factor = sampling.choose(x, torch.Generator().manual_seed(1), 7, "wta")
    assert len(set(index.tolist())) == 7 and bool(torch.isfinite(factor).all())
    torch.testing.assert_close(factor, torch.full((7,), 40 / 7))


def test_a_nan_reaches_the_gradient() -> None:
    torch.manual_seed(0)
    x = torch.randn(100, 8)
    x[37, 3] = float("nan")
    layer = nn.Linear(8, 4)
    for _ in range(20):
        y = linear(x, layer.weight, layer.bias, keep=0.05)
        (found,) = torch.autograd.grad(y.nan_to_num().sum(), layer.weight)
        assert bool(found[:, 3].isnan().all()) and not bool(found[:, :3].isnan().any())


def test_wta_has_less_variance_than_uniform_rows_and_projections() -> None:
    """On activations and gradients of a small net that has trained for some steps."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(32, 32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.LayerNorm(32)
    )
    head = nn.Linear(32, 32)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], 3e-3)
    recorded: dict[str, torch.Tensor] = {}
    tokens = (torch.rand(256) ** 3 * 32).long()  # some are frequent
    for _ in range(60):
        hidden = net[2](net[1](net[0](tokens)))
        y = net[3](hidden)
        y.retain_grad()
        loss = nn.functional.cross_entropy(head(net[4](y)), (7 * tokens + 3) % 32)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert y.grad is not None
        recorded = {"x": hidden.detach(), "dy": y.grad}
    x, dy = recorded["x"].double(), recorded["dy"].double()
    exact = dy.t() @ x
    weight = torch.zeros(32, 128, dtype=torch.float64)
    found = {
        method: variance(estimates(x, weight, dy, 2000, keep=0.2, method=method), exact)
        for method in ("wta", "rows", "gaussian")
    }
    assert found["wta"] < found["rows"] and found["wta"] <= found["gaussian"], found


def test_what_all_rows_have_in_common_makes_no_error() -> None:
    """Of "wta" by batch: the mean is kept, and differences from it are sampled."""
    torch.manual_seed(2)
    x, weight, _, dy = inputs()
    exact = dy.t() @ (x + 50)
    found = estimates(x + 50, weight, dy, 200, keep=0.5)
    plain = variance(estimates(x, weight, dy, 200, keep=0.5), dy.t() @ x)
    scale = float((dy.t() @ x).square().sum() / exact.square().sum())
    assert variance(found, exact) < 1.3 * scale * plain
    equal = torch.ones(64, 24, dtype=torch.float64) * x[:1]
    torch.testing.assert_close(estimates(equal, weight, dy, 1, keep=0.1)[0], dy.t() @ equal)


def test_keys_replay_and_ranks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _, dy = inputs()
    torch.manual_seed(1)
    first = estimates(x, weight, dy, 3, keep=0.3)
    state = torch.get_rng_state()
    after = estimates(x, weight, dy, 1, keep=0.3)
    torch.set_rng_state(state)
    assert torch.equal(after, estimates(x, weight, dy, 1, keep=0.3))
    torch.manual_seed(1)
    assert torch.equal(first, estimates(x, weight, dy, 3, keep=0.3))
    monkeypatch.setattr(function._operators, "rank_of_process", lambda: 1)
    torch.manual_seed(1)
    assert not torch.equal(first, estimates(x, weight, dy, 3, keep=0.3))
