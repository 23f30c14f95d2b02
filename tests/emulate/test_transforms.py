"""Casts under autograd, torch.compile, vmap, fake and meta tensors, and on DTensors."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.distributed import run_pooled
from torch_cgx import emulate

ALONG = emulate.preset("mxfp4", axis=0)


def _values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["e4m3fn", "mxfp4", "nvfp4"])
def test_only_cast_ste_has_a_gradient(name):
    x = _values(6, 40).requires_grad_()
    y = emulate.cast_ste(x, name)
    assert torch.equal(y, emulate.cast(x.detach(), name))
    weight = _values(6, 40)
    (y * weight).sum().backward()
    assert torch.equal(x.grad, weight)
    for statistics in (False, True):
        found = emulate.cast(x, name, statistics=statistics)
        y = found[0] if statistics else found
        with pytest.raises(RuntimeError, match="emulate.cast_ste"):
            y.sum().backward()
    with torch.no_grad():
        assert not emulate.cast(x, name).requires_grad
    with pytest.raises(RuntimeError):  # a leaf, with gradients enabled
        emulate.cast(x, name, out=x)
        x.sum().backward()


def test_cast_ste_takes_the_key_and_has_forward_derivatives():
    format = emulate.preset("e5m2", rounding="stochastic")
    x = _values(100)
    assert torch.equal(
        emulate.cast_ste(x, format, seed=1, step=2, number=3),
        emulate.cast(x, format, seed=1, step=2, number=3),
    )
    tangent = _values(100) + 1
    y, dy = torch.func.jvp(lambda x: emulate.cast_ste(x, "e5m2"), (x,), (tangent,))
    assert torch.equal(dy, tangent) and torch.equal(y, emulate.cast(x, "e5m2"))
    gradient = torch.func.grad(lambda x: emulate.cast_ste(x, "mxfp4").square().sum())(x)
    assert torch.equal(gradient, 2 * emulate.cast(x, "mxfp4"))
    each = torch.func.vmap(torch.func.grad(lambda r: emulate.cast_ste(r, "e5m2").square().sum()))
    rows = x.reshape(4, 25)
    assert torch.equal(each(rows), 2 * emulate.cast(rows, "e5m2"))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["e4m3fn", "mxfp4"])
def test_compiled_functions_hold_the_operator(name, dynamic):
    def function(x, step):
        y = emulate.cast(x * 2, name, step=step)
        emulate.cast(y, emulate.e2m1, out=y)
        z, _ = emulate.cast(y + 1, ALONG, statistics=True)
        return emulate.cast_ste(z, name)

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (4, 7):
        x = _values(rows, 40).requires_grad_()
        expected = function(x.detach(), 3)
        found = compiled(x.detach(), 3)
        assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_a_compiled_gradient_is_the_eager_one():
    def function(x):
        return (emulate.cast_ste(x.sin(), "e4m3fn") * x).sum()

    x = _values(50).requires_grad_()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(compiled(x), x)
    (expected,) = torch.autograd.grad(function(x), x)
    assert torch.allclose(found, expected)


def test_inductor_compiles_it():
    def function(x):  # nothing that takes a C++ compiler's time
        return emulate.cast(x.t(), "e4m3fn")

    x = _values(8, 16)
    assert torch.equal(torch.compile(function, fullgraph=True)(x), function(x))


def test_vmap_of_elementwise_formats():
    x = _values(5, 7, 9)
    for dim in (0, 1, 2, -1):
        found = torch.vmap(lambda r: emulate.cast(r, "e4m3fn"), dim, dim)(x)
        assert torch.equal(found, emulate.cast(x, "e4m3fn"))
    twice = torch.vmap(torch.vmap(lambda r: emulate.cast(r, "e2m1")))(x)
    assert torch.equal(twice, emulate.cast(x, "e2m1"))
    # A tensor that is no batch.
    fixed = torch.vmap(lambda r: r + emulate.cast(x[0, 0], "e2m1"))(x[0])
    assert torch.equal(fixed, x[0] + emulate.cast(x[0, 0], "e2m1"))
    with pytest.raises(NotImplementedError, match="vmap of a cast to block .* shares scales"):
        torch.vmap(lambda r: emulate.cast(r, "mxfp4"))(x)
    with pytest.raises(NotImplementedError, match="vmap of a cast with statistics"):
        torch.vmap(lambda r: emulate.cast(r, "e2m1", statistics=True)[0])(x)


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_tensors_without_values(kind):
    mode = FakeTensorMode() if kind == "fake" else torch.device("meta")
    with mode:
        x = torch.empty(40, 6, dtype=torch.bfloat16).t()
        for format in ("e4m3fn", "mxfp4", ALONG):
            y = emulate.cast(x, format)
            assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
            z, found = emulate.cast(x, format, statistics=True)
            assert z.shape == x.shape and found.numbers.shape == (7,)
            assert emulate.cast(x, format, out=x) is x
            with pytest.raises(ValueError, match="allowed"):
                emulate.cast(x, format, out=torch.empty(6, 41, dtype=torch.bfloat16))
        with pytest.raises(TypeError, match="int64, allowed: float32"):
            emulate.cast(torch.empty(3, dtype=torch.int64), "e5m2")


@pytest.mark.parametrize("format", ["e4m3fn", "mxfp4", ALONG])
@pytest.mark.parametrize("way", ["cast", "statistics", "cast_ste"])
def test_a_new_step_is_no_new_graph(format, way):
    if isinstance(format, str):
        format = emulate.preset(format, rounding="stochastic")

    def own(x, step):
        if way == "cast_ste":
            return emulate.cast_ste(x, format, step=step)
        y = emulate.cast(x, format, step=step, statistics=way == "statistics")
        return y[0] if way == "statistics" else y

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(own, fullgraph=True, backend=counter)
    x = _values(6, 40)
    for step in (3, 4, *range(100, 112), 2**62, 2**63 + 1):
        assert torch.equal(compiled(x, step), own(x, step)), step
    # For one step, for any, and for those that have 64 bits.
    assert counter.frame_count <= 3


def _of_dtensors(rank, world_size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world_size,))
    x = _values(6, 40)
    for placement in (Shard(0), Shard(1), Replicate()):
        sharded = distribute_tensor(x, mesh, [placement])
        y = emulate.cast(sharded, "e4m3fn")
        assert y.placements == (placement,)
        assert torch.equal(y.full_tensor(), emulate.cast(x, "e4m3fn"))
    y = emulate.cast(distribute_tensor(x, mesh, [Replicate()]), "mxfp4")
    assert torch.equal(y.full_tensor(), emulate.cast(x, "mxfp4"))
    with pytest.raises(ValueError, match="placements .*Shard.* shares scales"):
        emulate.cast(distribute_tensor(x, mesh, [Shard(0)]), "mxfp4")
    random = emulate.preset("e2m1", rounding="stochastic")
    y = emulate.cast(distribute_tensor(x, mesh, [Replicate()]), random, seed=1)
    assert torch.equal(y.full_tensor(), emulate.cast(x, random, seed=1))
    with pytest.raises(ValueError, match="placements .*Shard.* random numbers .* the same in each"):
        emulate.cast(distribute_tensor(x, mesh, [Shard(0)]), random, seed=1)
    # A sum is taken before the cast.
    from torch.distributed.tensor import DTensor

    partial = DTensor.from_local(x, mesh, [Partial()])
    assert torch.equal(emulate.cast(partial, "e4m3fn").full_tensor(), emulate.cast(2 * x, "e4m3fn"))
    return True


def test_dtensors():
    assert run_pooled(_of_dtensors, 2, backend="gloo") == [True, True]
