"""Faults that linear layers that keep less once had, each with the case that showed it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.activations.projection.cases import EVERY
from torch_cgx import activations
from torch_cgx.activations.functional import linear
from torch_cgx.activations.projection import function


def held() -> int:
    """Bytes of samples that wait for other layers of their tensors."""
    gc.collect()
    found = [one.found() for one in function._samples.values()]
    return sum(pair[0].nbytes for pair in found if pair is not None)


def test_a_row_is_enough_without_autograd() -> None:
    one = activations.Linear(8, 4)
    x = torch.randn(1, 8)
    for mode in (True, False):
        one.train(mode)
        with torch.no_grad():
            assert torch.equal(one(x), F.linear(x, one.weight, one.bias))
        with torch.inference_mode():
            one(x)
    with pytest.raises(ValueError, match="keep=0.2 of 1 rows keeps none"):
        one(x)


def test_exact_layers_draw_no_numbers() -> None:
    before = torch.get_rng_state()
    x = torch.ones(5, 8)
    for options in ({"keep": 1}, {"rows": 5}, {"rows": 8, "by": "features", "method": "srht"}):
        linear(x, torch.ones(4, 8, requires_grad=True), **options)  # type: ignore[arg-type]
    assert torch.equal(before, torch.get_rng_state())


def test_no_outputs() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    linear(x, torch.ones(0, 8, requires_grad=True), keep=0.5).sum().backward()
    assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize(("method", "by"), EVERY)
def test_backward_under_autocast(method: Any, by: Any) -> None:
    """torch's own linear allows it, too."""
    x = torch.randn(10, 8, requires_grad=True)
    weight = torch.randn(4, 8, requires_grad=True)
    dy = torch.randn(10, 4)
    found = []
    for inside in (False, True):
        torch.manual_seed(1)
        y = linear(x, weight, keep=0.5, method=method, by=by)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            found.append(torch.autograd.grad(y, (x, weight), dy))
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("method", ["gaussian", "rademacher", "srht"])
def test_autocast_does_not_reach_the_projection(method: Any) -> None:
    """A float16 sample is summed in float32: autocast to bfloat16 would round what is added."""
    x, key = torch.randn(64, 5), torch.tensor(4)
    plain = torch.ops.torch_cgx.projection_project(x, key, 9, method)
    with torch.autocast("cpu", torch.bfloat16):
        again = torch.ops.torch_cgx.projection_project(x, key, 9, method)
    assert torch.equal(plain, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 12, 50])
def test_16_bits_do_not_scale_a_projection(dtype: torch.dtype, rows: int) -> None:
    """1 / sqrt(rows) rounded to bfloat16 made all estimates of 3 rows 0.27 % too large. With one
    row and random signs the estimate has rounding errors only, and their mean is zero."""
    generator = torch.Generator().manual_seed(5)
    x, dy = torch.randn(1, 2000, generator=generator), torch.randn(1, 100, generator=generator)
    x, dy = x.to(dtype), dy.to(dtype)
    weight = torch.zeros(100, 2000, dtype=dtype, requires_grad=True)
    y = linear(x, weight, rows=rows, method="rademacher")
    (found,) = torch.autograd.grad(y, weight, dy)
    exact = np.outer(dy.double().numpy(), x.double().numpy())
    slope = float((found.double().numpy() * exact).sum() / (exact**2).sum())
    assert abs(slope - 1) < (1e-4 if dtype == torch.float16 else 6e-4)


@pytest.mark.parametrize("method", ["wta", "rows"])
@pytest.mark.parametrize("by", ["batch", "features"])
def test_float16_holds_large_values_of_few_rows(method: Any, by: Any) -> None:
    """4000 times 1 / p = 20 is more than float16 holds, while the gradient is small."""
    torch.manual_seed(0)
    x = (torch.randn(100, 100).sign() * 4000).half()
    dy = torch.full((100, 4), 1e-3, dtype=torch.float16)
    weight = torch.zeros(4, 100, dtype=torch.float16, requires_grad=True)
    (found,) = torch.autograd.grad(linear(x, weight, keep=0.05, method=method, by=by), weight, dy)
    assert bool(found.isfinite().all())
    # All have the norm and so p = 1 / 20: five rows, or the five columns.
    grain = 20 * 4000 * 1e-3
    if method == "wta" and by == "batch":
        exact = dy.double().t() @ x.double()  # up to the sample of differences from the mean
        assert float((found.double() - exact).abs().max()) <= 100 * grain
    elif by == "batch":
        expected = (found / grain).round() * grain
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.0)
        assert float(found.abs().max()) <= 5 * grain * 1.01
    else:
        assert int((found != 0).any(0).sum()) <= 5
        chosen = (found != 0).any(0)
        exact = dy.t().double() @ x.double()
        torch.testing.assert_close(
            found.double()[:, chosen], 20 * exact[:, chosen], rtol=0.01, atol=0.0
        )


def test_numbers_of_numpy() -> None:
    count: Any = np.int64(3)
    one = activations.Linear(8, 4, keep=np.float32(0.5))  # type: ignore[arg-type]
    assert type(one.keep) is float and one.keep == 0.5
    assert type(activations.Linear(8, 4, rows=count).rows) is int
    net = nn.Sequential(nn.Linear(8, 4))
    activations.convert(net, linear=np.float32(0.5))  # type: ignore[arg-type]
    for wrong in (np.bool_(True), True, torch.tensor(0.5), 1j):
        with pytest.raises(TypeError, match="keep="):
            activations.Linear(8, 4, keep=wrong)  # type: ignore[arg-type]


def test_inference_tensors_and_changed_weights() -> None:
    """Neither is a matter of a layer whose input needs no gradient."""
    with torch.inference_mode():
        x = torch.randn(10, 8)
    weight = torch.randn(4, 8, requires_grad=True)
    y = linear(x, weight, keep=0.5)
    y.sum().backward(retain_graph=True)
    with torch.no_grad():
        weight.mul_(2)
    y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_hold_no_samples(reentrant: bool) -> None:
    torch.manual_seed(0)
    blocks = [activations.Linear(64, 64, keep=0.5) for _ in range(6)]
    hidden = torch.randn(100, 64, requires_grad=True) * 1
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=reentrant)
    assert held() <= 51 * 64 * 4  # of the latest tensor; 6 times as much before
    hidden.sum().backward()
    assert held() == 0


def test_nothing_is_held_after_backward() -> None:
    one = activations.Linear(64, 64, keep=0.5)
    hidden = torch.randn(100, 64, requires_grad=True) * 1  # somebody keeps it
    one(hidden).sum().backward()
    assert held() == 0


def test_layers_share_with_others_in_between() -> None:
    first = nn.Linear(8, 8)
    a, b, c = (activations.Linear(8, 8, keep=0.5) for _ in range(3))
    x, other = (first(torch.randn(50, 8)) for _ in range(2))
    y = a(x)
    z = c(other)
    gc.collect()
    found = torch.autograd.grad(y.sum() + b(x).sum(), [a.weight, b.weight])
    assert torch.equal(*found)
    del z


def _compiled(dynamic: bool | None = None) -> Any:
    torch.compiler.reset()

    def call(module: nn.Module, x: Tensor) -> Tensor:
        return module(x)  # type: ignore[no-any-return]

    return torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)


@pytest.mark.parametrize("by", ["batch", "features"])
def test_compile_with_dynamic_sizes(by: Any) -> None:
    """torch.compile cannot make a size of a float that it takes for dynamic."""
    one = activations.Linear(20, 4, keep=0.3, by=by, method="rows")
    call = _compiled(dynamic=True)
    for n in (10, 20, 30):
        x = torch.ones(n, 20, requires_grad=True)
        call(one, x).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, one.weight.sum(0).expand(n, 20))
    # All rows alike, so what is kept does not matter: the number and the factor do.
    assert one.weight.grad is not None
    if by == "batch":
        torch.testing.assert_close(one.weight.grad, torch.full((4, 20), 60.0))


def test_compile_of_layers_with_different_keeps() -> None:
    """From the second on, torch.compile takes keep for dynamic."""
    call = _compiled()
    for keep in (0.2, 0.3, 0.5):
        one = activations.Linear(8, 4, keep=keep, method="rows")
        call(one, torch.ones(20, 8)).sum().backward()
        assert one.weight.grad is not None
        torch.testing.assert_close(one.weight.grad, torch.full((4, 8), 20.0))


@pytest.mark.parametrize("keep", [0.29, 0.07, 0.57, 1 / 3, 0.1, 0.7])
def test_parts_of_a_row_are_not_lost_to_rounding(keep: float) -> None:
    settings = function.checked(keep, "wta", "batch", None)
    numerator = round(keep * 100) if abs(keep * 100 - round(keep * 100)) < 1e-9 else None
    for n in (100, 300, 1000):
        expected = numerator * n // 100 if numerator is not None else n // 3
        assert function.count_of(torch.empty(n, 1), settings) == expected


def test_convert_leaves_layers_that_it_cannot_replace() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64))
    changed = activations.convert(net, linear=0.5)
    assert [row.name for row in changed.replaced] == ["1"]
    reasons = {row.name: row.reason for row in changed.left}
    assert "not made yet" in reasons["0"] and reasons["2"] == "its weight is torch.complex64"
    assert net[:2](torch.randn(10, 6)).shape == (10, 4)


def test_patterns() -> None:
    one = nn.Linear(4, 4)
    net = nn.Sequential(one, nn.ReLU(), one)
    changed = activations.convert(net, linear=0.5, pattern="^2$")  # its second name
    assert [row.name for row in changed.replaced] == ["0", "2"] and net[0] is net[2]
    for wrong in (b"0", 3):
        with pytest.raises(TypeError, match="pattern="):
            activations.convert(nn.Sequential(one), linear=0.5, pattern=wrong)  # type: ignore[arg-type]


def test_shapes_without_columns() -> None:
    weight = torch.ones(4, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="at least 1D"):  # torch's own
        linear(torch.tensor(1.0), weight)
    with pytest.raises(ValueError, match=r"weight has the shape \(8,\); allowed: \[out, in\]"):
        linear(torch.ones(10, 8), weight[0])


def test_new_data_of_a_tensor_get_a_new_sample() -> None:
    """Assigning `data` changes no version."""
    a, b = (activations.Linear(8, 4, rows=5, method="rows") for _ in range(2))
    hidden = nn.Linear(8, 8)(torch.ones(20, 8))
    first = a(hidden)
    hidden.data = torch.full((20, 8), 3.0)
    (found,) = torch.autograd.grad(b(hidden).sum(), b.weight)
    torch.testing.assert_close(found, torch.full((4, 8), 60.0))
    del first


@pytest.mark.parametrize(("method", "by"), EVERY)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_deterministic_algorithms(method: Any, by: Any, device: str) -> None:
    """On a GPU torch refuses running sums of floats then."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    x, weight = torch.randn(20, 8, device=device), torch.ones(4, 8, device=device)
    found = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            torch.manual_seed(1)
            y = linear(x, weight.requires_grad_(), keep=0.5, method=method, by=by)
            found.append(torch.autograd.grad(y.sum(), weight)[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*found)
