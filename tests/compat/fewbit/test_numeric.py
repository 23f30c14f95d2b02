"""fewbit.fft against the definition and SciPy, fewbit.approx against known optima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torch_cgx import activations
from torch_cgx.compat.fewbit import approx, fft

NORMS = ("backward", "ortho", "forward")


def _matrix(type: int, n: int, norm: str) -> np.ndarray:
    """Of the transform, by its definition."""
    k, m = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    two = 2 * np.cos(np.pi * k * (2 * m + 1) / (2 * n))
    three = two.T.copy()
    three[:, 0] = 1
    if norm == "ortho":
        two = two / np.sqrt(2 * n)
        two[0] /= np.sqrt(2)
        return two if type == 2 else two.T
    found = two if type == 2 else three
    return found / (2 * n) if norm == "forward" else found


def test_v16() -> None:
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    for found, wanted in (
        (fft.dct(x), [20, -6.308644, 0, -0.448342]),
        (fft.dct(x, norm="ortho"), [5, -2.230442, 0, -0.158513]),
        (fft.idct(x), [1.499953, -1.137868, 0.327208, -0.189293]),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("type", [2, 3])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 15])
def test_transforms_are_products_with_their_matrix(type: int, norm: str, n: int) -> None:
    x = torch.randn(4, n, 2, dtype=torch.float64)
    matrix = _matrix(type, n, norm)
    found = fft.dct(x, type, dim=1, norm=norm)
    np.testing.assert_allclose(found, np.einsum("kn,anb->akb", matrix, x.numpy()), atol=1e-12)
    back = fft.idct(found, type, dim=1, norm=norm)
    np.testing.assert_allclose(back, x, atol=1e-12)
    single = fft.dct(x.float(), type, dim=1, norm=norm)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("type", [2, 3])
def test_lengths_dimensions_and_gradients_are_scipys(type: int) -> None:
    scipy: Any = pytest.importorskip("scipy.fft")
    x = torch.randn(3, 7, dtype=torch.float64)
    for n in (None, 4, 7, 10):
        for dim in (0, 1, -1, -2):
            for ours, theirs in ((fft.dct, scipy.dct), (fft.idct, scipy.idct)):
                for norm in NORMS:
                    wanted = theirs(x.numpy(), type, n, dim, norm)
                    np.testing.assert_allclose(ours(x, type, n, dim, norm), wanted, atol=1e-12)
    assert torch.autograd.gradcheck(lambda t: fft.dct(t, type, 9), x.requires_grad_())
    half = fft.dct(x.detach().half(), type)
    assert half.dtype == torch.float16


def test_what_transforms_refuse() -> None:
    x = torch.ones(3)
    for wrong in ({"type": 1}, {"type": 4}, {"norm": "none"}, {"n": 0}):
        for function in (fft.dct, fft.idct):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                function(x, **wrong)
    with pytest.raises(TypeError, match="int64"):
        fft.dct(torch.arange(3))
    with pytest.raises(IndexError):
        fft.dct(x, dim=1)


def test_v12() -> None:
    found = approx.StepWiseFunction([-1, 0, 2, 5], [1, 3, -2])
    x = [-5, -0.5, 0, 0.1, 2, 2.1, 9]
    assert found(x).tolist() == [1, 1, 1, 3, 3, -2, -2]
    assert approx.stepwise(x, [-1, 0, 2, 5], [1, 3, -2]).tolist() == found(x).tolist()
    assert "borders=[-1.0, 0.0, 2.0, 5.0]" in repr(found)
    for borders, levels, says in (
        ([0, 1], [1, 2], r"\(2,\)"),
        ([0, 2, 1], [1, 2], r"borders\[2\]=1.0 after 2.0"),
        ([0], [], r"\(0,\)"),
    ):
        with pytest.raises(ValueError, match=says):
            approx.StepWiseFunction(borders, levels)


def test_approximate_finds_the_optimum() -> None:
    """V11: .01190 with 8 levels on [-10, 10]; FewBit's own table has .01198."""
    domain = (-10.0, 10.0)
    found = approx.approximate("gelu", 8, domain)
    assert len(found.borders) == 9 and found.borders[0] == -10 and found.borders[-1] == 10
    error = approx.estimate_error("gelu", found, domain)
    assert error == pytest.approx(0.01190, abs=1e-5)
    by_autograd = approx.approximate(torch.nn.functional.gelu, 8, domain)
    np.testing.assert_allclose(by_autograd.borders, found.borders, atol=1e-6)
    # By a sum over a grid.
    x = np.linspace(-10, 10, 400001)
    slope = 0.5 * (1 + torch.erf(torch.from_numpy(x) / 2**0.5).numpy())
    slope += x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    assert float(((slope - found(x)) ** 2).mean() * 20) == pytest.approx(error, abs=1e-6)
    moved = approx.StepWiseFunction(found.borders + 0.05, found.levels)
    assert approx.estimate_error("gelu", moved, domain) > error
    assert approx.approximate("gelu").borders[0] == -100


def test_approximate_on_the_half_line() -> None:
    found = approx.approximate("tanh", 4, (0.0, 10.0), True)
    assert len(found.levels) == 4 and found.borders[0] == 0
    table = activations.Table(tuple(found.borders[1:-1]), tuple(found.levels), True)
    error = approx.estimate_error("tanh", table, (-10.0, 10.0))
    assert error == pytest.approx(0.03191, abs=1e-5)
    for wrong in ({"steps": 5}, {"domain": (-1.0, 1.0), "parity": True}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            approx.approximate("tanh", **wrong)
