"""`product`: sums in formats against models in NumPy, against operations of torch, and as an
operator of torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.library import opcheck

from tests.emulate.models import products
from torch_cgx import _C, emulate
from torch_cgx.emulate import Fixed, Float
from torch_cgx.emulate.gemm._operators import by_operations
from torch_cgx.emulate.gemm.product import Accumulation, product

ops = torch.ops.torch_cgx
FORMATS: dict[str, tuple[emulate.Format, products.Cast]] = {
    "e5m2": (Float(5, 2), products.floating(5, 2, 57344)),
    "fp16": (Float(5, 10), products.floating(5, 10, 65504)),
    "bf16": (Float(8, 7), products.floating(8, 7, float(torch.finfo(torch.bfloat16).max))),
    "fp32": (Float(8, 23), lambda x: x),
    "e4m3fn": (Float(4, 3, variant="fn"), products.floating(4, 3, 448, 448)),
    "e2m1": (Float(2, 1, variant="finite"), products.floating(2, 1, 6, 6)),
    "fnuz": (Float(5, 2, variant="fnuz"), products.floating(5, 2, 57344, np.nan, 16)),
    "p3109": (Float(4, 3, variant="p3109"), products.floating(4, 3, 224, bias=8)),
    "zero": (
        Float(6, 9, rounding="zero"),
        products.floating(6, 9, 2**32 - 2**22, toward_zero=True),
    ),
    "bf16 zero": (
        Float(8, 7, rounding="zero"),
        products.floating(8, 7, float(torch.finfo(torch.bfloat16).max), toward_zero=True),
    ),
    "no subnormals": (
        Float(4, 3, subnormals=False),
        products.floating(4, 3, 240, subnormals=False),
    ),
    "cpd": (Float(4, 3, variant="cpd"), products.cpd(4, 3)),
    "cpd of 4 bits": (Float(3, 0, variant="cpd"), products.cpd(3, 0)),
    "cpd of 16 bits": (Float(8, 7, variant="cpd"), products.cpd(8, 7)),
    "fixed": (Fixed(8, 4), products.fixed(8, 4)),
    "fixed zero": (Fixed(16, 9, rounding="zero"), products.fixed(16, 9, toward_zero=True)),
}
ORDERS = [(False, 0), (True, 0), (False, 4), (True, 7)]


@pytest.fixture(params=_C.cpu_levels().split(","))
def level(request):
    _C.set_cpu_level(request.param)
    yield request.param
    _C.set_cpu_level("")


def _values(*shape, seed=0, reach=3, special=False):
    """Gaussian values times powers of two. special: infinite, NaN and very large ones, too."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-reach, reach + 1, shape))
    x[rng.random(shape) < 0.02] = 0
    if special:
        for value in (np.inf, -np.inf, np.nan, 1e30, -1e30):
            x[rng.random(shape) < 0.01] = value
    return torch.from_numpy(x.astype(np.float32))


def _product(a, b, format, kahan=False, block=0):
    order = "blocked" if block else "sequential"
    return product(a, b, format, kahan=kahan, order=order, block=block or 64)


def same_bits(a, b):
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)
    )


def _check(y, model):
    """NaN and the sign of zero included."""
    wanted = torch.from_numpy(np.where(np.isnan(model), np.float32(np.nan), model))
    assert same_bits(y, wanted), (y, wanted)


# ---- vectors of CPD: V10 of seeds 3.5 ----

A = torch.tensor([[1.5, 2.25, -0.75], [0.1, 3, 1]])
B = torch.tensor([[1, 0.3], [2, -1], [0.5, 4]])
V10 = {
    (5, 2): [[6, -4], [6, 1]],
    (4, 3): [[5.5, -5], [6.5, 1]],
    (5, 10): [[5.625, -4.80078125], [6.6015625, 1.029296875]],
}


@pytest.mark.parametrize("shape", V10)
@pytest.mark.parametrize("variant", ["cpd", "ieee"])
def test_vectors(shape, variant, level):
    y = product(A, B, Float(*shape, variant=variant), kahan=True)
    assert torch.equal(y, torch.tensor(V10[shape]))


@pytest.mark.parametrize("variant", ["cpd", "ieee"])
def test_small_terms_count_with_kahans_rule(variant, level):
    a = torch.tensor([[1.0] + 32 * [0.125]])
    b = torch.ones(33, 1)
    for x, y in ((a, b), (b.T, a.T)):
        assert float(product(x, y, Float(5, 2, variant=variant), kahan=True)) == 5
        assert float(product(x, y, Float(5, 2, variant=variant))) == 1
    # Blocks' sums are large enough: 8 and 3 times 1.
    blocked = product(a[:, 1:], b[1:], Float(5, 2), order="blocked", block=8)
    assert float(blocked) == 4


# ---- models ----


@pytest.mark.parametrize("name", FORMATS)
def test_sums_are_the_models(name, level):
    format, cast = FORMATS[name]
    for seed, (rows, depth, columns) in enumerate([(5, 40, 17), (1, 23, 33), (7, 8, 1)]):
        for reach, special in ((1, False), (9, False), (3, True)):
            a = _values(rows, depth, seed=seed, reach=reach, special=special)
            b = _values(depth, columns, seed=seed + 9, reach=reach, special=special)
            for kahan, block in ORDERS:
                y = _product(a, b, format, kahan, block)
                _check(y, products.product(a.numpy(), b.numpy(), cast, kahan, block))


def test_all_sizes():
    format, cast = FORMATS["e5m2"]
    rng = np.random.default_rng(0)
    some = {tuple(rng.integers(0, 41, 3)) for _ in range(60)}
    some |= set(itertools.product((0, 1, 4), (0, 1), (0, 1, 16)))
    some |= {(63, 3, 65), (64, 3, 64), (65, 3, 63), (66, 3, 129), (2, 513, 2), (3, 512, 40)}
    for rows, depth, columns in some:
        a, b = _values(rows, depth), _values(depth, columns, seed=1)
        for kahan, block in ORDERS:
            y = _product(a, b, format, kahan, block)
            _check(y, products.product(a.numpy(), b.numpy(), cast, kahan, block))


@pytest.mark.parametrize("block", [1, 2, 15, 16, 17, 64])
def test_borders_of_blocks(block):
    format, cast = FORMATS["fp16"]
    for depth in (block - 1, block, block + 1, 2 * block, 3 * block + 1):
        a, b = _values(3, depth), _values(depth, 18, seed=1)
        y = product(a, b, format, order="blocked", block=block)
        _check(y, products.product(a.numpy(), b.numpy(), cast, block=block))


def test_hopper_sums_are_the_models(level):
    for rows, depth, columns in ((5, 0, 4), (1, 1, 1), (4, 31, 17), (3, 33, 5), (6, 300, 18)):
        for reach, special in ((0, False), (5, False), (40, False), (2, True)):
            a = _values(rows, depth, reach=reach, special=special)
            b = _values(depth, columns, seed=1, reach=reach, special=special)
            _check(product(a, b, "hopper14"), products.hopper(a.numpy(), b.numpy()))


def test_hopper_keeps_fourteen_bits():
    """1 + 2^-13 fits; what is less is lost, but for a run of 128 terms, after which it counts."""
    one = torch.ones(1, 200)
    row = torch.zeros(200, 1)
    row[0], row[1] = 1, 2.0**-13
    assert float(product(one, row, "hopper14")) == 1 + 2.0**-13
    row[1] = 2.0**-14
    assert float(product(one, row, "hopper14")) == 1
    row[1], row[128] = 0, 2.0**-14
    assert float(product(one, row, "hopper14")) == 1 + 2.0**-14
    assert float(product(one, -row, "hopper14")) == -1 - 2.0**-14
    e4m3 = emulate.cast(torch.randn(4, 4096, generator=torch.Generator().manual_seed(0)), "e4m3fn")
    exact = (e4m3.double() @ e4m3.double().T).diagonal()
    error = (product(e4m3, e4m3.T, "hopper14").diagonal().double() / exact - 1).abs().max()
    assert 1e-5 < error < 2e-3


def test_special_sums():
    ones = torch.ones(1, 3)
    for format in ("hopper14", "fp16", "bf16"):
        for values, wanted in (
            ((1, torch.inf, 2), torch.inf),
            ((1, -torch.inf, 2), -torch.inf),
            ((torch.inf, -torch.inf, 1), torch.nan),
            ((torch.nan, 1, torch.inf), torch.nan),
            ((-0.0, -0.0, -0.0), 0.0),
            ((1e-40, 1e-42, 1e-45), 0.0),
            ((1, -1, 0), 0.0),
        ):
            y = product(ones, torch.tensor(values, dtype=torch.float32)[:, None], format)
            if values[0] == 1e-40 and format == "bf16":  # has such numbers
                assert 0 < float(y) < 2e-40
                continue
            assert same_bits(y, torch.tensor([[wanted]])), (format, values)
    saturated = product(ones, torch.tensor([[torch.inf], [1.0], [torch.nan]]), "e4m3fn")
    assert saturated.isnan().all()
    assert float(product(ones, torch.full((3, 1), 300.0), "e4m3fn")) == 448


# ---- by operations of torch ----


@pytest.mark.parametrize("format", ["e5m2", "e4m3fn", "bf16", "cpd", "fixed", "hopper14"])
def test_operations_of_torch_have_the_same_bits(format):
    """As on GPUs."""
    text = format if format == "hopper14" else FORMATS[format][0].text
    for batch, special in (((), False), ((2,), True)):
        a = _values(*batch, 5, 140, reach=5, special=special)
        b = _values(140, 19, seed=1, reach=5, special=special)
        for kahan, block in ORDERS if format != "hopper14" else [(False, 0)]:
            y = ops.emulate_product(a, b, text, kahan, block)
            assert same_bits(by_operations(a, b, text, kahan, block), y)


def test_gpus_have_a_kernel():
    assert torch._C._dispatch_has_kernel_for_dispatch_key("torch_cgx::emulate_product", "CUDA")


# ---- tensors ----


def _layouts():
    yield "transposed", _values(40, 6).T, _values(19, 40, seed=1).T
    yield "every second", _values(6, 80)[:, ::2], _values(80, 38, seed=1)[::2, ::2]
    yield "reversed rows and one row", _values(6, 40).flip(0), _values(1, 19).expand(40, 19)
    yield "a column", _values(6, 1).expand(6, 40), _values(40, 19, seed=1)
    yield "negated", torch._neg_view(_values(6, 40)), torch._neg_view(_values(40, 19, seed=1))
    yield "a part", _values(9, 50)[2:8, 3:43], _values(60, 30, seed=1)[5:45, 7:26]
    yield "tall", _values(100, 40), _values(40, 3, seed=1)
    yield "tall, transposed", _values(40, 100).T, _values(3, 40, seed=1).T
    yield "batch", _values(2, 3, 6, 40), _values(2, 3, 40, 19, seed=1)
    yield "one b", _values(2, 3, 6, 40), _values(40, 19, seed=1)
    yield "one b of many dimensions", _values(2, 3, 6, 40), _values(1, 1, 40, 19, seed=1)
    yield "one a", _values(6, 40), _values(2, 3, 40, 19, seed=1)
    yield "broadcast", _values(2, 1, 6, 40), _values(3, 40, 19, seed=1)
    yield "batch last", _values(6, 40, 5).permute(2, 0, 1), _values(40, 19, 5).permute(2, 0, 1)
    yield "tall batch", _values(2, 3, 60, 40), _values(3, 40, 2, seed=1)
    yield "no matrices", _values(0, 6, 40), _values(40, 19, seed=1)
    yield "no matrices of one", _values(0, 6, 40), _values(1, 40, 19, seed=1)
    yield "no terms", _values(2, 6, 0), _values(0, 19)
    yield "no columns", _values(2, 6, 4), _values(4, 0)


@pytest.mark.parametrize("layout", list(_layouts()), ids=lambda one: one[0])
def test_layouts(layout):
    _, a, b = layout
    shape = torch.matmul(a, b).shape
    n = shape[:-2].numel()
    x = a.broadcast_to(*shape[:-2], *a.shape[-2:]).reshape(n, *a.shape[-2:])
    y = b.broadcast_to(*shape[:-2], *b.shape[-2:]).reshape(n, *b.shape[-2:])
    for format in ("e5m2", "hopper14"):
        found = product(a, b, format)
        assert found.shape == shape and found.is_contiguous()
        ones = [product(p.clone(), q.clone(), format) for p, q in zip(x, y, strict=True)]
        assert same_bits(found, torch.stack(ones).view(shape) if ones else torch.empty(shape))


@pytest.mark.parametrize("shapes", [((300, 70), (70, 200)), ((8, 64, 70), (8, 70, 64))], ids=str)
def test_any_number_of_threads(shapes):
    a, b = _values(*shapes[0]), _values(*shapes[1], seed=1)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append((product(a, b, "e5m2", kahan=True), product(a, b, "hopper14")))
    finally:
        torch.set_num_threads(before)
    assert all(same_bits(x, y) for other in found for x, y in zip(found[0], other, strict=True))


def test_subnormal_values_are_not_flushed():
    a, b = torch.full((4, 3), 2.0**-70), torch.full((3, 20), 2.0**-70)
    assert torch.set_flush_denormal(True)
    try:
        y = product(a, b * 2.0**10, "bf16")
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(y, torch.full((4, 20), 3 * 2.0**-130))


# ---- as torch uses operators ----


def test_opcheck():
    for a, b in ((_values(5, 6), _values(6, 4)), (_values(2, 1, 5, 6), _values(3, 6, 4))):
        for arguments in ((Float(5, 2).text,), (Float(5, 2).text, True, 3), ("hopper14",)):
            opcheck(ops.emulate_product.default, (a, b, *arguments))
    a.requires_grad_()
    opcheck(ops.emulate_product.default, (a, b, "hopper14"), test_utils=["test_schema"])


def test_compiled():
    how = Accumulation("fp16", kahan=True, order="blocked", block=8)
    format = Float(4, 3)

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def both(a, b):
        return product(a, b, how), product(a, b, "hopper14"), product(a, b, format) + 1

    for n in (20, 21):
        a, b = _values(3, n), _values(2, n, 5, seed=1)
        wanted = product(a, b, how), product(a, b, "hopper14"), product(a, b, format) + 1
        assert all(map(torch.equal, both(a, b), wanted))


def test_vmap():
    a, b = _values(4, 5, 6), _values(3, 6, 4, 7, seed=1)  # b: the batch is its dimension 2
    found = torch.vmap(lambda x, y: product(x, y, "e5m2"), in_dims=(0, 2))(a, b)
    assert same_bits(found, product(a[:, None], b.movedim(2, 0), "e5m2"))
    found = torch.vmap(lambda x: product(x, b[:, :, 0], "e5m2"))(a)
    assert same_bits(found, product(a[:, None], b[:, :, 0], "e5m2"))


def test_gradients_are_not_silently_missing():
    a, b = _values(3, 4).requires_grad_(), _values(4, 5)
    with pytest.raises(RuntimeError, match="use torch_cgx.emulate.matmul, which has a gradient"):
        product(a, b, "e5m2").sum().backward()
    with pytest.raises(RuntimeError, match="not differentiable"):
        product(b, b.T.clone().requires_grad_(), "hopper14").sum().backward()
    product(a, b, "fp32").sum().backward()
    assert a.grad is not None


# ---- accumulations, and what is not allowed ----


def test_accumulations_are_values():
    how = Accumulation("e5m2", kahan=True)
    assert how == Accumulation(emulate.e5m2, kahan=True) and hash(how) == hash(
        Accumulation(Float(5, 2), True)
    )
    assert how.accumulate == Float(5, 2) and not how.fp32 and Accumulation().fp32
    assert pickle.loads(pickle.dumps(how)) == how
    assert dataclasses.replace(how, order="blocked").block == 64
    a, b = _values(3, 40), _values(40, 5, seed=1)
    assert same_bits(product(a, b, how), product(a, b, "e5m2", kahan=True))
    assert same_bits(product(a, b, Accumulation()), torch.matmul(a, b))


BAD_ACCUMULATIONS = [
    ({"accumulate": "fp33"}, ValueError, "accumulate: format is 'fp33', allowed: .*hopper14"),
    ({"accumulate": 5}, TypeError, "accumulate: format is 5, allowed: a format of torch_cgx"),
    ({"accumulate": "mxfp4"}, ValueError, "accumulate=block .*allowed: a format that has a zero"),
    ({"accumulate": "e8m0"}, ValueError, "variant=scale, allowed: a format that has a zero"),
    ({"accumulate": Float(5, 2, "stochastic")}, ValueError, "draws no random numbers"),
    ({"accumulate": "e5m2", "kahan": 1}, TypeError, "kahan=1, allowed: True, False"),
    ({"accumulate": "e5m2", "order": "pairs"}, ValueError, "allowed: sequential, blocked"),
    ({"accumulate": "e5m2", "block": 0}, ValueError, "block=0, allowed: integers from 1 on"),
    ({"accumulate": "e5m2", "block": 1.5}, TypeError, "block=1.5, allowed: an int from 1 on"),
    ({"kahan": True}, ValueError, r"kahan=True with accumulate='fp32', .*Float\(8, 23\) is"),
    ({"accumulate": "hopper14", "order": "blocked"}, ValueError, "order='blocked' with accumul"),
]


@pytest.mark.parametrize("given, error, text", BAD_ACCUMULATIONS, ids=str)
def test_bad_accumulations(given, error, text):
    with pytest.raises(error, match=text):
        Accumulation(**given)


X, Y = _values(3, 4), _values(4, 5)
BAD_TENSORS = [
    (X.half(), Y, TypeError, "a is torch.float16, allowed: torch.float32"),
    (X, Y.double(), TypeError, "b is torch.float64, allowed: torch.float32"),
    (X[0], Y, ValueError, "a has 1 dimension, allowed: 2 or more"),
    (X, Y[:3], ValueError, "a has 4 columns and b 3 rows, allowed: as many"),
    (X.expand(2, 3, 4), Y.expand(3, 4, 5), ValueError, r"dimensions \[2\] and b \[3\], allowed"),
    (X.to_sparse(), Y, TypeError, "a has the layout torch.sparse_coo, allowed: torch.strided"),
]


@pytest.mark.parametrize("a, b, error, text", BAD_TENSORS, ids=[one[3] for one in BAD_TENSORS])
def test_bad_tensors(a, b, error, text):
    with pytest.raises(error, match=text):
        product(a, b, "e5m2")
    if a.layout == torch.strided:
        with pytest.raises(error, match=text):
            product(a.to("meta"), b.to("meta"), "e5m2")


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((Float(5, 2).text, False, -1), "block is -1, allowed: 0 or more"),
        (("hopper14", True), "accumulate is hopper14, allowed with it: kahan=False, block=0"),
        ((emulate.mxfp4.text,), "accumulate is block .*, allowed: a format that has a zero"),
        ((emulate.e8m0.text,), "variant=scale, allowed: a format that has a zero"),
        (("float rounding=stochastic",), "draws no random numbers"),
        (("fp33",), "fp33"),
    ],
)
def test_bad_arguments_of_the_operator(arguments, text):
    for a, b in ((X, Y), (X.to("meta"), Y.to("meta"))):
        with pytest.raises(ValueError, match=text):
            ops.emulate_product(a, b, *arguments)
