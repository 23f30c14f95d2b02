"""`functional.linear` and `activations.Linear`: values, exact gradients, what is kept, errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.activations.kept import kept, same
from tests.activations.projection.cases import EVERY, inputs
from torch_cgx import activations
from torch_cgx.activations.functional import linear
from torch_cgx.activations.projection.function import METHODS

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def layer(width: int = 24, out: int = 8, **options: Any) -> activations.Linear:
    return activations.Linear(width, out, **{"keep": 0.5, **options})


def gradients(y: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    return torch.autograd.grad(y, of, dy)


@pytest.mark.parametrize(("method", "by"), EVERY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_result_and_other_gradients_are_torchs(method: Any, by: Any, dtype: torch.dtype) -> None:
    x, weight, bias, _ = (one.requires_grad_() for one in inputs(dtype=dtype))
    y = linear(x, weight, bias, keep=0.5, method=method, by=by)
    expected = F.linear(x, weight, bias)
    assert same(y, expected)
    dx, dw, db = gradients(y, x, weight, bias)
    ex, ew, eb = gradients(expected, x, weight, bias)
    assert same(dx, ex) and same(db, eb)
    assert dw.dtype == dtype and dw.shape == weight.shape and bool(dw.isfinite().all())
    assert not torch.equal(dw, ew)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(40, 24), (5, 8, 24), (2, 4, 5, 24)])
def test_dimensions_and_strides(method: str, shape: tuple[int, ...]) -> None:
    """Views give what their copies give."""
    one = layer(method=method).double()
    x = torch.randn(*shape[::-1], dtype=torch.float64).permute(*reversed(range(len(shape))))
    assert x.shape == shape and not x.is_contiguous()
    found = []
    for each in (x, x.contiguous()):
        each = each.detach().requires_grad_()
        torch.manual_seed(4)
        found.append(gradients(one(each), each, one.weight, one.bias))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    expanded = torch.randn(24, dtype=torch.float64).expand(40, 24)
    gradients(one(expanded), one.weight)


def test_one_row_and_all_rows() -> None:
    one = layer(keep=1)
    x = torch.randn(9, 24)
    (exact,) = gradients(F.linear(x, one.weight, one.bias), one.weight)
    assert same(gradients(one(x), one.weight)[0], exact)
    every = layer(rows=9)
    every.load_state_dict(one.state_dict())
    assert same(gradients(every(x), every.weight)[0], exact)
    vector = layer(rows=1, method="gaussian")
    (found,) = gradients(vector(torch.randn(24)), vector.weight)
    assert found.shape == (8, 24)
    assert one(torch.empty(0, 24)).shape == (0, 8)
    assert gradients(one(torch.empty(0, 24)), one.weight)[0].eq(0).all()


@pytest.mark.parametrize(
    ("method", "by", "expected"),
    [
        ("gaussian", "batch", 12 * 64 * 4 + 8),  # V15, and the key
        ("wta", "batch", 13 * 64 * 4 + 12 * 4),  # the mean, and the numbers of the rows
        ("rows", "features", 128 * 6 * 4 + 6 * 4),
        ("srht", "features", 128 * 6 * 4 + 8),
    ],
)
def test_v15_kept_bytes(method: Any, by: Any, expected: int) -> None:
    one = activations.Linear(64, 32, keep=0.1, method=method, by=by)
    x = torch.randn(128, 64, requires_grad=True)
    found, nbytes = kept(lambda: one(x))
    assert nbytes == expected + one.weight.nbytes
    report = activations.memory(nn.Sequential(one), x)
    assert report.total == expected and set(report.by_kind) == {"input of linear"}
    one.weight.requires_grad_(False)
    assert kept(lambda: one(x))[1] == one.weight.nbytes
    with torch.no_grad():
        assert kept(lambda: one(x))[1] == 0
    del found


def test_layers_of_one_tensor_share_what_is_kept() -> None:
    first = nn.Linear(24, 24)
    query, key, value = (layer() for _ in range(3))
    other = layer(keep=0.25)
    x = torch.randn(64, 24)

    def forward() -> Tensor:
        hidden = first(x)
        return torch.cat([query(hidden), key(hidden), value(hidden), other(hidden)], -1)

    held = [p for one in (first, query, key, value, other) for p in one.parameters()]
    row, number = 24 * 4, 4
    y, nbytes = kept(forward, [x, *held])
    assert nbytes == (32 + 1 + 16 + 1) * row + (32 + 16) * number  # with the means
    # The three layers estimate from the same rows; the next step draws other rows.
    dy = torch.ones_like(y)
    alike = torch.autograd.grad(y, [query.weight, key.weight], dy)
    assert same(alike[0], alike[1])
    with activations.compress_saved(min_size=256) as saving:
        forward()
    assert saving.bytes_kept < 0.2 * saving.bytes_saved
    torch.manual_seed(0)
    hidden = first(x)
    before = gradients(query(hidden), query.weight)[0]
    again = gradients(query(hidden), query.weight)[0]
    assert not torch.equal(before, again)  # a backward pass lies between
    leaf = torch.randn(64, 24)
    a, b = query(leaf), query(leaf)
    assert not torch.equal(gradients(a, query.weight)[0], gradients(b, query.weight)[0])
    hidden = first(x)
    a = query(hidden)
    hidden.mul_(1.0)  # changed since
    b = query(hidden)
    assert not torch.equal(gradients(a, query.weight)[0], gradients(b, query.weight)[0])


def test_saved_samples_are_compressed() -> None:
    """They are small against the largest tensor, and have no history, as statistics do."""
    net = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64))
    activations.convert(net, linear=0.2, pattern="0")
    with activations.compress_saved() as saving:
        net(torch.randn(256, 64)).sum().backward()
    exact = 52 * 64 * 4 + 256 * 1024 * 4 * 2
    assert saving.bytes_saved == exact and saving.bytes_kept < exact / 7


def test_autocast() -> None:
    one, plain = layer(), nn.Linear(24, 8)
    plain.load_state_dict(one.state_dict())
    x = torch.randn(40, 24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = one(x), plain(x)
    assert same(y, expected)
    dx, dw = gradients(y, x, one.weight)
    assert same(dx, gradients(expected, x, plain.weight)[0]) and dw.dtype == torch.float32
    wide = torch.randn(40, 24, dtype=torch.float64)
    double = layer().double()
    with torch.autocast("cpu", torch.bfloat16):
        assert double(wide).dtype == torch.float64
    _, nbytes = kept(lambda: _under_autocast(one, x), [one.weight])
    # The sample, its rows, and the weight, all of it in 16 bits.
    assert nbytes == 21 * 24 * 2 + 20 * 4 + 8 * 24 * 2


def _under_autocast(module: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return module(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_repeat_the_draw(reentrant: bool) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(layer(24, 24), nn.GELU(), nn.Dropout(0.5), layer(24, 8))
    x = torch.randn(40, 24, requires_grad=True)
    found = []
    for inside in (net, lambda x: checkpoint(net, x, use_reentrant=reentrant)):
        net.zero_grad()
        torch.manual_seed(5)
        inside(x).square().sum().backward()
        found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_evaluation_draws_no_numbers() -> None:
    one = layer().eval()
    before = torch.get_rng_state()
    with torch.no_grad():
        one(torch.randn(40, 24, generator=torch.Generator()))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("method", "by"), EVERY)
def test_compile(method: Any, by: Any) -> None:
    torch.compiler.reset()  # each case compiles the same functions for other settings
    one = layer(method=method, by=by)
    f = torch.compile(one, fullgraph=True, backend="aot_eager")
    x = torch.randn(40, 24, requires_grad=True)
    y = f(x)
    torch.testing.assert_close(y, F.linear(x, one.weight, one.bias))
    found = torch.stack([gradients(f(x), one.weight)[0] for _ in range(200)])
    assert not torch.equal(found[0], found[1])
    exact = gradients(F.linear(x, one.weight), one.weight)[0]
    along = (found * exact).sum((1, 2)) / exact.square().sum()
    assert abs(float(along.mean()) - 1) < 5 * float(along.std()) / 200**0.5
    f(torch.randn(30, 24))  # another size


def test_compiled_graphs_that_compute_again_keep_the_draw() -> None:
    """torch.compile may compute everything again in backward, but not the key."""
    torch.compiler.reset()
    net: Any = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), layer(method="gaussian"))
    x = torch.randn(40, 24)
    (exact,) = gradients(F.linear(net[1](net[0](x)), net[2].weight), net[2].weight)

    def check(call: Any) -> None:
        found = torch.stack([gradients(call(x), net[2].weight)[0] for _ in range(200)])
        along = (found * exact).sum((1, 2)) / exact.square().sum()
        assert abs(float(along.mean()) - 1) < 5 * float(along.std()) / 200**0.5

    with torch._functorch.config.patch(activation_memory_budget=0):
        check(torch.compile(net, fullgraph=True, backend="aot_eager"))
    torch.compiler.reset()

    def again(x: Tensor) -> Any:
        return checkpoint(net, x, use_reentrant=False)

    check(torch.compile(again, fullgraph=True, backend="aot_eager"))


def test_operators_on_fake_tensors() -> None:
    x, key = torch.randn(40, 24), torch.tensor(3)
    ops = torch.ops.torch_cgx
    for method in METHODS[:2]:
        torch.library.opcheck(ops.projection_choose, (x, key, 7, method))
    for method in METHODS[2:]:
        torch.library.opcheck(ops.projection_project, (x, key, 7, method))
        torch.library.opcheck(ops.projection_back, (x, key, 50, method))


def test_copies_and_state_dicts() -> None:
    one = layer(method="srht", by="features")
    assert list(one.state_dict()) == ["weight", "bias"]
    other = copy.deepcopy(one)
    assert repr(other) == repr(one)
    assert repr(one) == (
        "Linear(in_features=24, out_features=8, bias=True, keep=0.5, method='srht', by='features')"
    )
    assert "rows=3" in repr(layer(rows=3))
    meta = layer(device="meta")
    assert meta(torch.empty(40, 24, device="meta")).shape == (40, 8)


def test_second_derivatives_are_refused_by_name() -> None:
    one = layer()
    x = torch.randn(40, 24, requires_grad=True)
    (dx,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="linear with keep cannot be differentiated twice"):
        dx.sum().backward()


def test_functions_of_torch_func_are_exact() -> None:
    one = layer()
    x = torch.randn(40, 24)
    parameters = dict(one.named_parameters())
    call = torch.func.grad(lambda p: torch.func.functional_call(one, p, (x,)).square().sum())
    found = call(parameters)["weight"]
    (expected,) = torch.autograd.grad(F.linear(x, one.weight, one.bias).square().sum(), one.weight)
    torch.testing.assert_close(found, expected)


BAD = [
    ({"keep": 0}, ValueError, r"keep=0; allowed: numbers above 0, to 1"),
    ({"keep": 1.5}, ValueError, r"keep=1.5; allowed"),
    ({"keep": "half"}, TypeError, r"keep='half'; allowed"),
    ({"keep": True}, TypeError, r"keep=True; allowed"),
    ({"keep": float("nan")}, ValueError, r"keep=nan; allowed"),
    (
        {"method": "dct"},
        ValueError,
        r"method='dct'; allowed: wta, rows, gaussian, rademacher",
    ),
    ({"by": "rows"}, ValueError, r"by='rows'; allowed: batch, features"),
    ({"rows": 0}, ValueError, r"rows=0; allowed: integers from 1"),
    ({"rows": 2.0}, TypeError, r"rows=2.0; allowed"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_settings(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        layer(**options)
    with pytest.raises(error, match=text):
        linear(torch.zeros(40, 24), torch.zeros(8, 24), **options)


def test_a_keep_that_keeps_nothing() -> None:
    one = layer(keep=0.1)
    text = r"keep=0.1 of 9 rows keeps none; allowed: a keep of at least 0.111, more rows"
    with pytest.raises(ValueError, match=text):
        one(torch.zeros(9, 24))
    assert (
        kept(lambda: one(torch.randn(10, 24)), [one.weight])[1] == 2 * 24 * 4 + 4
    )  # a row and the mean
    text = r"keep=0.04 of 24 features keeps none; allowed: a keep of at least 0.0417"
    with pytest.raises(ValueError, match=text):
        layer(keep=0.04, by="features")(torch.zeros(9, 24))
    # Parts of a row are not lost to rounding: 0.29 * 100 is 28.999999999999996.
    assert kept(lambda: layer(keep=0.29)(torch.randn(100, 24)))[1] == 30 * 24 * 4 + 29 * 4


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.zeros(4, 24, dtype=torch.int64), "input is torch.int64; allowed: float32"),
        (torch.zeros(4, 24).to_sparse(), "input is torch.sparse_coo; allowed: strided"),
        ([1.0], "input is of type list; allowed: torch.Tensor"),
    ],
)
def test_bad_inputs(x: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        layer()(x)


def test_convert_replaces_linear_layers() -> None:
    net: Any = nn.Sequential(
        nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4))
    )
    net[2].weight = net[0].weight
    calls: list[int] = []
    net[0].register_forward_hook(lambda *_: calls.append(1))
    before, x = list(net.parameters()), torch.randn(10, 8)
    expected, state = net(x), list(net.state_dict())
    changed = activations.convert(net, linear=0.5, pattern=r"^[02]$")
    assert [row.name for row in changed.replaced] == ["0", "2"]
    assert type(net[3][0]) is nn.Linear and type(net[0]) is activations.Linear
    assert net[2].weight is net[0].weight and all(
        a is b for a, b in zip(before, net.parameters(), strict=True)
    )
    assert torch.equal(net(x), expected) and calls == [1, 1] and list(net.state_dict()) == state
    again = activations.convert(net, linear=0.5)
    assert [row.name for row in again.replaced] == ["3.0"]
    assert {row.reason for row in again.left} == {"it is converted already"}
    again.restore()
    changed.restore()
    assert all(type(one) is not activations.Linear for one in net.modules())
    options = {"keep": 0.25, "method": "rademacher", "by": "features"}
    activations.convert(net, linear=options)
    assert net[0].method == "rademacher" and net[0].keep == 0.25 and net[0].by == "features"


def test_convert_leaves_what_is_not_called() -> None:
    encoder = nn.TransformerEncoderLayer(24, 2, 48, batch_first=True)
    changed = activations.convert(encoder, linear=0.5)
    assert [row.name for row in changed.replaced] == ["linear1", "linear2"]
    assert [(row.name, row.reason) for row in changed.left] == [
        ("self_attn.out_proj", "its MultiheadAttention takes the weights and does not call it")
    ]
    x = torch.randn(3, 20, 24)
    encoder(x).sum().backward()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"linear": 0.2, "pattern": "nothing"},
            ValueError,
            "matches no linear layer; the model has",
        ),
        ({"linear": 0.2, "pattern": "("}, ValueError, "is not a regular expression"),
        ({"pattern": "0"}, ValueError, "pattern='0' without linear"),
        ({"linear": 2}, ValueError, "linear: keep=2; allowed"),
        ({"linear": "20 %"}, TypeError, "linear='20 %'; allowed"),
        ({"linear": {"part": 0.2}}, ValueError, r"linear has \['part'\]; allowed: keep, method"),
        ({"linear": {"method": "dft"}}, ValueError, "linear: method='dft'; allowed"),
    ],
)
def test_convert_refuses(options: dict[str, Any], error: type[Exception], text: str) -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(error, match=text):
        activations.convert(net, **options)
    assert type(net[0]) is nn.Linear
