"""What the engine's simulation checks of its tensors before a reducer writes them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_cgx
from torch_cgx import _C

X = torch.ones(10)
SHORT = torch.ones(10)
SHORT.untyped_storage().resize_(4)


def _simulate(data: list[torch.Tensor], layers: object = None, residuals: object = ()) -> object:
    layers = [(10, _C.Codec(bits=4))] if layers is None else layers
    return _C.simulate_all_reduce(data, layers, False, [*residuals], ranks=len(data) or 1)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "data is empty, allowed: a tensor for each rank"),
        ([X, X[:9]], r"data\[1\] has 9 values, allowed: 10"),
        ([X, X.half()], r"data\[1\] is Half, allowed: .* the same on all ranks"),
        ([X.int()] * 2, r"data\[0\] is Int, allowed"),
        ([torch.ones(20)[::2]] * 2, r"data\[0\] is no contiguous tensor on the CPU"),
        ([X[:1].expand(10)] * 2, r"data\[0\] is no contiguous tensor on the CPU"),
        ([X.to("meta")] * 2, r"data\[0\] is no contiguous tensor on the CPU"),
        ([X.to_sparse()] * 2, r"data\[0\] is no contiguous tensor on the CPU"),
        ([SHORT, X], "was resized to 4 bytes"),
    ],
)
def test_tensors_of_ranks(data: list[torch.Tensor], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        _simulate(data)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([(11, None)], "the layers have more than 10 values"),
        ([(3, None), (6, None)], "the layers have 9 of 10 values"),
        ([(2**64 - 1, None), (11, None)], "the layers have more than 10 values"),
        ([(-1, None), (11, None)], "incompatible function arguments"),
    ],
)
def test_layers(layers: object, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        _simulate([X.clone(), X.clone()], layers)


@pytest.mark.parametrize(
    ("residuals", "text"),
    [
        ([X], "1 residuals for 2 ranks"),
        ([X[:9]] * 2, r"residuals\[0\] has 9 values, allowed: 10"),
        ([X, X.int()], r"residuals\[1\] is Int, allowed"),
        ([X, X], r"residuals\[0\] shares memory with"),
    ],
)
def test_residuals(residuals: list[torch.Tensor], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        _simulate([X.clone(), X.clone()], residuals=residuals)


def test_residuals_count_as_changed_and_are_no_inputs() -> None:
    x = [torch.randn(1000) for _ in range(2)]
    residuals = [torch.zeros(1000) for _ in x]
    versions = [residual._version for residual in residuals]
    torch_cgx.simulate(x, {"bits": 4}, residuals=residuals)
    assert [residual._version for residual in residuals] == [v + 1 for v in versions]
    with pytest.raises(ValueError, match=r"residuals\[0\] shares memory with tensors"):
        torch_cgx.simulate(x, {"bits": 4}, residuals=x)
    with FakeTensorMode(), pytest.raises(ValueError, match="has no memory, as a FakeTensor"):
        _simulate([torch.ones(10), torch.ones(10)])
