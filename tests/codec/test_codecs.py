"""torch_cgx.codecs: tensors of every shape, stride and type; errors that say what is allowed."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tests import _machinery, oracle
from tests.oracle import Spec
from torch_cgx import _C, codecs
from torch_cgx.codecs import MaxMin

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (7, 9), (2, 3, 4, 5)])
def test_roundtrip_keeps_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    y = MaxMin(bits=8, bucket_size=16).roundtrip(x)
    assert y.shape == x.shape and y.dtype == dtype
    if x.numel():
        assert (x.float() - y.float()).abs().max() <= (x.max() - x.min()).float() / 500 + 0.02


def test_encode_is_the_engine_s() -> None:
    x = torch.randn(1000)
    payload = MaxMin(3, 100).encode(x)
    assert payload.dtype == torch.uint8 and payload.shape == (MaxMin(3, 100).encoded_bytes(1000),)
    assert payload.numpy().tobytes() == oracle.encode(x.numpy(), Spec(3, 100))
    codec = MaxMin(3, 100, "stochastic", seed=5)
    payload = codec.encode(x, sequence=6, rank=7, index=8)
    spec = Spec(3, 100, True, seed=5, sequence=6, rank=7, index=8)
    assert payload.numpy().tobytes() == oracle.encode(x.numpy(), spec)
    y = codec.roundtrip(x, sequence=6, rank=7, index=8)
    assert y.numpy().tobytes() == oracle.decode(payload.numpy().tobytes(), 1000, spec).tobytes()


def test_strides_and_views() -> None:
    codec = MaxMin(4, 8)
    x = torch.randn(12, 10)
    for view in (
        x.t(),
        x[::2, 1:],
        x[3],
        x[:, 4],
        x.flip(0),
        x.expand(2, 12, 10),
        torch._neg_view(x),
    ):
        plain = view.clone(memory_format=torch.contiguous_format)
        assert torch.equal(codec.encode(view), codec.encode(plain))
    weight = torch.nn.Parameter(x)
    with torch.no_grad():
        assert torch.equal(codec.encode(weight), codec.encode(x))
    assert torch.equal(codec.encode(weight.detach()), codec.encode(x))


def test_decode_into_out() -> None:
    codec = MaxMin(4, 32)
    x = torch.randn(6, 8)
    payload = codec.encode(x)
    out = torch.zeros(8, 6).t()
    assert codec.decode(payload, out) is out
    assert torch.equal(out, codec.roundtrip(x))
    weight = torch.nn.Parameter(torch.zeros(48))
    with torch.no_grad():
        codec.decode(payload, weight)
    assert torch.equal(weight.detach(), codec.roundtrip(x).view(-1))
    strided = torch.zeros(2 * payload.numel(), dtype=torch.uint8)[::2]
    strided.copy_(payload)
    assert torch.equal(codec.decode(strided, numel=48), codec.decode(payload, numel=48))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("skip", (False, True))
def test_default_numel_is_the_largest_of_that_size(dtype: torch.dtype, skip: bool) -> None:
    for bits in (1, 4, 7, 8):
        for bucket_size in (1, 5, 16, 100):
            codec = MaxMin(bits, bucket_size, skip_incomplete_buckets=skip)
            largest = {codec.encoded_bytes(n, dtype): n for n in range(700)}
            for size, n in largest.items():
                if size < codec.encoded_bytes(500, dtype):
                    assert (
                        codec.decode(torch.zeros(size, dtype=torch.uint8), dtype=dtype).numel() == n
                    )


def test_payloads_of_a_wrong_size_are_refused() -> None:
    codec = MaxMin(4, 512)
    payload = codec.encode(torch.randn(1000))
    for wrong, kwargs in (
        (payload[:-1], {"numel": 1000}),
        (payload, {"numel": 998}),
        (payload, {"out": torch.zeros(1001)}),
        (payload[:4], {}),
        (payload, {"out": torch.zeros(1000), "numel": 999}),
    ):
        with pytest.raises(ValueError, match="allowed|no number of"):
            codec.decode(wrong, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"bits": 0}, ValueError, "bits='0' is not allowed; bits takes integers from 1 to 8"),
        ({"bits": 9}, ValueError, "bits='9' is not allowed; bits takes integers from 1 to 8"),
        ({"bits": 4.0}, TypeError, "bits=4.0: expected an int, got float"),
        ({"bits": True}, TypeError, "bits=True: expected an int, got bool"),
        ({"bucket_size": 0}, ValueError, "bucket_size='0' is not allowed; .* from 1 to"),
        ({"bucket_size": -3}, ValueError, "bucket_size='-3'"),
        ({"rounding": "up"}, ValueError, "rounding='up' .* one of nearest,stochastic"),
        ({"rounding": 1}, TypeError, "rounding=1: expected a str, got int"),
        ({"seed": -1}, ValueError, "seed='-1' is not allowed; seed takes integers from 0 to"),
        ({"skip_incomplete_buckets": 2}, ValueError, "skip_incomplete_buckets='2'.* 0 or 1"),
        ({"skip_incomplete_buckets": "1"}, TypeError, "skip_incomplete_buckets='1'.* a bool"),
    ],
)
def test_bad_fields(fields: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match="MaxMin: " + text):
        MaxMin(**fields)


def test_fields_are_canonical() -> None:
    codec = MaxMin(np.int64(3), skip_incomplete_buckets=1, rounding="NEAREST")  # type: ignore
    assert codec == MaxMin(3, skip_incomplete_buckets=True)
    assert type(codec.bits) is int and codec.skip_incomplete_buckets is True
    assert repr(codec) == (
        "MaxMin(bits=3, bucket_size=512, rounding='nearest', seed=0, skip_incomplete_buckets=True, "
        "exact_zeros=False)"
    )


@pytest.mark.parametrize("codec", [MaxMin(3, 64, "stochastic", 7, True), codecs.Half("fp16")])
def test_codecs_are_values(codec: codecs.Codec) -> None:
    assert pickle.loads(pickle.dumps(codec)) == codec == copy.deepcopy(codec)
    assert hash(pickle.loads(pickle.dumps(codec))) == hash(codec)
    field = dataclasses.fields(codec)[0]  # type: ignore[arg-type]
    other = dataclasses.replace(codec, **{field.name: field.default})  # type: ignore[type-var]
    assert other != codec and type(other) is type(codec)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(codec, field.name, field.default)
    text = type(codec).__doc__ or ""
    for field in dataclasses.fields(codec):  # type: ignore[arg-type]
        assert f"{field.name}: " in text


def test_every_family_has_its_class() -> None:
    for family in _C.families():
        if not family["python"]:
            assert family["name"] == "raw"
            continue
        made = getattr(codecs, family["python"])
        assert issubclass(made, codecs.Codec) and family["python"] in codecs.__all__
        varying = [p for p in family["parameters"] if p["low"] != p["high"] or p["choices"]]
        expected = {p["name"]: p["value"] for p in family["parameters"] if p["kind"] != "integer"}
        expected |= {p["name"]: p["value"] for p in varying if p["kind"] == "integer"}
        signature = inspect.signature(made)
        assert {k: p.default for k, p in signature.parameters.items()} == expected


def test_bad_tensors() -> None:
    codec = MaxMin()
    for dtype in (torch.float64, torch.int32, torch.complex64, torch.bool):
        with pytest.raises(TypeError, match=f"{dtype}, allowed: float32, float16, bfloat16"):
            codec.encode(torch.zeros(3, dtype=dtype))
    with pytest.raises(TypeError, match="layout torch.sparse_coo, allowed: torch.strided"):
        codec.encode(torch.zeros(3).to_sparse())
    with pytest.raises(TypeError, match="list, allowed: a torch.Tensor"):
        codec.encode([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="payload is torch.float32"):
        codec.decode(torch.zeros(3))
    for name in ("sequence", "rank", "index"):
        with pytest.raises(ValueError, match=f"{name} is -1, allowed: 0 to"):
            codec.encode(torch.zeros(3), **{name: -1})


def test_the_engine_refuses_bad_parameters_too() -> None:
    for wrong, text in (
        ({"bits": 9}, "codec maxmin: bits='9' is not allowed"),
        ({"bucket_size": 0}, "bucket_size='0' is not allowed"),
        ({"codec": "nope"}, "codec is 'nope', allowed: bf16, ?block, ?float, ?fp16"),
        ({"rounding": "x"}, "rounding='x' is not allowed; rounding takes one of nearest,stoch"),
        ({"nothing": 1}, "codec maxmin has no parameter 'nothing', allowed: bits, bucket_size"),
    ):
        with pytest.raises(ValueError, match=text):
            _C.Codec(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype code is 3"):
        _machinery.codec_encoded_bytes(_C.Codec(), 1, 3)
    assert "maxmin" in _C.codec_names().split(",")


def test_hashable_and_equal() -> None:
    assert len({MaxMin(), MaxMin(4), MaxMin(4, 512), MaxMin(5)}) == 2


def test_names() -> None:
    assert codecs.names() == ("bf16", "block", "float", "fp16", "maxmin", "rotated", "trellis")
    assert codecs.make("maxmin", bits=3) == codecs.make("MaxMin", bits=3) == MaxMin(3)
    assert isinstance(MaxMin(), codecs.Codec)
    with pytest.raises(
        ValueError, match="codec is 'nope', allowed: bf16, ?block, ?float, ?fp16, ?maxmin, ?rotated"
    ):
        codecs.make("nope")
    with pytest.raises(
        TypeError,
        match="base class; allowed: Block, Float, Half, MaxMin, Rotated, Trellis, or make()",
    ):
        codecs.Codec()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", [MaxMin(4, 64), MaxMin(3, 100, skip_incomplete_buckets=True)])
def test_decode_into_any_type_and_add(dtype: torch.dtype, codec: MaxMin) -> None:
    """Against float32 arithmetic of torch; long enough for several threads, and for scratch."""
    for n in (0, 1, 999, 300_007):
        x = torch.randn(n)
        payload = codec.encode(x)
        values = codec.decode(payload, numel=n)
        out = torch.full((n,), 7.0, dtype=dtype)
        version = out._version
        assert codec.decode(payload, out, dtype=torch.float32) is out
        assert torch.equal(out, values.to(dtype)) and out._version > version
        start = torch.randn(n).to(dtype)
        total = start.clone()
        assert codec.decode(payload, total, dtype=torch.float32, add=True) is total
        assert torch.equal(total, (start.float() + values).to(dtype))
        strided = torch.zeros(2 * n, dtype=dtype)[::2].copy_(start)
        codec.decode(payload, strided, dtype=torch.float32, add=True)
        assert torch.equal(strided, total)
    with pytest.raises(ValueError, match="add=True needs out"):
        codec.decode(payload, add=True)


@pytest.mark.parametrize("threads", (1, 2, 3))
def test_threads_change_nothing(threads: int) -> None:
    codec = MaxMin(3, 100, "stochastic", 5)
    x = torch.randn(500_001)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        payload = codec.encode(x, sequence=3)
        values = codec.decode(payload, torch.empty(x.numel()))
        torch.set_num_threads(threads)
        assert torch.equal(codec.encode(x, sequence=3), payload)
        assert torch.equal(codec.decode(payload, torch.empty(x.numel())), values)
    finally:
        torch.set_num_threads(before)


def test_encode_into_out() -> None:
    codec, x = MaxMin(4, 64), torch.randn(1000)
    expected = codec.encode(x)
    out = torch.zeros_like(expected)
    version = out._version
    assert codec.encode(x, out=out) is out
    assert torch.equal(out, expected) and out._version > version
    strided = torch.zeros(2 * expected.numel(), dtype=torch.uint8)[::2]
    assert codec.encode(x, out=strided) is strided and torch.equal(strided, expected)
    with pytest.raises(ValueError, match=r"out has 3 bytes, allowed for 1000 values of .*: \d+"):
        codec.encode(x, out=torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError, match="out is torch.float32 with 1 dimensions"):
        codec.encode(x, out=torch.zeros(expected.numel()))
    with pytest.raises(TypeError, match="out is of type list, allowed: a torch.Tensor"):
        codec.encode(x, out=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whose elements share memory"):
        codec.encode(x, out=torch.zeros(1, dtype=torch.uint8).expand(expected.numel()))


@pytest.mark.parametrize("add", [False, True])
def test_decode_into_elements_that_share_memory(add: bool) -> None:
    codec = MaxMin(4, 64)
    payload = codec.encode(torch.randn(1000))
    for out in (torch.zeros(1).expand(1000), torch.zeros(1001).as_strided((500, 2), (1, 1))):
        with pytest.raises(ValueError, match="whose elements share memory"):
            codec.decode(payload, out, add=add)
    with pytest.raises(TypeError, match="add is 'no', allowed: True or False"):
        codec.decode(payload, add="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ("bf16", "fp16"))
def test_16_bits_are_a_cast(name: str) -> None:
    codec, wire = codecs.Half(name), {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    assert codecs.make(name) == codec and isinstance(codec, codecs.Codec)
    x = torch.cat([torch.randn(1000) * 10.0**k for k in range(-12, 6)])
    x[5], x[50], x[500] = torch.inf, -torch.inf, torch.nan
    assert codec.encoded_bytes(1000) == codec.encoded_bytes(1000, torch.float16) == 2000
    sent = codec.encode(x).view(wire)
    assert sent[500].isnan()
    sent[500] = torch.nan  # which one is not part of the format
    x[500] = 0
    expected = x.to(wire)
    expected[500] = torch.nan
    assert torch.equal(sent.view(torch.int16), expected.view(torch.int16))
    assert torch.equal(
        codec.roundtrip(x.view(10, -1)).view(-1).nan_to_num(), x.to(wire).float().nan_to_num()
    )
    for dtype in (torch.float16, torch.bfloat16):  # as they are
        y = x.to(dtype)
        assert torch.equal(codec.encode(y).view(torch.int16), y.view(torch.int16))
        assert torch.equal(codec.roundtrip(y).view(torch.int16), y.view(torch.int16))
    assert codec.decode(codec.encode(x)).numel() == x.numel()
    with pytest.raises(ValueError, match="payload has 3 bytes"):
        codec.decode(torch.zeros(3, dtype=torch.uint8))


def test_bad_formats() -> None:
    with pytest.raises(ValueError, match="format='fp8' .* one of bf16,fp16"):
        codecs.Half("fp8")
    with pytest.raises(TypeError, match="format=16: expected a str, got int"):
        codecs.Half(16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "codec",
    [
        codecs.MaxMin(bits=4, bucket_size=64),
        codecs.MaxMin(bits=3, bucket_size=100),
        codecs.Rotated(bits=4, block_size=256),
        codecs.Trellis(bits=2, block_size=256),
        codecs.Half(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("n", (1, 7, 64, 100, 777, 5000))
def test_sums_have_one_nan(codec, n, level):
    """decode(add=True) to values with any NaN, or whose sum is one: the bits of base/nan.h."""
    generator = torch.Generator().manual_seed(n)
    payload = codec.encode(torch.randn(n, generator=generator))
    decoded = codec.decode(payload, out=torch.empty(n))
    for places in (slice(0, 1), slice(n - 1, n), slice(n // 2, n // 2 + 1), slice(0, n, 13)):
        for kind in (0x7F800001, 0x7FFFFFFF, -1, -0x400000, 0x7F800000):
            y = torch.randn(n, generator=generator)
            y.view(torch.int32)[places] = kind
            expected = y + decoded
            expected.view(torch.int32)[expected.isnan()] = 0x7FC00000
            codec.decode(payload, out=y, add=True)
            assert torch.equal(y.view(torch.int32), expected.view(torch.int32)), (places, kind)
