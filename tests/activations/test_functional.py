"""Few-bit activation functions against torch's own results and the tables' float64 model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.activations.few_bit_cases import ARGUMENTS, CASES, DTYPES, NAMES, inputs
from tests.activations.kept import saved_by
from torch_cgx.activations import Table, functional
from torch_cgx.activations.few_bit.derivatives import CONTINUOUS, STEPS
from torch_cgx.activations.tables.files import table_for


def _torch(name: str) -> Callable[..., torch.Tensor]:
    return getattr(torch, name) if name in ("sigmoid", "tanh") else getattr(F, name)


def test_there_are_21() -> None:
    others = {"dropout", "geglu", "layer_norm", "linear", "reglu", "rms_norm", "swiglu"}
    assert set(functional.__all__) - others == set(NAMES) and len(NAMES) == 21


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_values_are_torchs_and_step_functions_have_its_gradient(
    name: str, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, theirs = (inputs(dtype).requires_grad_() for _ in range(2))
    y = getattr(functional, name)(ours, **arguments)
    wanted = _torch(name)(theirs, **arguments)
    assert y.dtype == wanted.dtype and torch.equal(y, wanted)
    grad = torch.randn_like(y)
    y.backward(grad)
    wanted.backward(grad)
    assert ours.grad is not None and theirs.grad is not None
    assert ours.grad.dtype == dtype and ours.grad.shape == ours.shape
    if name in STEPS:
        if name == "hardsigmoid":  # torch's sixth is rounded to float32, or to the type
            tolerance = max(4 * torch.finfo(dtype).eps, 1e-7)
            assert torch.allclose(ours.grad, theirs.grad, rtol=tolerance, atol=0)
        else:
            assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("bits", (1, 2, 3, 4))
@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradients_are_levels_of_the_table(name: str, bits: int) -> None:
    for dtype in DTYPES:
        x = inputs(dtype).requires_grad_()
        getattr(functional, name)(x, bits=bits).backward(torch.ones_like(x))
        wanted = table_for(name, bits)(x.detach()).to(
            torch.float64 if dtype == torch.float64 else torch.float32
        )
        assert x.grad is not None and torch.equal(x.grad, wanted.to(dtype)), dtype


@pytest.mark.parametrize("name", CONTINUOUS)
def test_more_bits_come_nearer_to_the_derivative(name: str) -> None:
    x = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = x.clone().requires_grad_()
    _torch(name)(exact).sum().backward()
    assert exact.grad is not None
    errors = []
    for bits in (1, 2, 3, 4):
        few = x.clone().requires_grad_()
        getattr(functional, name)(few, bits=bits).sum().backward()
        assert few.grad is not None
        errors.append(float((few.grad - exact.grad).norm() / exact.grad.norm()))
    assert errors == sorted(errors, reverse=True) and errors[3] < 0.13, errors


def test_every_size_keeps_exactly_its_codes() -> None:
    """ceil(bits n / 8) bytes (V10: 375 of 1000 values at 3 bits), and nothing else."""
    for n in (*range(401), 1000, 140_001):
        bits = n % 4 + 1
        x = torch.randn(n, requires_grad=True)
        y, kept = saved_by(functional.gelu, x, bits=bits)
        assert sum(t.untyped_storage().nbytes() for t in kept) == math.ceil(bits * n / 8)
        y.backward(torch.ones_like(y))
        wanted = table_for("gelu", bits)(x.detach()).float()
        assert x.grad is not None and torch.equal(x.grad, wanted), n
    x = torch.randn(1000, requires_grad=True)
    _, kept = saved_by(functional.silu, x)
    assert sum(t.nbytes for t in kept) == 375
    for name in STEPS:
        arguments = ARGUMENTS.get(name, ({},))[0]
        _, kept = saved_by(getattr(functional, name), x, **arguments)
        assert sum(t.nbytes for t in kept) == 125, name


@pytest.mark.parametrize("name", NAMES)
def test_nan_gives_nan_and_infinities_the_ends(name: str) -> None:
    arguments = ARGUMENTS.get(name, ({},))[0]
    for dtype in DTYPES:
        x = inputs(dtype, 77)
        x[5] = x[64] = math.nan
        x[6], x[7] = math.inf, -math.inf
        x.requires_grad_()
        getattr(functional, name)(x, **arguments).backward(torch.ones_like(x))
        assert x.grad is not None
        assert x.grad.isnan().nonzero().flatten().tolist() == [5, 64], dtype
        if name in CONTINUOUS:
            table = table_for(name, 3)
            ends = [table(np.array(end)).item() for end in (math.inf, -math.inf)]
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            wanted = torch.tensor(ends, dtype=wide).to(dtype)
            assert x.grad[6:8].tolist() == wanted.tolist()


def test_v7_and_v8_of_fewbits_tables() -> None:
    """Section 1.5 of the facts on FewBit: its shipped tables, at the printed precision."""
    gelu = Table(
        (-2.41658, -0.710008, -0.325841, 0.000106942, 0.326057, 0.710241, 2.41448),
        (-0.000193991, -0.0882791, 0.125684, 0.372314, 0.627851, 0.874451, 1.08835, 1.00019),
    )
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], requires_grad=True)
    functional.gelu(x, table=gelu).sum().backward()
    wanted = [-1.93991e-4, -0.0882791, 0.1256838, 0.3723144, 0.8744505, 1.0883480, 1.0001949]
    assert x.grad is not None and np.allclose(x.grad.numpy(), wanted, rtol=0, atol=6e-6)
    third = 1 / 3
    hardswish = Table((-3, -2, -1, 0, 1, 2, 3), (0, -third, 0, third, 2 * third, 1, 4 * third, 1))
    given = [-3, -2, -1, 0, 1, 2, 3, 3.0000002, math.nan, math.inf, -math.inf]
    x = torch.tensor(given, requires_grad=True)
    functional.hardswish(x, table=hardswish).sum().backward()
    assert x.grad is not None
    assert np.allclose(
        x.grad.numpy(),
        [0, -third, 0, third, 2 * third, 1, 4 * third, 1, math.nan, 1, 0],
        equal_nan=True,
    )


def test_v9_a_table_of_ones_own() -> None:
    table = Table.from_fewbit([-9, 0, 9], [0.25, 0.75])
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    functional.gelu(x, table=table).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.75, 0.75]
    with pytest.raises(ValueError, match="borders"):
        Table.from_fewbit([0.0], [0.25, 0.75])


def test_borders_that_the_dtype_lacks() -> None:
    """torch compares in float32: 0.1 as float32 is above 0.1, and not above itself."""
    for dtype in DTYPES:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        near = [torch.tensor(value, dtype=wide).item() for value in (0.1, 0.7, 1 / 3)]
        given = [[v, math.nextafter(v, 9), math.nextafter(v, -9), -v] for v in near]
        x = torch.tensor(given, dtype=torch.float64).to(dtype).flatten()
        for name, arguments in (
            ("threshold", {"threshold": 0.1, "value": 5.0}),
            ("threshold", {"threshold": -math.inf, "value": 5.0}),
            ("threshold", {"threshold": 1 / 3, "value": 5.0}),
            ("hardshrink", {"lambd": 0.1}),
            ("softshrink", {"lambd": 0.7}),
            ("hardtanh", {"min_val": 0.1, "max_val": 0.7}),
            ("hardtanh", {"min_val": -math.inf, "max_val": 0.7}),
        ):
            ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
            getattr(functional, name)(ours, **arguments).sum().backward()
            getattr(F, name)(theirs, **arguments).sum().backward()
            assert ours.grad is not None and theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad), (name, arguments, dtype)


def test_v12_a_step_function() -> None:
    table = Table((0.0, 2.0), (1.0, 3.0, -2.0))
    assert table(np.array([-5, -0.5, 0, 0.1, 2, 2.1, 9])).tolist() == [1, 1, 1, 3, 3, -2, -2]


def test_strides_are_kept_and_need_no_copy() -> None:
    base = torch.randn(4, 6, 5, 3)
    views = (
        base.to(memory_format=torch.channels_last),
        base.transpose(1, 2),
        base[:, ::2],
        base[:1].expand(4, 6, 5, 3),
        base.permute(3, 0, 1, 2),
        torch.empty(0, 3).t(),
        torch.tensor(0.7),
    )
    for view in views:
        x = view.detach().requires_grad_()
        y = functional.gelu(x)
        assert torch.equal(y, F.gelu(x)) and y.stride() == F.gelu(x).stride()
        grad = torch.randn_like(y)
        (found,) = torch.autograd.grad(y, x, grad)
        assert torch.equal(found, grad * table_for("gelu", 3)(view).float())
    x = views[0].detach().requires_grad_()
    (found,) = torch.autograd.grad(functional.relu(x), x, torch.ones_like(x))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_without_a_gradient_nothing_is_kept() -> None:
    for build in (
        lambda: functional.gelu(torch.randn(100)),
        lambda: functional.gelu(torch.randn(100, requires_grad=True).detach()),
    ):
        _, kept = saved_by(build)
        assert kept == []
    x = torch.randn(100, requires_grad=True)
    with torch.no_grad():
        assert not functional.gelu(x).requires_grad
    functional.gelu(x)  # a result that nobody takes on
    y = functional.gelu(x)
    z = functional.gelu(torch.zeros(3, requires_grad=True))
    (y.sum() + 0 * z.detach().sum()).backward()


def test_in_place() -> None:
    x = torch.randn(1000, requires_grad=True)
    for name in ("relu", "silu", "elu", "hardtanh"):
        memory = x.detach().clone().requires_grad_() * 1
        kept = memory.detach().clone()
        y = getattr(functional, name)(memory, inplace=True)
        assert y.data_ptr() == memory.data_ptr() and torch.equal(y, _torch(name)(kept))
        leaf = kept.clone().requires_grad_()
        again = leaf * 1
        getattr(functional, name)(again, inplace=True)
        again.sum().backward()
        fresh = kept.clone().requires_grad_()
        getattr(functional, name)(fresh).sum().backward()
        assert leaf.grad is not None and fresh.grad is not None
        assert torch.equal(leaf.grad, fresh.grad)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        functional.relu(x, inplace=True)


def test_double_backward_is_an_error_and_create_graph_is_not() -> None:
    x = torch.randn(100, requires_grad=True)
    (first,) = torch.autograd.grad(functional.gelu(x).sum(), x, create_graph=True)
    table = table_for("gelu", 3)(x.detach()).float()
    assert torch.equal(first.detach(), table)
    scale = torch.ones((), requires_grad=True)
    (first,) = torch.autograd.grad((functional.gelu(x) * scale).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice|no second derivative"):
        first.sum().backward()
    with pytest.raises(RuntimeError, match="cannot be differentiated twice|no second derivative"):
        torch.autograd.functional.hessian(lambda x: functional.silu(x).sum(), x)


def test_functorch() -> None:
    x = torch.randn(7, 30)
    wanted = table_for("gelu", 3)(x).float()
    grad = torch.func.grad(lambda x: functional.gelu(x).sum())
    assert torch.equal(grad(x), wanted)
    assert torch.equal(torch.func.vmap(grad)(x), wanted)


def test_functorch_with_a_nan_and_in_place() -> None:
    x = torch.randn(7, 30)
    x[2, 3] = math.nan
    grad = torch.func.vmap(torch.func.grad(lambda x: functional.gelu(x).sum()))(x)
    assert grad[2].isnan().all() and not grad[3:].isnan().any()
    grad = torch.func.vmap(torch.func.grad(lambda x: functional.relu(x * 1, inplace=True).sum()))(x)
    assert torch.equal(grad[3:], (x[3:] > 0).float())


@pytest.mark.parametrize("name", ("gelu", "relu6", "tanh", "softplus"))
def test_compiles_without_a_graph_break(name: str) -> None:
    function = getattr(functional, name)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for shape in ((33,), (4, 100)):
        ours, theirs = torch.randn(2, *shape).unbind()
        theirs.copy_(ours)
        ours.requires_grad_()
        theirs.requires_grad_()
        y, wanted = compiled(ours), function(theirs)
        assert torch.equal(y, wanted)
        y.sum().backward()
        wanted.sum().backward()
        assert ours.grad is not None and theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
    x = torch.randn(50)
    x[3] = math.nan
    x.requires_grad_()
    compiled(x).sum().backward()
    assert x.grad is not None and x.grad.isnan().all()  # documented: of the whole tensor


def test_autocast_and_grad_scaler() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    weight = torch.randn(64, 64, requires_grad=True)
    for name in ("gelu", "softplus", "tanh"):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x @ weight
            y = getattr(functional, name)(hidden)
            wanted = _torch(name)(hidden)
        assert y.dtype == wanted.dtype and torch.equal(y, wanted)
        y.sum().backward()
        assert x.grad is not None and x.grad.dtype == torch.float32


def test_checkpoint_and_retained_graphs() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(500, requires_grad=True)
    (wanted,) = torch.autograd.grad(functional.gelu(x * 2).sum(), x)
    for reentrant in (True, False):
        y = checkpoint(lambda x: functional.gelu(x * 2), x, use_reentrant=reentrant)
        y.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, wanted)
        x.grad = None
    y = functional.gelu(x * 2).sum()
    assert torch.equal(torch.autograd.grad(y, x, retain_graph=True)[0], wanted)
    assert torch.equal(torch.autograd.grad(y, x)[0], wanted)


@pytest.mark.parametrize("level", ("scalar", "avx2"))
def test_levels_of_the_cpu_give_equal_bits(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs(torch.float32).requires_grad_()
    (wanted,) = torch.autograd.grad(functional.gelu(x).sum(), x)
    monkeypatch.setenv("CGX_CPU_LEVEL", level)
    assert torch.equal(torch.autograd.grad(functional.gelu(x).sum(), x)[0], wanted)


def test_bad_input_is_named() -> None:
    x = torch.randn(5, requires_grad=True)
    for bits in (0, 5, -1):
        with pytest.raises(ValueError, match=f"gelu: bits={bits}; allowed: 1 to 4"):
            functional.gelu(x, bits=bits)
    for bad in (2.0, True, None, "3"):
        with pytest.raises(TypeError, match="bits="):
            functional.gelu(x, bits=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relu: bits=3; allowed: 1, as its derivative"):
        functional.relu(x, bits=3)
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=rf"gelu: input is {dtype}, allowed: float32"):
            functional.gelu(torch.ones(3, dtype=dtype))
    with pytest.raises(TypeError, match="layout torch.sparse_coo, allowed: torch.strided"):
        functional.relu(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="input is a list, allowed: a tensor"):
        functional.gelu([1.0])  # type: ignore[arg-type]
    table = Table((0.0,), (0.0, 1.0))
    with pytest.raises(ValueError, match="bits=2 with a table of 1 bits"):
        functional.gelu(x, bits=2, table=table)
    with pytest.raises(TypeError, match="table is a tuple"):
        functional.gelu(x, table=((0.0,), (0.0, 1.0)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha"):
        functional.celu(x, alpha=-1.0)
    with pytest.raises(RuntimeError, match="approximate"):
        functional.gelu(x, approximate="cos")
