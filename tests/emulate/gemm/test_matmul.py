"""emulate.matmul: its three products, batches, autocast, torch.compile; sums by CPD's vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.emulate.gemm.operands import CURRENT, FORMATS, PARTS, by_part, cast, draw
from torch_cgx import emulate
from torch_cgx.emulate import Float

RANDOM = emulate.preset("e2m1", rounding="stochastic")


def results(a, b, grad, **options):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = emulate.matmul(a, b, **options)
    y.backward(grad)
    return y.detach(), a.grad, b.grad


def expected(a, b, grad, formats):
    """Of two dimensions, by numpy: b transposed is the weight [N, K], as a layer has it."""
    of = by_part(formats)

    def product(x, y):
        return torch.from_numpy(np.matmul(x.numpy(), y.numpy()))

    y = product(cast(a, of["forward"]["input"], 1), cast(b.T, of["forward"]["weight"], 1).T)
    da = product(cast(grad, of["dgrad"]["gradient"], 1), cast(b.T, of["dgrad"]["weight"], 0))
    db = product(cast(a, of["wgrad"]["input"], 0).T, cast(grad, of["wgrad"]["gradient"], 0))
    return y, da, db


@pytest.mark.parametrize("formats", [*FORMATS.values(), PARTS, None], ids=[*FORMATS, "parts", "-"])
def test_two_dimensions(formats):
    a, b, grad = draw(21, 40), draw(40, 24, seed=1), draw(21, 24, seed=2)
    found = results(a, b, grad, inputs=formats)
    for one, wanted in zip(found, expected(a, b, grad, formats), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "left, right",
    [((3, 5, 9, 40), (3, 5, 40, 7)), ((5, 9, 40), (3, 1, 40, 7)), ((2, 9, 40), (40, 7))],
)
def test_batches_broadcast_as_torchs(left, right):
    """Each matrix is a product of its own; where an operand is shared, its gradients are summed."""
    a, b = draw(*left), draw(*right, seed=1)
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    grad = draw(*shape, 9, 7, seed=2)
    found = results(a, b, grad, inputs="mxfp4")
    every = [
        expected(*one, "mxfp4")
        for one in zip(
            a.expand(*shape, 9, 40).reshape(-1, 9, 40),
            b.expand(*shape, 40, 7).reshape(-1, 40, 7),
            grad.reshape(-1, 9, 7),
            strict=True,
        )
    ]
    sizes = [(*shape, 9, 7), (*shape, 9, 40), (*shape, 40, 7)]
    wanted = [
        torch.stack(list(one)).reshape(size)
        for one, size in zip(zip(*every, strict=True), sizes, strict=True)
    ]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.sum_to_size(one.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "formats",
    [
        *FORMATS.values(),
        emulate.preset("nvfp4", rounding="stochastic"),
        emulate.Integer(8, per="channel"),
    ],
    ids=str,
)
def test_a_layer_is_the_product_with_its_weight_transposed(formats):
    layer = emulate.QuantLinear(40, 24, False, dtype=torch.float64, inputs=formats, seed=5)
    a, grad = draw(21, 40).requires_grad_(), draw(21, 24, seed=2)
    y = layer(a)
    y.backward(grad)
    found = results(a.detach(), layer.weight.detach().T, grad, inputs=formats, seed=5)
    for one, other in zip(found, (y, a.grad, layer.weight.grad.T), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_vectors():
    a, b = draw(3, 40), draw(40, 7, seed=1)
    whole = emulate.matmul(a, b, "mxfp4")
    assert torch.equal(emulate.matmul(a[1], b, "mxfp4"), emulate.matmul(a[1:2], b, "mxfp4")[0])
    assert torch.equal(
        emulate.matmul(a, b[:, 2], "mxfp4"), emulate.matmul(a, b[:, 2:3], "mxfp4")[:, 0]
    )
    assert emulate.matmul(a[1], b[:, 2], "mxfp4").shape == ()
    torch.testing.assert_close(
        emulate.matmul(a[1], b[:, 2], "mxfp4"), whole[1, 2], rtol=1e-12, atol=0
    )
    for shapes in (((0, 40), (40, 7)), ((3, 0), (0, 7)), ((3, 40), (40, 0))):
        x, y = torch.zeros(shapes[0]), torch.zeros(shapes[1])
        assert torch.equal(emulate.matmul(x, y, "mxfp4"), x @ y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    a, b, grad = (
        draw(21, 40, dtype=dtype),
        draw(40, 24, seed=1, dtype=dtype),
        draw(21, 24, dtype=dtype),
    )
    wide = expected(a.double(), b.double(), grad.double(), "e4m3fn")
    for one, wanted in zip(results(a, b, grad, inputs="e4m3fn"), wide, strict=True):
        assert one.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(one.double(), wanted, rtol=2 * eps, atol=eps)


def test_autocast_is_as_torchs():
    a, b = draw(21, 40, dtype=torch.float32), draw(40, 24, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = emulate.matmul(a, b, "mxfp4")
        assert found.dtype == torch.matmul(a, b).dtype == torch.bfloat16
    assert torch.equal(found, emulate.matmul(a.bfloat16(), b.bfloat16(), "mxfp4"))
    found = results(a, b, torch.ones(21, 24), inputs="mxfp4")
    assert {one.dtype for one in found} == {torch.float32}


def test_random_numbers_are_of_the_seed_the_step_and_the_operand():
    a, eye = draw(40, 40), torch.eye(40, dtype=torch.float64)
    found = [
        emulate.matmul(a, eye, {"input": RANDOM}, seed=seed, step=step)
        for seed, step in ((1, 2), (1, 2), (1, 3), (2, 2), (2**64 - 1, 2**63))
    ]
    assert torch.equal(found[0], found[1])
    for i, one in enumerate(found[1:]):
        for other in found[1:][:i]:
            assert not torch.equal(one, other)
    turned = emulate.matmul(eye, a, {"weight": RANDOM}, seed=1, step=2)
    assert not torch.equal(found[0], turned)


# ---- sums in a format: CPD's vectors, V10 of seeds.md 3.5 ----

CPD52, CPD43, CPD510 = (Float(e, m, variant="cpd") for e, m in ((5, 2), (4, 3), (5, 10)))


def test_stagnation_and_kahans_rule():
    a, b = torch.ones(1, 33), torch.tensor([[1.0], *[[0.125]] * 32])
    assert emulate.matmul(a, b, accumulate=CPD52).item() == 1
    assert emulate.matmul(a, b, accumulate=CPD52, kahan=True).item() == 5
    assert emulate.matmul(a, b, accumulate=CPD52, order="blocked", block=8).item() != 1


@pytest.mark.parametrize(
    "format, wanted",
    [
        (CPD52, [[6, -4], [6, 1]]),
        (CPD43, [[5.5, -5], [6.5, 1]]),
        (CPD510, [[5.625, -4.80078125], [6.6015625, 1.029296875]]),
    ],
    ids=["5,2", "4,3", "5,10"],
)
def test_a_small_product(format, wanted):
    """By the layer, too, whose weight is b's transpose."""
    a = torch.tensor([[1.5, 2.25, -0.75], [0.1, 3, 1]])
    b = torch.tensor([[1, 0.3], [2, -1], [0.5, 4]])
    assert emulate.matmul(a, b, accumulate=format, kahan=True).tolist() == wanted
    layer = emulate.QuantLinear(3, 2, bias=False, accumulate=format, kahan=True)
    layer.weight.data.copy_(b.T)
    assert layer(a).tolist() == wanted


def _summed(a, b, format):
    """Term after term, by a loop."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = emulate.cast(total + emulate.cast(a[:, k, None] * b[None, k], format), format)
    return total


@pytest.mark.parametrize("what", ["matmul", "layer"])
def test_all_three_products_add_in_the_format(what):
    format = emulate.preset("fp16")
    a, w, grad = (
        draw(*s, seed=i, dtype=torch.float32) for i, s in enumerate(((9, 13), (5, 13), (9, 5)))
    )
    inputs, sums = "e4m3fn", {"accumulate": format}
    if what == "matmul":
        y, da, db = results(a, w.T, grad, inputs=inputs, **sums)
        dw = db.T
    else:
        layer = emulate.QuantLinear(13, 5, bias=False, inputs=inputs, **sums)
        layer.weight.data.copy_(w)
        x = a.clone().requires_grad_()
        y = layer(x)
        y.backward(grad)
        da, dw = x.grad, layer.weight.grad
    aq, wq, gq = (emulate.cast(one, inputs) for one in (a, w, grad))
    assert torch.equal(y, _summed(aq, wq.T, format))
    assert torch.equal(da, _summed(gq, wq, format))
    assert torch.equal(dw, _summed(gq.T, aq, format))
    assert not torch.equal(y, aq @ wq.T)


# ---- torch.compile ----


@pytest.mark.parametrize(
    "inputs, sums",
    [
        ("mxfp4", {}),
        (emulate.preset("mxfp4", rounding="stochastic"), {}),
        ({"input": "e4m3fn", "weight": CURRENT, "gradient": RANDOM}, {}),
        (None, {"accumulate": Float(5, 10), "kahan": True, "order": "blocked", "block": 4}),
        (
            {"forward": {"input": "mxfp4"}, "wgrad": {"gradient": RANDOM}},
            {"accumulate": "hopper14"},
        ),
    ],
    ids=["name", "format", "dict", "sums", "both"],
)
def test_a_compiled_product_has_the_same_bits(inputs, sums):
    torch._dynamo.reset()

    def function(a, b, step):
        return emulate.matmul(a.sin(), b, inputs, step=step, seed=3, **sums)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for step in (0, 5, 6, 7):
        found = []
        for one in (function, compiled):
            a, b = draw(3, 9, 40, dtype=torch.float32), draw(40, 7, seed=1, dtype=torch.float32)
            y = one(a.requires_grad_(), b.requires_grad_(), step)
            y.square().sum().backward()
            found.append((y, a.grad, b.grad))
        for eager, traced in zip(*found, strict=True):
            torch.testing.assert_close(eager, traced, rtol=1e-6, atol=1e-6)
        assert torch.equal(found[0][0], found[1][0])
    assert counter.frame_count <= 3  # for one step, and for any


# ---- bad input ----


@pytest.mark.parametrize(
    "given, error, text",
    [
        ({"inputs": "mxfp5"}, ValueError, "format is 'mxfp5', allowed: fp16, bf16"),
        ({"inputs": {"hadamard": 16}}, ValueError, "inputs has accumulate or hadamard; allowed"),
        (
            {"inputs": {"accumulate": "fp16"}},
            ValueError,
            "inputs has accumulate or hadamard; allow",
        ),
        (
            {"inputs": {"format": "e4m3fn", "scale": "delayed"}},
            ValueError,
            "forward.input has scale='delayed'.* allowed: scale='current', or a layer",
        ),
        (
            {"accumulate": "mxfp4"},
            ValueError,
            "accumulate=block .* allowed: a format that has a zero",
        ),
        ({"accumulate": RANDOM}, ValueError, "draws no random numbers"),
        ({"order": "sorted"}, ValueError, "order='sorted', allowed: sequential, blocked"),
        ({"order": "blocked"}, ValueError, "order='blocked' with accumulate='fp32'"),
        ({"accumulate": "fp16", "block": 0}, ValueError, "block=0, allowed: integers from 1 on"),
        (
            {"accumulate": "hopper14", "kahan": True},
            ValueError,
            "kahan=True with accumulate='hopper",
        ),
        ({"seed": -1}, ValueError, r"seed is -1, allowed: 0 to 2\*\*64 - 1"),
        ({"step": 1.5}, TypeError, "step is 1.5, allowed: an int from 0"),
    ],
)
def test_arguments(given, error, text):
    with pytest.raises(error, match=text):
        emulate.matmul(torch.ones(2, 3), torch.ones(3, 2), **given)


@pytest.mark.parametrize(
    "a, b, text",
    [
        ([1.0], torch.ones(1), "a is of type list, allowed: a torch.Tensor"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.int64), "b.dtype is torch.int64, allowed"),
        (torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2), "a.dtype is torch.complex64"),
        (torch.ones(2, 2).to(torch.float8_e5m2), torch.ones(2, 2), "a.dtype is torch.float8_e5m2"),
    ],
)
def test_tensors(a, b, text):
    with pytest.raises(TypeError, match=text):
        emulate.matmul(a, b, "e4m3fn")


@pytest.mark.parametrize(
    "a, b",
    [
        (torch.ones(2, 3), torch.ones(2, 3)),
        (torch.ones(3), torch.ones(2)),
        (torch.ones(()), torch.ones(2)),
        (torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)),
        (torch.ones(2, 2, 3), torch.ones(3, 3, 2)),
    ],
)
def test_shapes_and_types_that_differ_are_torchs_errors(a, b):
    with pytest.raises(RuntimeError) as wanted:
        torch.matmul(a, b)
    with pytest.raises(RuntimeError) as found:
        emulate.matmul(a, b, "e4m3fn")
    assert str(found.value) == str(wanted.value)
