"""Norms that keep their output: torch's forward bit for bit, torch's gradients in float64,
bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.activations.kept import kept, normal, relative, same
from torch_cgx.activations.layers import norm_range, norms
from torch_cgx.activations.layers.norm_modules import CastRMSNorm, LayerNorm, RMSNorm

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Norm = Callable[..., Tensor]


def some(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(*shape, seed=seed).to(dtype)


def layer(own: bool, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None) -> Tensor:
    return (norms.layer_norm if own else F.layer_norm)(x, shape, w, b, 1e-5)


def rms(own: bool, x: Tensor, shape: list[int], w: Tensor | None, b: Tensor | None) -> Tensor:
    return (norms.rms_norm if own else F.rms_norm)(x, shape, w, 1e-5)


def parameters(shape: list[int], affine: str) -> tuple[Tensor | None, Tensor | None]:
    w = some(*shape, seed=1).abs() + 0.5 if "w" in affine else None
    b = some(*shape, seed=2) * 0.5 if "b" in affine else None
    return w, b


def gradients(
    norm: Norm, own: bool, x: Tensor, shape: list[int], affine: str, dtype: torch.dtype, g: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The output and the gradients of x, weight and bias, with all of them in that dtype. Each
    dtype gets the same values, those of the lowest one under test."""
    tensors = [
        None if t is None else t.to(dtype, copy=True).requires_grad_()
        for t in (x, *parameters(shape, affine))
    ]
    y = norm(own, tensors[0], shape, tensors[1], tensors[2])
    used = [t for t in tensors if t is not None and (norm is layer or t is not tensors[2])]
    return y, list(torch.autograd.grad(y, used, g.to(dtype)))


@pytest.mark.parametrize("norm", [layer, rms])
@pytest.mark.parametrize("affine", ["wb", "w", ""])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_is_torchs_and_gradients_are_those_of_float64(
    norm: Norm, affine: str, dtype: torch.dtype
) -> None:
    x = some(48, 3, 40).to(dtype).double()
    g = some(48, 3, 40, seed=3).to(dtype).double()
    y, own = gradients(norm, True, x, [40], affine, dtype, g)
    expected, torchs = gradients(norm, False, x, [40], affine, dtype, g)
    assert same(y, expected) and y.grad_fn is not None
    assert "LayerNorm" in y.grad_fn.name() or "RMSNorm" in y.grad_fn.name()
    exact = gradients(norm, False, x, [40], affine, torch.float64, g)[1]
    for mine, theirs, true in zip(own, torchs, exact, strict=True):
        assert mine.dtype == dtype and mine.shape == theirs.shape
        if dtype in (torch.float64, torch.float32):
            assert relative(mine, true) < (1e-13 if dtype == torch.float64 else 1e-5)
        else:
            assert relative(mine, true) <= 2 * relative(theirs, true)


@pytest.mark.parametrize("norm", [layer, rms])
@pytest.mark.parametrize(
    ("shape", "width"),
    [((3, 4, 5), [4, 5]), ((7,), [7]), ((2, 3, 0, 6), [6]), ((0, 4), [4]), ((5, 1), [1])],
)
def test_shapes(norm: Norm, shape: tuple[int, ...], width: list[int]) -> None:
    x, g = some(*shape), some(*shape, seed=3)
    y, own = gradients(norm, True, x, width, "wb", torch.float64, g)
    expected, torchs = gradients(norm, False, x, width, "wb", torch.float64, g)
    assert same(y, expected)
    for mine, theirs in zip(own, torchs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("norm", [layer, rms])
def test_strides_of_input_and_gradient(norm: Norm) -> None:
    w, b = parameters([6], "wb")
    x = some(6, 5, 4).requires_grad_()
    results = []
    for own in (True, False):
        y = norm(own, x.permute(2, 1, 0), [6], w, b)
        results.append((y, torch.autograd.grad(y, x, some(1, 5, 6).expand(4, 5, 6))[0]))
    assert same(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("norm", [layer, rms])
@pytest.mark.parametrize("eps", [1e-5, None])
def test_input_of_16_bits_with_weights_of_32(norm: Norm, eps: float | None) -> None:
    x = (some(64, 32) * 1e-3).bfloat16()
    w, b = (t.float() for t in parameters([32], "wb") if t is not None)
    g = some(64, 32, seed=3).bfloat16()
    found, exact = [], []
    for own in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        if norm is layer:
            y = layer(own, leaves[0], [32], *leaves[1:])
        else:
            y = (norms if own else F).rms_norm(leaves[0], [32], leaves[1], eps)
        found.append((y, torch.autograd.grad(y, leaves[: 3 if norm is layer else 2], g)))
    assert same(found[0][0], found[1][0])
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    more = torch.finfo(torch.float32).eps if eps is None else eps
    if norm is layer:
        exact = torch.autograd.grad(layer(False, wide[0], [32], *wide[1:]), wide, g.double())
    else:
        y = F.rms_norm(wide[0], [32], wide[1], more)
        exact = torch.autograd.grad(y, wide[:2], g.double())
    for mine, theirs, true in zip(found[0][1], found[1][1], exact, strict=True):
        assert mine.dtype == theirs.dtype
        # torch rounds dweight of float32 less often: xhat is known to 8 bits only from y in
        # bfloat16.
        assert relative(mine, true) <= max(2 * relative(theirs, true), 2**-8)


@pytest.mark.parametrize(("norm", "rows"), [(layer, 1), (rms, 1)])
def test_keeps_one_number_a_row_beside_its_output(norm: Norm, rows: int) -> None:
    x = some(16, 32, dtype=torch.float32).requires_grad_()
    w, b = (t.float().requires_grad_() for t in parameters([32], "wb") if t is not None)
    linear = nn.Linear(32, 4)
    but = (w, b, linear.weight, linear.bias)
    _, own = kept(lambda: linear(norm(True, x, [32], w, b)), but)
    _, torchs = kept(lambda: linear(norm(False, x, [32], w, b)), but)
    assert own == 16 * 32 * 4 + 16 * 4
    assert torchs >= 2 * 16 * 32 * 4
    with torch.no_grad():
        assert kept(lambda: norm(True, x, [32], w, b))[1] == 0


@pytest.mark.parametrize("norm", [layer, rms])
@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_computes_what_requires_a_gradient(norm: Norm, needs: tuple[bool, bool]) -> None:
    x, w = some(6, 8).requires_grad_(needs[0]), some(8, seed=1).abs() + 0.5
    w.requires_grad_(needs[1])
    y, expected = norm(True, x, [8], w, None), norm(False, x, [8], w, None)
    wanted = x if needs[0] else w
    g = some(6, 8, seed=3)
    mine = torch.autograd.grad(y, wanted, g)[0]
    torch.testing.assert_close(mine, torch.autograd.grad(expected, wanted, g)[0])
    assert (x.grad, w.grad) == (None, None)


@pytest.mark.parametrize(
    ("weight", "bias", "dtype", "keeps"),
    [
        (1.0, 1000.0, torch.float32, "output"),
        (1.0, 1100.0, torch.float32, "input"),
        (1e-3, 1.0, torch.float32, "output"),
        (1e-3, 1.1, torch.float32, "input"),
        (-1.0, -31.0, torch.float16, "output"),
        (-1.0, -33.0, torch.float16, "input"),
        (1.0, 7.5, torch.bfloat16, "output"),
        (1.0, 8.5, torch.bfloat16, "input"),
        (0.0, 0.0, torch.float32, "input"),
        (1e-36, 0.0, torch.float32, "input"),
        (float("nan"), 0.0, torch.float32, "input"),
        (1.0, float("nan"), torch.float32, "input"),
    ],
)
def test_parameters_out_of_range_keep_the_input(
    weight: float, bias: float, dtype: torch.dtype, keeps: str
) -> None:
    module = LayerNorm(8, dtype=dtype)
    reference = nn.LayerNorm(8, dtype=dtype)
    x = some(32, 8, dtype=dtype)
    with torch.no_grad():
        for norm in (module, reference):
            norm.weight[3], norm.bias[3] = weight, bias
    y = module(x)
    assert (module.keeps, module.calls_keeping_input) == (keeps, int(keeps == "input"))
    assert torch.equal(y.nan_to_num(), reference(x).nan_to_num())
    y.float().sin().sum().backward()
    reference(x).float().sin().sum().backward()
    if keeps == "input":
        assert module.weight.grad is not None and reference.weight.grad is not None
        assert torch.equal(module.weight.grad.nan_to_num(), reference.weight.grad.nan_to_num())
    with torch.no_grad():
        module.weight.fill_(1.0), module.bias.fill_(0.0)
    module(x)
    assert module.keeps == "output"


def test_an_error_at_the_limit_is_the_documented_one() -> None:
    """|bias / weight| = 1024 in float32: xhat is off by at most 2^-14, and dweight with it."""
    x, g = some(64, 16), some(64, 16, seed=3)
    w, b = torch.full((16,), 0.5).double(), torch.full((16,), 512.0).double()
    found = []
    for own, dtype in ((True, torch.float32), (False, torch.float64)):
        leaves = [t.to(dtype).requires_grad_() for t in (x.float(), w, b)]
        y = layer(own, leaves[0], [16], *leaves[1:])
        assert y.grad_fn is not None and y.grad_fn.name().startswith("_LayerNorm") == own
        found.append(torch.autograd.grad(y, leaves, g.float().to(dtype)))
    limit = 2**-14 * g.abs().sum(0)
    assert bool(((found[0][1] - found[1][1]).abs() <= limit).all())
    assert relative(found[0][0], found[1][0]) < 2**-13


def test_the_answer_of_other_devices_is_kept_until_a_parameter_changes() -> None:
    weight, bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

    def ask() -> bool:
        return norm_range.remembered(weight, bias, torch.float32)

    assert ask()
    weight.data[0] = 0.0  # not seen, as documented
    assert ask()
    with torch.no_grad():
        bias[0] = 1.0
    assert not ask()
    with torch.no_grad():
        weight.fill_(1.0)
    assert ask()
    assert not norm_range.remembered(weight, nn.Parameter(torch.full((4,), 9.0)), torch.bfloat16)


@pytest.mark.parametrize("module", [LayerNorm(8), RMSNorm(8)])
def test_second_derivatives_are_refused_when_they_are_taken(module: nn.Module) -> None:
    x = some(4, 8, dtype=torch.float32).requires_grad_()
    (first,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="_norm cannot be differentiated twice"):
        first.sum().backward()
    module.keep = "input"
    (first,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad is not None and bool(x.grad.abs().sum() > 0)


def test_a_change_of_the_output_is_torchs_error() -> None:
    x = some(4, 8, dtype=torch.float32).requires_grad_()
    y = LayerNorm(8)(x)
    F.relu_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("own", "torchs", "arguments"),
    [
        (LayerNorm, nn.LayerNorm, {"normalized_shape": (2, 3), "eps": 1e-3}),
        (LayerNorm, nn.LayerNorm, {"normalized_shape": 6, "elementwise_affine": False}),
        (LayerNorm, nn.LayerNorm, {"normalized_shape": 6, "bias": False}),
        (RMSNorm, nn.RMSNorm, {"normalized_shape": 6, "eps": 0.5}),
        (RMSNorm, nn.RMSNorm, {"normalized_shape": 6, "elementwise_affine": False}),
    ],
)
def test_modules_are_torchs(own: Any, torchs: Any, arguments: dict[str, Any]) -> None:
    module, reference = own(**arguments), torchs(**arguments)
    assert isinstance(module, torchs) and repr(module) == repr(reference)
    assert module.state_dict().keys() == reference.state_dict().keys()
    module.load_state_dict(reference.state_dict())
    x = some(4, *module.normalized_shape, dtype=torch.float32).requires_grad_()
    g = some(4, *module.normalized_shape, dtype=torch.float32, seed=3)
    y, expected = module(x), reference(x)
    assert same(y, expected)
    mine, theirs = (torch.autograd.grad(result, x, g)[0] for result in (y, expected))
    torch.testing.assert_close(mine, theirs)


def test_keep_is_checked() -> None:
    with pytest.raises(ValueError, match="keep='mean'; allowed"):
        LayerNorm(4, keep="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keep='mean'; allowed"):
        norms.rms_norm(some(2, 4), [4], keep="mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [LayerNorm(8), RMSNorm(8)])
def test_compiles_into_one_graph_and_refuses_parameters_that_leave_the_range(
    module: Any,
) -> None:
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = some(4, 8, dtype=torch.float32).requires_grad_()
    (mine,) = torch.autograd.grad(compiled(x).sin().sum(), x)
    (eager,) = torch.autograd.grad(module(x).sin().sum(), x)
    torch.testing.assert_close(mine, eager)
    with torch.no_grad():
        module.weight[2] = 0.0
    with pytest.raises(RuntimeError, match="compiled to keep its output"):
        compiled(x).sin().sum().backward()
    torch.compiler.reset()
    (mine,) = torch.autograd.grad(compiled(x).sin().sum(), x)
    assert module.keeps == "input"
    torch.testing.assert_close(mine, torch.autograd.grad(module(x).sin().sum(), x)[0])
    torch.compiler.reset()


def test_cast_rms_norm_rounds_before_the_weight() -> None:
    module = CastRMSNorm()
    module.weight = nn.Parameter(some(8, seed=1).abs() + 0.5)
    module.eps_name, module.variance_epsilon = "variance_epsilon", 1e-6
    module.start("auto")
    module.bfloat16()
    x = some(64, 8, dtype=torch.bfloat16).requires_grad_()
    y, size = kept(lambda: module(x), [module.weight])
    wide = x.detach().float()
    r = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert same(y, module.weight * (wide * r).bfloat16())
    assert size == 64 * 8 * 2 + 64 * 4
    g = some(64, 8, dtype=torch.bfloat16, seed=3)
    exact = x.detach().double().requires_grad_()
    reference = F.rms_norm(exact, [8], module.weight.detach().double(), 1e-6)
    true = torch.autograd.grad(reference, exact, g.double())[0]
    assert relative(torch.autograd.grad(y, x, g)[0], true) < 2**-7
