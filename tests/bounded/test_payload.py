"""Payloads: what comes back with the values, parts of them, and everything that must be refused."""

from __future__ import annotations

import math
import os
import signal
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.bounded import adversary, forge
from tests.bounded.helpers import same_bits, some
from torch_cgx import bounded
from torch_cgx.bounded import PayloadError, _decompress, _entropy

FLOATS = adversary.FLOATS


DTYPES = [*FLOATS, *adversary.COMPLEX, *adversary.WHOLE]


def bound_for(dtype: torch.dtype) -> dict[str, float]:
    return {"max_error": 1e-3} if dtype.is_floating_point or dtype.is_complex else {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_shape_and_dtype_come_back(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (1,), (3, 0, 5), (2, 3, 4, 5, 6), (1,) * 9, (7, 1)):
        x = some(shape, dtype)
        made = bounded.compress(x, **bound_for(dtype))
        assert made.dtype == torch.uint8 and made.dim() == 1 and made.is_contiguous()
        y = bounded.decompress(made)
        assert adversary.violation(x, y, bound_for(dtype)) is None
        assert y.shape == x.shape and y.is_contiguous() and not y.requires_grad
        info = bounded.info(made)
        assert (info.shape, info.dtype, info.bytes) == (x.shape, dtype, made.numel())
        assert info.checksum_ok and len(info.blocks) == (x.numel() > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_every_size(dtype: torch.dtype) -> None:
    x = some((400,), dtype)
    for n in range(401):
        y = bounded.decompress(bounded.compress(x[:n], **bound_for(dtype)))
        assert adversary.violation(x[:n], y, bound_for(dtype)) is None


@pytest.mark.parametrize("n", [65535, 65536, 65537, 131072, 131073])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int16])
def test_borders_of_blocks(n: int, dtype: torch.dtype) -> None:
    x = some((n,), dtype)
    made = bounded.compress(x, **bound_for(dtype))
    assert adversary.violation(x, bounded.decompress(made), bound_for(dtype)) is None
    values = [block.values for block in bounded.info(made).blocks]
    parts = n * (2 if dtype.is_complex else 1)
    assert sum(values) == parts and values[:-1] == [65536] * (len(values) - 1)


def test_payloads_are_bytes_of_any_kind(payload: torch.Tensor) -> None:
    expected = bounded.decompress(payload)
    data = payload.numpy().tobytes()
    padded = torch.frombuffer(bytearray(b"xyz" + data), dtype=torch.uint8)
    kinds = (data, bytearray(data), memoryview(data), padded[3:], padded.repeat_interleave(2)[6::2])
    for kind in kinds:
        assert same_bits(bounded.decompress(kind), expected)
        assert bounded.info(kind).ratio == pytest.approx(560_000 / len(data))


def test_bytes_that_are_not_contiguous_are_refused(payload: torch.Tensor) -> None:
    data = payload.numpy().tobytes()
    for view in (memoryview(b"abc")[::2], memoryview(data)[::-1]):
        for read in (bounded.decompress, bounded.info):
            with pytest.raises(ValueError, match="the payload's bytes are not contiguous"):
                read(view)
    wide = memoryview(data).cast("B", (1, len(data)))
    assert same_bits(bounded.decompress(wide), bounded.decompress(payload))


def test_parameters_and_views_are_tensors() -> None:
    x = torch.nn.Parameter(torch.randn(30, 20))
    assert (
        adversary.violation(
            x.detach(), bounded.decompress(bounded.compress(x, max_error=1e-3)), {"max_error": 1e-3}
        )
        is None
    )
    z = some((50, 40), torch.complex64)
    for view in (z.conj(), z.conj().imag, z.t(), z[::3, 1::2], z.expand(2, 50, 40)):
        y = bounded.decompress(bounded.compress(view, max_error=0))
        assert torch.equal(y, view.resolve_conj().resolve_neg())


def test_threads_give_the_same_payload() -> None:
    x = some((9 * 65536 + 5,), torch.float32)
    found, values = set(), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            made = bounded.compress(x, max_error=1e-4)
            found.add(made.numpy().tobytes())
            values.append(bounded.decompress(made))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
    assert all(torch.equal(values[0], other) for other in values)


def test_a_forked_process_compresses() -> None:
    """It has none of the threads that were kept, neither this package's nor torch's."""
    x = some((5 * 65536,), torch.float32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        payload = bounded.compress(x, max_error=1e-3).numpy().tobytes()
        torch.equal(x, x.clone())
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            same = bounded.compress(x, max_error=1e-3).numpy().tobytes() == payload
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int8])
def test_rows_are_those_of_the_whole(dtype: torch.dtype) -> None:
    x = some((700, 3, 101), dtype)
    made = bounded.compress(x, **bound_for(dtype))
    whole = bounded.decompress(made)
    rng = np.random.default_rng(2)
    slices = [slice(None), slice(0, 0), slice(5, 3), slice(-9, None), slice(699, 10_000)]
    slices += [slice(None, None, 7), slice(10, 600, 99), slice(216, 217), slice(700, 900)]
    for _ in range(15):
        low, high = sorted(int(v) for v in rng.integers(-10, 720, 2))
        slices.append(slice(low, high, int(rng.integers(1, 5))))
    for rows in slices:
        part = bounded.decompress(made, rows=rows)
        assert same_bits(part, whole[rows]), rows
        assert part.is_contiguous()
        out = torch.empty_like(whole[rows])
        assert bounded.decompress(made, out, rows=rows) is out and same_bits(out, whole[rows])


def test_steps_of_any_size_are_taken() -> None:
    x = some((9, 40), torch.float32)
    made = bounded.compress(x, max_error=0)
    for step in (8, 9, 2**31, 2**62, 2**64, 2**70):
        for start, stop in ((0, 9), (3, 5), (4, 4), (8, 9), (9, None)):
            rows = slice(start, stop, step)
            expected = x[start:stop][:: min(step, 9)]
            assert same_bits(bounded.decompress(made, rows=rows), expected)
            out = torch.empty_like(expected)
            assert same_bits(bounded.decompress(made, out, rows=rows), expected)


def test_rows_read_only_their_blocks(payload: torch.Tensor) -> None:
    expected = bounded.decompress(payload)
    parts = forge.taken_apart(payload)
    parts.blocks[1] = bytes(len(parts.blocks[1]))
    data = parts.payload()
    # The second block holds the values 65536 to 131071: of the rows 6 to 13.
    assert same_bits(bounded.decompress(data, rows=slice(0, 6)), expected[:6])
    for rows in (slice(6, 7), slice(13, 14), slice(0, 14, 13)):
        with pytest.raises(PayloadError, match="^block 1: the checksum differs"):
            bounded.decompress(data, rows=rows)


def test_bad_rows(payload: torch.Tensor) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (slice(None, None, -1), ValueError, "step -1"),
        (slice(None, None, 0), ValueError, "step"),
        (3, TypeError, "rows is 3"),
        (slice(0.5), TypeError, "indices"),
    ]
    for rows, error, text in cases:
        with pytest.raises(error, match=text):
            bounded.decompress(payload, rows=rows)
    with pytest.raises(ValueError, match="scalar"):
        bounded.decompress(bounded.compress(torch.tensor(1)), rows=slice(1))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_is_written_and_returned(dtype: torch.dtype) -> None:
    x = some((6, 50), dtype)
    made = bounded.compress(x, **bound_for(dtype))
    expected = bounded.decompress(made)
    around = torch.zeros(8, 60).to(dtype)
    for out in (torch.empty_like(x), torch.empty(50, 6, dtype=dtype).t(), around[1:7, 5:55]):
        assert bounded.decompress(made, out) is out
        assert same_bits(out, expected)
    around[1:7, 5:55] = torch.zeros(6, 50).to(dtype)
    assert not adversary.bits_of(around).any()  # nothing beside it
    shifted = torch.zeros(x.nbytes + 1, dtype=torch.uint8)[1:]
    if dtype not in (torch.uint8, torch.int8, torch.bool) and not dtype.is_complex:
        raw = torch.frombuffer(shifted.numpy(), dtype=dtype).view(6, 50)  # aligned as no value is
        assert same_bits(bounded.decompress(made, raw), expected)


def test_out_may_want_gradients_or_be_conjugate(payload: torch.Tensor) -> None:
    leaf = torch.nn.Parameter(torch.empty(14, 100, 100))
    assert bounded.decompress(payload, leaf) is leaf
    assert torch.equal(leaf.detach(), bounded.decompress(payload))
    z = some((40,), torch.complex64)
    made = bounded.compress(z, max_error=0)
    for out in (
        torch.empty(40, dtype=torch.complex64).conj(),
        torch.empty(80).view(torch.complex64),
    ):
        assert torch.equal(bounded.decompress(made, out).resolve_conj(), z)


def test_autograd_sees_that_out_is_written() -> None:
    payload = bounded.compress(torch.ones(6, 50), max_error=0)
    for out in (torch.zeros(6, 50), torch.zeros(50, 6).t()):  # in place, and by a copy
        w = out.requires_grad_()
        loss = (w * w).sum()
        bounded.decompress(payload, out=w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    w = torch.zeros(6, 50, requires_grad=True)
    loss = (w * w).sum()
    parts = forge.taken_apart(payload)
    parts.blocks[0] = bytes(len(parts.blocks[0]))
    bad = parts.payload()
    with pytest.raises(PayloadError, match="^block 0"):
        bounded.decompress(bad, out=w)  # partly written
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors_are_written() -> None:
    with torch.inference_mode():
        payload, out = bounded.compress(torch.ones(70), max_error=0), torch.zeros(70)
        plain = bounded.decompress(payload)
        assert bounded.decompress(payload, out).is_inference() and plain.is_inference()
    with torch.inference_mode(False):
        kept = torch.zeros(70)
    with torch.inference_mode():
        bounded.decompress(payload, kept)
    assert kept._version == 1
    bounded.decompress(bounded.compress(torch.zeros(70), max_error=0), out)
    assert not out.any() and torch.equal(kept, torch.ones(70))


def test_devices_of_any_kind(payload: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, out = bounded.decompress(payload), torch.empty(14, 100, 100)
    devices: list[Any] = ["cpu", "cpu:0", torch.device("cpu"), None]
    for device in devices:
        assert same_bits(bounded.decompress(payload, device=device), expected)
        assert same_bits(bounded.decompress(payload, out, device), expected)
    for device in ("cuda", "cuda:1", "cpu:1"):
        with pytest.raises(ValueError, match=f"device is {device}, out is on cpu: give one"):
            bounded.decompress(payload, out, device)
    gpu = torch.device("cuda:1")
    for text, same in (("cuda", True), ("cuda:1", True), ("cuda:0", False), ("cpu", False)):
        assert _decompress._is_device(torch.device(text), gpu) == same
    # The number of a device, 0 among them, is that of an accelerator.
    asked, device_of = [], torch.device
    monkeypatch.setattr(torch, "device", lambda d: (asked.append(d), device_of("meta"))[1])
    bounded.decompress(payload, device=0)
    assert asked == [0]


def test_out_that_does_not_fit(payload: torch.Tensor) -> None:
    for out in (torch.empty(14, 100), torch.empty(14, 100, 100).double(), torch.empty(0)):
        with pytest.raises(ValueError, match=r"float32 \[14, 100, 100\]"):
            bounded.decompress(payload, out)
    with pytest.raises(ValueError, match="device is meta, out is on cpu"):
        bounded.decompress(payload, torch.empty(14, 100, 100), "meta")
    for bad in ([1.0], np.zeros(3)):
        with pytest.raises(TypeError, match=f"{type(bad).__name__} cannot be out, allowed: a torc"):
            bounded.decompress(payload, bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", adversary.KINDS)
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-1e-3, ValueError, "-0.001"),
        (math.nan, ValueError, "nan"),
        (math.inf, ValueError, "inf"),
        (10**400, ValueError, "inf"),
        (True, TypeError, "True"),
        ("1e-3", TypeError, "'1e-3'"),
        (1j, TypeError, "1j"),
        (torch.ones(2), TypeError, "tensor"),
    ],
)
def test_bad_bounds(key: str, value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"{key} is .*{text}"):
        bounded.compress(torch.ones(3), **{key: value})


def test_bounds_that_do_not_go_together() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="one bound at most, got max_error and pointwise"):
        bounded.compress(x, max_error=0, pointwise=0.1)
    with pytest.raises(ValueError, match="a bound is missing for float32"):
        bounded.compress(x)
    with pytest.raises(ValueError, match="pointwise is 1, allowed"):
        bounded.compress(x, pointwise=1)
    for dtype in adversary.WHOLE:
        with pytest.raises(ValueError, match="max_error is 0.5 for .*lossless"):
            bounded.compress(x.to(dtype), max_error=0.5)
        bounded.compress(x.to(dtype), max_error=0)


def test_numbers_of_any_kind_are_bounds() -> None:
    x = torch.randn(400)
    expected = bounded.compress(x, max_error=0.25)
    numbers: list[Any] = [np.float32(0.25), np.float64(0.25), torch.tensor(0.25)]
    for number in (*numbers, torch.tensor([0.25])):
        assert torch.equal(bounded.compress(x, max_error=number), expected)
    assert torch.equal(bounded.compress(x, max_error=1), bounded.compress(x, max_error=1.0))
    assert torch.equal(bounded.compress(x, max_error=-0.0), bounded.compress(x, relative=0))


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
def test_tensors_that_have_no_payload() -> None:
    x = torch.ones(4, 4)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    cases: list[tuple[Any, type[Exception], str]] = [
        (x.to_sparse(), ValueError, "sparse_coo tensor"),
        (x.to_sparse_csr(), ValueError, "sparse_csr tensor"),
        (nested, ValueError, "nested tensor"),
        (torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), ValueError, "quantized .*qint8"),
        (x.to("meta"), ValueError, "meta"),
        (x.to(torch.float8_e4m3fn), ValueError, "dtype is float8_e4m3fn, allowed: float32"),
        (torch.ones([1] * 65), ValueError, "65 dimensions, allowed: 0 to 64"),
        ([1.0, 2.0], TypeError, "a list has no payload"),
        (np.ones(3), TypeError, "ndarray has no payload"),
    ]
    for bad, error, text in cases:
        with pytest.raises(error, match=text):
            bounded.compress(bad, max_error=0.1)
    for dtype in (torch.float32, torch.complex64):
        y = torch.ones([1] * 64, dtype=dtype)
        assert bounded.decompress(bounded.compress(y, max_error=0)).shape == y.shape


def test_without_zstandard(payload: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(_entropy, "_zstd", None)
    for call in (
        lambda: bounded.compress(torch.ones(9), max_error=1e-3),
        lambda: bounded.decompress(payload),
    ):
        with pytest.raises(ImportError, match=r'zstandard: pip install "torch_cgx\[bounded\]"'):
            call()
    assert bounded.info(payload).checksum_ok  # needs none


def test_needs_no_process_group() -> None:
    script = (
        "import sys, torch; from torch_cgx import bounded; import torch_cgx.bounded._decompress\n"
        "p = bounded.compress(torch.ones(70000), max_error=1e-3)\n"
        "assert bounded.decompress(p).shape == (70000,)\n"
        "assert not torch.distributed.is_initialized()\n"
    )
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", script) == 0


def test_blocks_that_are_exchanged_are_refused() -> None:
    x = torch.cat([torch.full((65536,), float(k)) for k in (1, 2, 3)])
    parts = forge.taken_apart(bounded.compress(x, max_error=1e-3))
    good = parts.payload()
    one, two, three = parts.blocks
    assert len(one) == len(two) == len(three)
    head = good[: len(good) - len(one) * 3]
    assert torch.equal(bounded.decompress(head + one + two + three), x)
    for blocks in (two + one + three, one + one + three, three + two + one):
        with pytest.raises(bounded.PayloadError, match="blocks exchanged"):
            bounded.decompress(head + blocks)
