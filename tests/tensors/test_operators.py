"""Operators as torch sees them: opcheck, tracing, export, vmap, autograd, and errors."""

from __future__ import annotations

import io
import itertools
import pickle

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck

from tests.oracle import splitmix64
from torch_cgx import _operators, codecs
from torch_cgx.codecs import MaxMin, Rotated

ops = torch.ops.torch_cgx
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODECS = (
    *map(codecs.make, codecs.names()),
    MaxMin(1, 5),
    MaxMin(3, 100, skip_incomplete_buckets=True),
    MaxMin(8, 1 << 20, "stochastic", 3, skip_incomplete_buckets=True),
    Rotated(3, 4096, "unbiased"),
)
BACKEND = "aot_eager"  # everything of torch.compile but its code generator
KEY = {"step": 3, "number": 2, "rank": 1, "index": 4096}


def _values(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)


# ---- what they compute ----


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_roundtrip_is_the_decoding_of_the_encoding(codec: codecs.Codec) -> None:
    unit = max(getattr(codec, "bucket_size", 0), getattr(codec, "block_size", 0), 8)
    borders = {k * unit + d for k in (1, 2, 3) for d in (-1, 0, 1)} if unit < 8192 else {9000}
    for dtype in DTYPES:
        for n in (*range(0, 401, 1 if dtype == torch.float32 else 37), *borders, 4097, 140_001):
            x = _values(n, dtype)
            key = {"sequence": 3, "number": 2, "rank": 1, "index": 4096}
            wanted = codec.decode(codec.encode(x, **key), torch.empty_like(x))
            got = codec.roundtrip(x, **key)
            assert torch.equal(got, wanted), (dtype, n)
            out = x.clone()
            assert codec.roundtrip(out, **key, out=out) is out
            assert torch.equal(out, wanted), (dtype, n, "in place")


def test_a_roundtrip_takes_any_strides_and_overlaps() -> None:
    codec, x = MaxMin(4, 16), _values(120).view(12, 10)
    for view in (x.t(), x[::2, 1:], x.expand(2, 12, 10), torch._neg_view(x)):
        assert torch.equal(codec.roundtrip(view), codec.roundtrip(view.clone()).view(view.shape))
    wanted = codec.roundtrip(x[1:].clone())
    memory = x.clone()
    codec.roundtrip(memory[1:], out=memory[:-1])
    assert torch.equal(memory[:-1], wanted)
    array = np.random.default_rng(0).standard_normal(100_001, np.float32)
    first, second = torch.from_numpy(array[:-1]), torch.from_numpy(array[1:])  # two storages
    wanted = codec.roundtrip(first.clone())
    assert torch.equal(codec.roundtrip(first, out=second), wanted)
    with pytest.raises(ValueError, match="whose elements share memory"):
        codec.roundtrip(x[:1].expand(12, 10), out=x[:1].expand(12, 10))
    negated = torch._neg_view(torch.empty(12, 10))  # torch's own way of writing it is not there
    assert torch.equal(codec.roundtrip(x, out=negated), codec.roundtrip(x))
    payload, whole = codec.encode(x), codec.decode(codec.encode(x), numel=120).view(12, 10)
    assert torch.equal(codec.decode(payload, negated.fill_(1), add=True), whole + 1)
    assert torch.equal(codec.decode(payload, negated), whole) and negated.is_neg()


def test_the_key_of_random_numbers() -> None:
    """Step, tensor number, rank and element: each makes other numbers, and a run that is cut has
    those of the whole.
    """
    codec, x = MaxMin(2, 64, "stochastic", 5), _values(6400)
    whole = codec.roundtrip(x, sequence=7, number=3, rank=2, index=640)
    again = codec.roundtrip(x, sequence=7, number=3, rank=2, index=640)
    assert torch.equal(whole, again)
    cut = [
        codec.roundtrip(x[i : i + 640], sequence=7, number=3, rank=2, index=640 + i)
        for i in range(0, 6400, 640)
    ]
    assert torch.equal(torch.cat(cut), whole)
    others = [
        {"sequence": 8, "number": 3, "rank": 2, "index": 640},
        {"sequence": 7, "number": 4, "rank": 2, "index": 640},
        {"sequence": 7, "number": 3, "rank": 3, "index": 640},
        {"sequence": 7, "number": 3, "rank": 2, "index": 704},
        {"sequence": 7, "number": 0, "rank": 2, "index": 640},
    ]
    made = [whole, *(codec.roundtrip(x, **key) for key in others)]
    for a, b in itertools.combinations(made, 2):
        assert 0.2 < (a != b).double().mean() < 0.8
    # docs/numerics.md: the sequence number that stands for a step of a tensor.
    stands = splitmix64(splitmix64(~3 % 2**64) ^ 7)
    assert torch.equal(codec.roundtrip(x, sequence=stands, rank=2, index=640), whole)
    last = codec.encode(x, sequence=2**64 - 1, number=2**63 - 1, rank=2**31 - 1)
    assert torch.equal(last, ops.encode(x, codec._text, step=-1, number=2**63 - 1, rank=2**31 - 1))


# ---- as torch checks them ----


@pytest.mark.parametrize("codec", [CODECS[0], MaxMin(1, 5), Rotated(3)], ids=str)
def test_opcheck(codec: codecs.Codec) -> None:
    text = codec._text
    for n in (1, 700):
        x = _values(n, torch.bfloat16 if n == 1 else torch.float32)
        payload = codec.encode(x)
        opcheck(ops.encode.default, (x, text), KEY)
        opcheck(ops.encode.out, (x, text), {**KEY, "out": torch.empty_like(payload)})
        opcheck(ops.decode.default, (payload, text, n), {"dtype": x.dtype})
        opcheck(ops.decode.out, (payload, text), {"out": torch.empty_like(x)})
        opcheck(ops.decode_add.default, (payload, text), {"out": torch.zeros_like(x)})
        opcheck(ops.roundtrip.default, (x.view(-1, 1), text), KEY)
        opcheck(ops.roundtrip.out, (x, text), {**KEY, "out": torch.empty_like(x)})


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_sizes_of_payloads_without_values(codec: codecs.Codec) -> None:
    unit = max(getattr(codec, "bucket_size", 0), getattr(codec, "block_size", 0))
    for dtype, n in itertools.product(
        DTYPES, (*range(401), unit - 1, unit, unit + 1, 3 * unit, 2**40)
    ):
        if n >= 0:
            size = codec.encoded_bytes(n, dtype)
            assert _operators.payload_bytes(codec._text, n, dtype) == size
    assert codec.encode(torch.empty(700, device="meta")).shape == (codec.encoded_bytes(700),)


def _both(codec: codecs.Codec, x: torch.Tensor, step: int) -> torch.Tensor:
    payload = codec.encode(x, sequence=step, number=1)
    total = codec.decode(payload, numel=x.numel(), dtype=x.dtype).view(x.shape)
    total = total + codec.roundtrip(x, sequence=step, number=1)
    codec.decode(payload, total, add=True)
    out = torch.empty_like(payload)
    codec.encode(x, out=out)
    return codec.decode(out, total, dtype=x.dtype, add=True)


@pytest.mark.parametrize("codec", [MaxMin(2, 64, "stochastic", 5), Rotated(4), codecs.Half()])
def test_compile_with_any_size_and_step(codec: codecs.Codec) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(BACKEND)
    compiled = torch.compile(_both, fullgraph=True, backend=counter, dynamic=True)
    for step, n in ((5, 1000), (6, 999), (7, 64), (2**63 + 1, 2000)):
        x = _values(n).view(-1, 1) if n % 2 == 0 else _values(n)
        assert torch.equal(compiled(codec, x, step), _both(codec, x, step)), (step, n)
    frames = counter.frame_count
    for step in range(100, 110):
        compiled(codec, _values(1003), step)
    assert counter.frame_count <= frames + 1  # a new step is no new graph


def test_fake_tensors_and_symbols() -> None:
    codec = MaxMin(3, 100, skip_incomplete_buckets=True)
    with FakeTensorMode():
        x = torch.empty(20, 50, dtype=torch.bfloat16)
        payload = codec.encode(x)
        assert payload.shape == (codec.encoded_bytes(1000, torch.bfloat16),)
        assert codec.decode(payload, numel=1000, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert codec.roundtrip(x).shape == x.shape
    traced = make_fx(
        lambda x: codec.decode(codec.encode(x), torch.zeros_like(x)), tracing_mode="symbolic"
    )(_values(1000))
    for n in (1000, 1001, 77):
        assert torch.equal(traced(_values(n)), codec.roundtrip(_values(n)))


@pytest.mark.parametrize("strict", [False, True])
def test_export_takes_symbols_for_numbers(strict: bool) -> None:
    codec = MaxMin(4, 16, "stochastic")

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            decoded = codec.decode(codec.encode(x), numel=x.numel())
            return decoded + codec.roundtrip(x, sequence=x.shape[0], index=x.numel())

    shapes = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Model(), (_values(99),), dynamic_shapes=shapes, strict=strict)
    for n in (50, 1000):
        assert torch.equal(program.module()(_values(n)), Model()(_values(n)))


def test_export_is_saved_and_loaded() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codec = Rotated(4, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.codec.roundtrip(x) + self.codec.encode(x).sum()

    n = torch.export.Dim("n", min=2, max=100_000)
    program = torch.export.export(Model(), (_values(600),), dynamic_shapes={"x": {0: n}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for count in (600, 601, 5000):
        assert torch.equal(loaded(_values(count)), Model()(_values(count)))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_is_a_loop_over_samples() -> None:
    codec, x = MaxMin(4, 32, "stochastic", 1), _values(7 * 100).view(7, 100)
    payloads = torch.func.vmap(codec.encode)(x)
    assert torch.equal(payloads, torch.stack([codec.encode(row) for row in x]))
    decoded = torch.func.vmap(lambda p: codec.decode(p, numel=100))(payloads)
    assert torch.equal(decoded, torch.func.vmap(codec.roundtrip)(x))


def test_codecs_are_pickled_and_named_by_their_text() -> None:
    for codec in CODECS:
        again = pickle.loads(pickle.dumps(codec))
        assert again == codec and again._text == codec._text
        x = _values(300)
        assert torch.equal(ops.encode(x, codec._text), again.encode(x))


def test_autocast_leaves_dtypes_alone() -> None:
    codec, x = MaxMin(), _values(100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert codec.roundtrip(x).dtype == torch.float32
        assert torch.equal(codec.encode(x), MaxMin().encode(x))


# ---- gradients ----


def test_nothing_is_detached_without_a_word() -> None:
    codec = MaxMin()
    x = _values(100).requires_grad_()
    payload = codec.encode(x.detach())
    for call in (
        lambda: codec.encode(x),
        lambda: codec.encode(x * 2),
        lambda: codec.encode(x, out=torch.empty_like(payload)),
    ):
        with pytest.raises(RuntimeError, match=r"encode is not differentiable, and tensor req"):
            call()
    for add in (False, True):
        with pytest.raises(RuntimeError, match="decode is not differentiable, and out requires"):
            codec.decode(payload, x, add=add)
    with pytest.raises(RuntimeError, match="roundtrip to out is not differentiable"):
        codec.roundtrip(x, out=torch.empty(100))
    result = codec.roundtrip(x)
    assert result.requires_grad and torch.equal(result.detach(), codec.roundtrip(x.detach()))
    with pytest.raises(RuntimeError, match="roundtrip is not differentiable: use its result under"):
        result.sum().backward()
    with torch.no_grad():
        assert not codec.roundtrip(x).requires_grad
        codec.decode(payload, x, add=True)
    straight = x + (codec.roundtrip(x) - x).detach()
    straight.sum().backward()
    assert torch.equal(x.grad, torch.ones(100))


def test_tangents_are_not_lost() -> None:
    codec, x = MaxMin(), _values(100)
    payload = codec.encode(x)
    calls = {
        "encode": lambda x: codec.encode(x),
        "roundtrip": lambda x: codec.roundtrip(x),
        "roundtrip to out": lambda x: codec.roundtrip(x, out=torch.empty(100)),
        "decode": lambda x: codec.decode(payload, x),
    }
    for name, call in calls.items():
        with pytest.raises(RuntimeError, match=f"{name} has no forward-mode derivative"):
            torch.func.jvp(call, (x,), (x,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            with pytest.raises(RuntimeError, match=f"{name} has no forward-mode derivative"):
                call(dual)
            call(dual.detach())
    with pytest.raises(RuntimeError, match="encode is not differentiable"):
        torch.func.grad(lambda x: codec.encode(x).float().sum())(x)
    with pytest.raises(RuntimeError, match="roundtrip is not differentiable"):
        torch.func.grad(lambda x: codec.roundtrip(x).sum())(x)


@pytest.mark.parametrize("call", ["encode", "roundtrip"])
def test_gradients_under_compile(call: str) -> None:
    torch._dynamo.reset()
    method = getattr(MaxMin(), call)
    compiled = torch.compile(lambda x: method(x) * 2, fullgraph=True, backend=BACKEND)
    x = _values(100)
    assert torch.equal(compiled(x), method(x) * 2)
    with pytest.raises(RuntimeError, match=f"{call} is not differentiable"):
        compiled(x.requires_grad_()).sum().backward()


def test_results_count_as_changed() -> None:
    codec, x = MaxMin(), _values(100)
    payload = codec.encode(x)
    for out, write in (
        (torch.empty_like(payload), lambda out: codec.encode(x, out=out)),
        (torch.empty(100), lambda out: codec.decode(payload, out)),
        (torch.empty(100), lambda out: codec.decode(payload, out, add=True)),
        (torch.empty(100), lambda out: codec.roundtrip(x, out=out)),
    ):
        version = out._version
        write(out)
        assert out._version == version + 1
        with torch.inference_mode():
            outside = torch.empty_like(out)
            write(outside)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside"):
            write(outside)


# ---- errors ----

_PAYLOAD = MaxMin().encode(torch.zeros(100))
_TEXT = MaxMin()._text


def _jagged() -> torch.Tensor:
    rows = [torch.ones(3), torch.ones(2)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


_BAD = {
    "dtype": lambda: ops.encode(torch.zeros(3, dtype=torch.int64), _TEXT),
    "sparse": lambda: ops.encode(torch.zeros(3, 3).to_sparse(), _TEXT),
    "codec": lambda: ops.encode(torch.zeros(3), "maxmin bits=9"),
    "name": lambda: ops.roundtrip(torch.zeros(3), "nope"),
    "text": lambda: ops.encode(torch.zeros(3), "maxmin bits"),
    "out bytes": lambda: ops.encode.out(torch.zeros(3), _TEXT, out=torch.zeros(3).byte()),
    "out type": lambda: ops.encode.out(torch.zeros(3), _TEXT, out=torch.zeros(3)),
    "payload type": lambda: ops.decode(torch.zeros(3), _TEXT, 3, dtype=torch.float32),
    "payload dims": lambda: ops.decode(_PAYLOAD.view(1, -1), _TEXT, 100, dtype=torch.float32),
    "short": lambda: ops.decode(_PAYLOAD[:-1], _TEXT, 100, dtype=torch.float32),
    "wrong type": lambda: ops.decode(_PAYLOAD, _TEXT, 100, dtype=torch.float64),
    "negative": lambda: ops.decode(_PAYLOAD, _TEXT, -1, dtype=torch.float32),
    "out of decode": lambda: ops.decode.out(_PAYLOAD, _TEXT, out=torch.zeros(100).double()),
    "short for out": lambda: ops.decode_add(_PAYLOAD, _TEXT, out=torch.zeros(150)),
    "roundtrip type": lambda: ops.roundtrip.out(torch.zeros(3), _TEXT, out=torch.zeros(3).half()),
    "roundtrip shape": lambda: ops.roundtrip.out(torch.zeros(3), _TEXT, out=torch.zeros(4)),
}


def _text_of(call: object) -> tuple[str, str]:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return caught.type.__name__, str(caught.value)


@pytest.mark.parametrize("name", _BAD)
def test_errors_without_values_are_those_of_values(name: str) -> None:
    eager = _text_of(_BAD[name])
    assert "allowed" in eager[1]
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert _text_of(_BAD[name]) == eager


def test_errors_of_values() -> None:
    for call, text in (
        (
            lambda: ops.encode(torch.zeros(3), _TEXT, rank=-1),
            "rank is -1, allowed: 0 to 2147483647",
        ),
        (lambda: ops.encode(torch.zeros(3), _TEXT, number=-1), "number is -1, allowed: 0 to"),
        (lambda: ops.encode(torch.zeros(3), _TEXT, index=-1), "index is -1, allowed: 0 to"),
        (lambda: ops.roundtrip(_jagged(), _TEXT), "tensor is nested, allowed: a tensor with one"),
        (lambda: ops.decode(_jagged(), _TEXT, 5, dtype=torch.float32), "payload is nested"),
        (lambda: ops.decode.out(_PAYLOAD, _TEXT, out=torch.zeros(1).expand(100)), "share memory"),
        (lambda: ops.decode.out(_PAYLOAD, _TEXT, out=torch.empty(100, device="meta")), "meta"),
        (
            lambda: ops.encode(torch.quantize_per_tensor(torch.zeros(3), 1, 0, torch.qint8), _TEXT),
            "torch.qint8",
        ),
        (
            lambda: ops.encode(torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)]), _TEXT),
            "nested, allowed: a tensor with one shape",
        ),
    ):
        assert text in _text_of(call)[1]
    freed = torch.zeros(100)
    freed.untyped_storage().resize_(8)
    assert "which was resized to 8 bytes" in _text_of(lambda: ops.encode(freed, _TEXT))[1]


def test_errors_under_compile_name_the_argument() -> None:
    torch._dynamo.reset()
    codec = MaxMin()
    for call, text in (
        (lambda x: codec.encode(x.double()), "tensor.dtype is torch.float64, allowed: float32"),
        (lambda x: codec.decode(codec.encode(x), numel=99 + 50), "bytes, allowed for 149 values"),
        (lambda x: codec.decode(codec.encode(x)), "numel is None, allowed under torch.compile"),
        (lambda x: codec.decode(codec.encode(x), add=True), "add=True needs out"),
    ):
        with pytest.raises(Exception, match=text):
            torch.compile(call, fullgraph=True, backend=BACKEND)(torch.zeros(100))
