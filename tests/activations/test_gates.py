"""Gated linear units: values and gradients are torch's own bit for bit, and bytes are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.activations.kept import kept, relative, same, saved_by
from torch_cgx.activations.layers import gate_modules, gates
from torch_cgx.activations.tables.table import Table

UNITS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "swiglu": (gates.swiglu, F.silu),
    "geglu": (gates.geglu, F.gelu),
    "geglu_tanh": (
        lambda *a, **k: gates.geglu(*a, approximate="tanh", **k),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "reglu": (gates.reglu, F.relu),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
N = 3 * 5 * 16


def leaves(dtype: torch.dtype, *requires: bool) -> list[Tensor]:
    """gate, up, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 5, 16), (3, 5, 16), (4, 16), (4,))
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_(needs)
        for shape, needs in zip(shapes, requires or (True,) * 4, strict=True)
    ]


def torchs(act: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor, *linear: Tensor) -> Tensor:
    return F.linear(act(gate) * up, *linear) if linear else act(gate) * up


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_values_and_gradients_are_torchs(unit: str, dtype: torch.dtype, inputs: int) -> None:
    own, act = UNITS[unit]
    tensors = leaves(dtype)[:inputs]
    y, expected = own(*tensors), torchs(act, *tensors)
    assert same(y, expected)
    g = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(dtype)
    mine, theirs = (torch.autograd.grad(result, tensors, g) for result in (y, expected))
    for a, b in zip(mine[:2], theirs[:2], strict=True):
        assert same(a, b)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    exact = torch.autograd.grad(torchs(act, *wide), wide, g.double())
    for a, b, c in zip(mine[2:], theirs[2:], exact[2:], strict=True):
        assert a.dtype == b.dtype
        assert relative(a, c) <= 1.1 * relative(b, c) + 1e-15  # sums may be ordered otherwise


@pytest.mark.parametrize(
    ("requires", "fused", "expected"),
    [
        ((True, True, True, True), True, 2 * N),
        ((True, True, True, True), False, 2 * N),
        ((True, True, False, False), True, 2 * N),
        ((False, True, False, False), True, N),
        ((False, True, True, True), True, 2 * N),
        ((False, False, True, True), True, 2 * N),
        ((False, False, False, True), True, 0),
        ((True, False, False, False), True, 2 * N),
    ],
)
def test_keeps_the_inputs_that_it_needs(
    requires: tuple[bool, ...], fused: bool, expected: int
) -> None:
    tensors = leaves(torch.float32, *requires)
    given = tensors if fused else tensors[:2]
    y, size = kept(lambda: gates.swiglu(*given), tensors[2:])
    assert size == expected * 4
    reference = torchs(F.silu, *given)
    wanted = [t for t in given if t.requires_grad]
    mine, theirs = (torch.autograd.grad(r, wanted, torch.ones_like(y)) for r in (y, reference))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    if all(requires) and fused:
        assert kept(lambda: torchs(F.silu, *tensors), tensors[2:])[1] == 4 * N * 4
    with torch.no_grad():
        assert kept(lambda: gates.swiglu(*given))[1] == 0


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("unit", ["swiglu", "geglu", "geglu_tanh"])
def test_codes_take_the_place_of_the_gate_where_only_its_derivative_is_needed(
    unit: str, bits: int
) -> None:
    own, act = UNITS[unit]
    tensors = leaves(torch.float32, True, False, False, True)
    y, size = kept(lambda: own(*tensors, bits=bits), tensors[2:])
    assert same(y, torchs(act, *tensors))
    assert size == N * 4 + N * bits // 8
    g = torch.ones_like(y)
    mine = torch.autograd.grad(y, tensors[0], g)[0]
    exact = torch.autograd.grad(torchs(act, *tensors), tensors[0], g)[0]
    assert 0 < relative(mine, exact) < (0.6, 0.3, 0.2, 0.1)[bits - 1]


def test_table_and_reglu_without_loss() -> None:
    tensors = leaves(torch.float32, True, False, False, True)
    table = Table((0.0,), (0.25, 0.75))
    y, size = kept(lambda: gates.swiglu(*tensors, table=table), tensors[2:])
    assert size == N * 4 + N // 8
    g = torch.ones_like(y)
    dproduct = (g @ tensors[2]) * tensors[1]
    level = torch.where(tensors[0] > 0, 0.75, 0.25)
    torch.testing.assert_close(torch.autograd.grad(y, tensors[0], g)[0], dproduct * level)
    for bits in (None, 1):
        y, size = kept(lambda bits=bits: gates.reglu(*tensors, bits=bits), tensors[2:])
        assert size == N * 4 + N // 8
        mine = torch.autograd.grad(y, tensors[0], g)[0]
        assert same(mine, torch.autograd.grad(torchs(F.relu, *tensors), tensors[0], g)[0])


@pytest.mark.parametrize("unit", ["swiglu", "reglu"])
def test_bits_change_nothing_where_the_activation_is_needed(unit: str) -> None:
    own, act = UNITS[unit]
    tensors = leaves(torch.float32)
    y, size = kept(lambda: own(*tensors, bits=1), tensors[2:])
    assert size == 2 * N * 4
    for a, b in zip(
        torch.autograd.grad(y.sum(), tensors[:2]),
        torch.autograd.grad(torchs(act, *tensors).sum(), tensors[:2]),
        strict=True,
    ):
        assert same(a, b)


def test_types_that_differ_and_autocast() -> None:
    for types in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        gate, up = (
            t.detach().to(dtype).requires_grad_()
            for t, dtype in zip(leaves(torch.float32)[:2], types, strict=True)
        )
        y, expected = gates.swiglu(gate, up), F.silu(gate) * up
        assert same(y, expected)
        g = torch.ones_like(y)
        mine, theirs = (torch.autograd.grad(r, (gate, up), g) for r in (y, expected))
        assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    tensors = leaves(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = gates.swiglu(*tensors), torchs(F.silu, *tensors)
    assert y.dtype == torch.bfloat16 and same(y, expected)
    g = torch.ones_like(y)
    mine, theirs = (torch.autograd.grad(r, tensors, g) for r in (y, expected))
    assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))


def test_strides_and_empty_tensors() -> None:
    base = leaves(torch.float64)[0].detach()
    gate, up = base.transpose(0, 1).requires_grad_(), base.transpose(0, 1).clone().requires_grad_()
    weight = torch.randn(2, 16, dtype=torch.float64, requires_grad=True)
    y, expected = gates.swiglu(gate, up, weight), torchs(F.silu, gate, up, weight)
    assert same(y, expected)
    for a, b in zip(
        torch.autograd.grad(y.sum(), (gate, up, weight)),
        torch.autograd.grad(expected.sum(), (gate, up, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    empty = torch.zeros(0, 16, requires_grad=True)
    y = gates.swiglu(empty, empty.detach().requires_grad_(), weight.detach().float())
    y.sum().backward()
    assert y.shape == (0, 2) and empty.grad is not None and empty.grad.shape == (0, 16)


@pytest.mark.parametrize(
    ("module", "act"),
    [
        (gate_modules.SwiGLU(), F.silu),
        (gate_modules.GEGLU(), F.gelu),
        (gate_modules.GEGLU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (gate_modules.ReGLU(), F.relu),
    ],
)
def test_modules_split_one_tensor_and_keep_it_once(
    module: nn.Module, act: Callable[[Tensor], Tensor]
) -> None:
    x = torch.randn(3, 5, 32, requires_grad=True)
    y, size = kept(lambda: module(x))
    gate, up = x.chunk(2, -1)
    assert same(y, act(gate) * up) and size == x.numel() * 4
    g = torch.randn(3, 5, 16)
    mine, theirs = (torch.autograd.grad(r, x, g)[0] for r in (y, act(gate) * up))
    assert same(mine, theirs)
    _, saved = saved_by(module, x * 1)
    assert [t.shape for t in saved] == [x.shape]


@pytest.mark.parametrize("joined", [True, False])
def test_second_derivatives_are_refused_and_changes_are_seen(joined: bool) -> None:
    gate, up, *_ = leaves(torch.float32)
    x = torch.cat([gate, up], -1).detach().requires_grad_()
    run = (lambda: gate_modules.SwiGLU()(x)) if joined else (lambda: gates.swiglu(gate, up))
    of = x if joined else gate
    (first,) = torch.autograd.grad(run().sum(), of, create_graph=True)
    with pytest.raises(RuntimeError, match="swiglu cannot be differentiated twice"):
        first.sum().backward()
    y = run()
    with torch.no_grad():
        of.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("unit", UNITS)
def test_compiles_into_one_graph(unit: str) -> None:
    own, act = UNITS[unit]
    torch.compiler.reset()
    tensors = leaves(torch.float32)
    compiled = torch.compile(lambda *t: own(*t), fullgraph=True, backend="aot_eager")
    y, expected = compiled(*tensors), torchs(act, *tensors)
    torch.testing.assert_close(y, expected)
    g = torch.ones_like(y)
    for a, b in zip(*(torch.autograd.grad(r, tensors, g) for r in (y, expected)), strict=True):
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda g, u: gates.swiglu(g, u, bits=5), "bits=5; allowed"),
        (lambda g, u: gates.swiglu(g, u, bits=0), "bits=0; allowed"),
        (lambda g, u: gates.reglu(g, u, bits=2), "bits=2.*reglu allows: bits=1"),
        (lambda g, u: gates.swiglu(g, u[:2]), r"up has the shape \(2, 5, 16\)"),
        (lambda g, u: gates.geglu(g, u, approximate="erf"), "approximate='erf'"),
        (lambda g, u: gates.swiglu(g, u, None, u), "bias without weight"),
        (lambda g, u: gate_modules.SwiGLU()(g[..., :15]), "has 15 values"),
        (lambda g, u: gate_modules.GEGLU("erf"), "approximate='erf'"),
    ],
)
def test_bad_arguments(call: Any, says: str) -> None:
    gate, up, *_ = leaves(torch.float32)
    with pytest.raises(ValueError, match=says):
        call(gate, up)


def test_gated_mlp_calls_a_down_proj_that_is_not_plain() -> None:
    block = gate_modules.GatedMLP()
    block.gate_proj, block.up_proj = nn.Linear(4, 6), nn.Linear(4, 6)
    block.down_proj, block.kind = nn.Linear(6, 4), "silu"
    x = torch.randn(3, 4)
    expected = block.down_proj(F.silu(block.gate_proj(x)) * block.up_proj(x))
    assert same(block(x), expected)
    calls: list[int] = []
    handle = block.down_proj.register_forward_hook(lambda *_: calls.append(1))
    assert same(block(x), expected) and calls == [1]
    handle.remove()
    block.down_proj = nn.Sequential(block.down_proj, nn.Tanh())
    assert same(block(x), expected.tanh())
