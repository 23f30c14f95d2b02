"""Stages of compressors as operators: on the CPU they give the payloads of the compressors, and
refuse what is not theirs.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

from torch_cgx import _C, bounded
from torch_cgx._operators import payload_bytes
from torch_cgx.bounded import _cuda, _dtypes
from torch_cgx.compat._stages import PART, raw_words

ops = torch.ops.torch_cgx
SIZE = _C.BOUNDED_BLOCK_VALUES
ABSOLUTE = 1


def _values(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(n, generator=torch.Generator().manual_seed(n)).cumsum(0) / 8
    if dtype.is_floating_point:
        x[n // 3 :: 1000] = torch.inf
        x[n // 2 :: 999] = -0.0
    return x.nan_to_num(posinf=9.0).to(dtype) if not dtype.is_floating_point else x.to(dtype)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the module for GPUs does, with tensors of the CPU."""
    monkeypatch.setattr(_cuda, "pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("n", [1, 700, SIZE, 2 * SIZE + 77])
def test_bounded_blocks_are_those_of_the_compressor(dtype: torch.dtype, n: int) -> None:
    x = _values(n, dtype)
    bound = {"max_error": 1e-3} if dtype.is_floating_point else {}
    payload = bounded.compress(x, **bound)
    kind, value = (ABSOLUTE, 1e-3) if bound else (0, 0.0)
    maps = _C.BoundedMaps(_dtypes.ELEMENTS[dtype], kind, value)
    arena = _C.BoundedArena(1, -(-n // SIZE), x.nbytes + 64 * 8)
    _cuda.encode_blocks(x, maps, arena)
    _C.bounded_write(_dtypes.ELEMENTS[dtype], False, kind, value, value, [n], arena)
    assert bytes(memoryview(arena)) == payload.numpy().tobytes()

    from torch_cgx.bounded._payload import open_payload

    wanted = bounded.decompress(payload)
    opened = open_payload(memoryview(payload.numpy()))
    for first, last in ((0, n), (n // 3, n // 2), (n - 1, n)):
        y = torch.empty(last - first, dtype=dtype)
        _cuda.decode_into(opened, first, last, y)
        assert torch.equal(y, wanted[first:last])


def _encoded(
    n: int, dtype: torch.dtype = torch.float32, kind: int = ABSOLUTE
) -> tuple[torch.Tensor, dict[str, object], torch.Tensor, int]:
    """Values, the key of their maps, forms of their blocks, and bytes of the parts."""
    x = _values(n, dtype)
    maps = _C.BoundedMaps(_dtypes.ELEMENTS[dtype], kind, 1e-3 if kind > 0 else 0.0)
    slab, encoder = _C.BoundedSlab(maps, n), _C.BoundedEncoder(maps)
    looked = ops.bounded_look(x, **maps.key)
    for block in range(slab.blocks):
        slab.plan(encoder, block, looked)
    return x, maps.key, torch.frombuffer(slab.forms(), dtype=torch.uint8), slab.lay_out()


def test_opcheck() -> None:
    x, key, forms, size = _encoded(SIZE + 99)
    opcheck(ops.bounded_look.default, (x,), key)
    opcheck(ops.bounded_encode.default, (x, forms, size), key)
    parts = ops.bounded_encode(x, forms, size, **key)
    opcheck(
        ops.bounded_decode.default,
        (parts, forms, x.numel()),
        {**key, "out": torch.zeros_like(x)},
    )
    words = torch.empty(raw_words(1000), dtype=torch.int32)
    misfits = torch.empty(words.numel() // PART, dtype=torch.int32)
    out = {"words": words, "misfits": misfits}
    finite = x[:1000].nan_to_num(posinf=0.0)
    opcheck(ops.cuda_float_compress_encode.default, (finite, 2e-3, 1e-3, True), out)
    ops.cuda_float_compress_encode(finite, 2e-3, 1e-3, False, **out)
    opcheck(ops.cuda_float_compress_decode.default, (words, 2e-3), {"out": torch.empty(1000)})


def test_misfits_are_where_they_are() -> None:
    x = torch.zeros(3000)
    x[2500] = torch.nan
    words = torch.empty(raw_words(3000), dtype=torch.int32)
    misfits = torch.empty(words.numel() // PART, dtype=torch.int32)
    ops.cuda_float_compress_encode(x, 2e-3, 1e-3, False, words=words, misfits=misfits)
    assert int(misfits.min()) == 2500 and int(misfits.argmin()) == 2500 // PART


def test_forged_forms_are_refused() -> None:
    """Every byte of a form, changed: an error, or parts and values inside of their memory."""
    x, key, forms, size = _encoded(1000)
    parts = ops.bounded_encode(x, forms, size, **key)
    refused = 0
    for byte in range(forms.numel()):
        for flip in (0x01, 0x80, 0xFF):
            forged = forms.clone()
            forged[byte] ^= flip
            memory = torch.full((3000,), 7.0)
            try:
                ops.bounded_encode(x, forged, size, **key)
                ops.bounded_decode(parts, forged, 1000, **key, out=memory[1000:2000])
            except ValueError as error:
                assert "allowed" in str(error) or "written in no known way" in str(error)
                refused += 1
            assert (memory[:1000] == 7).all() and (memory[2000:] == 7).all()
    assert refused >= 60  # fields that name a map, a place or a size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("kind", [0, 1, 3])
def test_forms_of_random_bytes_stay_inside_of_memory(dtype: torch.dtype, kind: int) -> None:
    if kind > 0 and not dtype.is_floating_point:
        return
    for n in (100, SIZE + 99):
        x, key, forms, size = _encoded(n, dtype, kind)
        draw = torch.Generator().manual_seed(n)
        for _ in range(40):
            forged = forms.clone()
            for _ in range(3):
                at, value = torch.randint(0, forms.numel(), (2,), generator=draw)
                forged[at] = (0, 1, 2, 3, 4, 5, 127, 128, 255)[value % 9]
            memory = torch.ones(3 * n, dtype=dtype)
            noise = torch.randint(0, 256, (size,), generator=draw, dtype=torch.uint8)
            with contextlib.suppress(ValueError):
                ops.bounded_encode(x, forged, size, **key)
            with contextlib.suppress(ValueError):
                ops.bounded_decode(noise, forged, n, **key, out=memory[n : 2 * n])
            assert (memory[:n] == 1).all() and (memory[2 * n :] == 1).all()


def test_forms_name_their_own_tables_and_values() -> None:
    x, key, forms, size = _encoded(1000)
    for place, value in ((76, 4), (76, 5), (8, 1000), (56, 999)):  # map, value, n
        forged = forms.clone()
        forged[place : place + 2] = torch.tensor([value % 256, value // 256])
        with pytest.raises(ValueError, match="written in no known way"):
            ops.bounded_encode(x, forged, size, **key)
    forms = forms.clone()
    forms.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="was resized to 0 bytes"):
        ops.bounded_encode(x, forms, size, **key)


def test_stages_refuse_shared_memory_and_other_devices() -> None:
    x, key, forms, size = _encoded(1000)
    words = torch.zeros(raw_words(1000), dtype=torch.int32)
    misfits = torch.zeros(words.numel() // PART, dtype=torch.int32)
    parts = torch.zeros(size, dtype=torch.uint8)
    for call, text in (
        (lambda: ops.bounded_encode(x, forms.to("meta"), size, **key), "forms are on device meta"),
        (
            lambda: ops.cuda_float_compress_decode(words, 2e-3, out=words.view(torch.float32)[:9]),
            "words shares memory with out",
        ),
        (
            lambda: ops.cuda_float_compress_encode(
                x, 2e-3, 1e-3, True, words=words.to("meta"), misfits=misfits
            ),
            "words is on device meta",
        ),
        (lambda: ops.bounded_look(x, kind=1, bound=1e-3, version=-1), "version is -1, allowed: 1"),
        (lambda: ops.bounded_decode(parts, forms, 2**62, **key, out=x), "forms have 88 bytes"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    negated = torch._neg_view(words)
    with pytest.raises(ValueError, match="words is not contiguous"):
        ops.cuda_float_compress_encode(x, 2e-3, 1e-3, True, words=negated, misfits=misfits)


def test_bad_arguments_of_stages() -> None:
    x, key, forms, size = _encoded(1000)
    parts = ops.bounded_encode(x, forms, size, **key)
    words, misfits = torch.zeros(32768, dtype=torch.int32), torch.zeros(32768 // PART).int()
    for call, text in (
        (lambda: ops.bounded_look(x[::2], **key), "allowed: a contiguous tensor"),
        (lambda: ops.bounded_look(x.to(torch.complex64), **key), "dtype is torch.complex64, allow"),
        (lambda: ops.bounded_look(x, kind=7, bound=1.0, version=2), "kind is 7, allowed: 0 to 3"),
        (lambda: ops.bounded_look(x, kind=1, bound=-1.0, version=2), "bound is -1"),
        (lambda: ops.bounded_encode(x, forms[:-1], size, **key), "forms have"),
        (lambda: ops.bounded_encode(x, forms.int(), size, **key), "forms is torch.int32"),
        (lambda: ops.bounded_encode(x, forms, size + 8, **key), "bytes is"),
        (lambda: ops.bounded_decode(parts[:-1], forms, 1000, **key, out=x), "parts have"),
        (lambda: ops.bounded_decode(parts, forms, -1, **key, out=x), "values is -1, allowed"),
        (lambda: ops.bounded_decode(parts, forms, 1000, **key, out=x[:999]), "outside of 999"),
        (
            lambda: ops.cuda_float_compress_encode(
                x, 0.0, 1e-3, True, words=words, misfits=misfits
            ),
            "step is 0, allowed: above 0",
        ),
        (
            lambda: ops.cuda_float_compress_encode(
                x, 1e-3, 1e-3, True, words=words[1:], misfits=misfits
            ),
            "words has 32767 values",
        ),
        (lambda: ops.cuda_float_compress_decode(words.float(), 1e-3, out=x), "words is torch.flo"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            call()


def test_stages_detach_nothing_and_count_as_changes() -> None:
    x, key, forms, size = _encoded(1000)
    parts = ops.bounded_encode(x, forms, size, **key)
    words = torch.zeros(raw_words(1000), dtype=torch.int32)
    misfits = torch.zeros(words.numel() // PART, dtype=torch.int32)
    leaf = torch.zeros(1000, requires_grad=True)
    out, copy = torch.zeros(1000), words.clone()
    calls = {
        "bounded_look": lambda x: ops.bounded_look(x, **key),
        "bounded_encode": lambda x: ops.bounded_encode(x, forms, size, **key),
        "bounded_decode": lambda x: ops.bounded_decode(parts, forms, 1000, **key, out=x),
        "cuda_float_compress_encode": lambda x: ops.cuda_float_compress_encode(
            x, 2e-3, 1e-3, True, words=words, misfits=misfits
        ),
        "cuda_float_compress_decode": lambda x: ops.cuda_float_compress_decode(copy, 2e-3, out=x),
    }
    for name, call in calls.items():
        for tensor in (leaf, leaf * 2):
            with pytest.raises(RuntimeError, match=f"{name} is not differentiable"):
                call(tensor)
        before = out._version, words._version, misfits._version
        call(out)
        after = out._version, words._version, misfits._version
        changes = {"bounded_decode": (1, 0, 0), "cuda_float_compress_encode": (0, 1, 1)}
        changes["cuda_float_compress_decode"] = (1, 0, 0)
        assert [b - a for a, b in zip(before, after, strict=True)] == [
            *changes.get(name, (0, 0, 0))
        ]
        with torch.no_grad():
            call(leaf)


def test_stages_without_values() -> None:
    assert payload_bytes("raw", 3, torch.float32) == 12  # its module has the fake functions
    with FakeTensorMode():
        looked = ops.bounded_look(torch.empty(SIZE + 1), kind=1, bound=1e-3, version=2)
        assert looked.dtype == torch.uint8
    real = ops.bounded_look(torch.zeros(SIZE + 1), kind=1, bound=1e-3, version=2)
    assert looked.shape == real.shape
