"""torch_cgx.compat.cuda_float_compress: the vectors of the original's format, and its bound."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.bounded.compat import cuda_float_compress_model as model
from tests.bounded.compat.cuda_float_compress_calls import compress, data_of, decompress
from tests.distributed import ROOT
from torch_cgx.compat.cuda_float_compress import (
    CuszplusError,
    cuszplus_compress,
    cuszplus_decompress,
)

SIZES = [*range(401), 511, 512, 513, 32767, 32768, 32769, 65536, 131071, 131072, 131073, 200000]


def _round_trip(x, max_error, **options):
    return cuszplus_decompress(compress(x, max_error, **options), "cpu").numpy()


def _error(x, y):
    return np.abs(np.asarray(x, np.float64) - y.astype(np.float64)).max(initial=0)


def _words(payload):
    raw = model.parts(data_of(payload))[2]
    return {int(i): int(raw[i]) for i in np.flatnonzero(raw)}


def test_v1_header_words_and_decoded_values():
    x = [0, 0.1, 0.2, -0.3, 1, 1e-5, 2e-4, -5e-5]
    payload = compress(x, 1e-4)
    assert data_of(payload)[:12].hex() == "030201000800000017b75139"
    assert _words(payload) == {
        0: 0x6CC0,
        2048: 0x0E68,
        4096: 0x28,
        6144: 0x3BC,
        8192: 0xEFC,
        10240: 0x400,
        12288: 0xB40,
    }
    y = cuszplus_decompress(payload, "cpu").numpy()
    expected = [0, 0.09999999, 0.19999999, -0.29999998, 1, 0, 0.0002, 0]
    assert np.abs(y - expected).max() <= 1e-8  # they have eight digits
    assert _error(np.array(x, np.float32), y) == pytest.approx(5e-5)


def test_v2_ties_go_to_even_quotients():
    assert _round_trip([0.5, 1.5, 2.5, -0.5, -1.5], 0.5).tolist() == [0, 2, 2, 0, -2]


def test_v3_deltas_and_zigzag():
    payload = compress([3, 1, 1, -2], 0.5)
    assert data_of(payload)[:12].hex() == "03020100040000000000803f"
    assert _words(payload) == {0: 0x4E, 2048: 0x41}


def test_v4_shuffle():
    zigzag = np.arange(32)
    deltas = np.where(zigzag % 2 == 0, zigzag // 2, -(zigzag + 1) // 2)
    words = _words(compress(np.cumsum(deltas), 0.5))
    group = {0: 0xE4E4E4E4, 1: 0xE4E4E4E4, 2: 0xFFAA5500, 3: 0xFFAA5500, 5: 0x55555555}
    assert words == {1024 * word: bits for word, bits in group.items()}
    raw = np.zeros(32768, np.uint32)
    raw[1 * 1024], raw[31 * 1024] = 0x4, 0x8
    y = decompress(model.payload(raw, 18, 1.0))
    assert y.tolist() == [0] * 17 + [-float(0x40000001 // 64 * 64)]  # zig-zag 0x80000001


@pytest.mark.parametrize(
    ("value", "bit", "word", "word_bit"),
    [
        (0, 0, 0, 0),
        (0, 1, 0, 1),
        (15, 0, 0, 30),
        (16, 0, 1024, 0),
        (32, 0, 1, 0),
        (128, 0, 4, 0),
        (32767, 30, 32767, 30),
        (32768, 0, 32768, 0),
    ],
)
def test_v5_addresses(value, bit, word, word_bit):
    raw = np.zeros(65536, np.uint32)
    raw[word] = 1 << word_bit
    y = decompress(model.payload(raw, 40000, 1.0))
    assert np.flatnonzero(y)[0] == value
    assert y[value] == (-1 if bit == 0 else 1 << (bit - 1))
    if abs(y[value]) == 1:
        assert _words(compress(y, 0.5)) == {word: 1 << word_bit}


def test_v6_zigzag():
    for delta, zigzag in ((0, 0), (-1, 1), (1, 2), (-2, 3)):
        raw = model.parts(data_of(compress([delta], 0.5)))[2]
        assert model.unshuffled(raw)[0] == zigzag
    for zigzag, value in ((4294967294, 2.0**31), (4294967295, -(2.0**31))):
        u = np.zeros(32768, np.uint32)
        u[0] = zigzag
        assert decompress(model.payload(model.shuffled(u), 1, 1.0)).tolist() == [value]


def test_v7_a_payload_is_as_long_as_its_memory_and_below_the_originals_buffer():
    random = np.random.default_rng(0)
    for n, most in ((1, 131596), (32768, 131596), (32769, 263180)):
        noise = random.uniform(-4e5, 4e5, n).astype(np.float32)
        for x in (np.zeros(n, np.float32), noise):
            payload = compress(x, 1e-4)
            assert payload.dtype == torch.uint8 and payload.dim() == 1
            assert payload.untyped_storage().nbytes() == payload.numel() <= most


def test_v8_deltas_wrap_around():
    assert _round_trip([4e5, -4e5, 4e5], 1e-4).tolist() == [4e5, -4e5, 4e5]


def test_v9_ratio_and_error_of_normal_values():
    x = np.random.RandomState(0).randn(32768).astype(np.float32)
    payload = compress(x, 1e-4)
    y = cuszplus_decompress(payload, "cpu").numpy()
    assert 2.03 < x.nbytes / payload.numel() < 2.06
    assert np.mean((x.astype(np.float64) - y) ** 2) == pytest.approx(1e-8 / 3, rel=0.01)
    assert _error(x, y) <= 1e-4  # the original's: up to 1.0014e-4
    assert cuszplus_compress(torch.zeros(10**6), 1e-4).numel() <= 200


@pytest.mark.parametrize(
    ("magnitude", "excess"),
    [(1, 0.0008), (10, 0.011), (100, 0.068), (1000, 0.83), (1e4, 8.77), (1e5, 77)],
)
def test_v10_the_bound_is_strict(magnitude, excess):
    """excess: of the original over max_error=1e-4, as a share of it (docs/bounded.md)."""
    x = np.random.RandomState(1).uniform(-magnitude, magnitude, 10**5).astype(np.float32)
    for max_error in (1e-4, 1e-3, 0.3):
        payload = compress(x, max_error, strict=True)
        assert torch.equal(payload, compress(x, max_error))
        assert _error(x, cuszplus_decompress(payload, "cpu").numpy()) <= max_error
        step = model.parts(data_of(payload))[1]
        spacing = 2.0**-22 * (magnitude + max_error)
        assert max(max_error, 2 * max_error - spacing) <= step <= np.float32(2 * max_error)
    # The arithmetic of the original does break it.
    step = np.float32(2e-4)
    broken = model.dequantised(model.original_quotients(x, step), step)
    assert _error(x, broken) / 1e-4 - 1 == pytest.approx(excess, rel=0.06)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 430000, -430000, 1e6, -3e38])
@pytest.mark.parametrize("place", [0, 1, 130, 32767, 299999])
def test_v10_values_that_the_format_cannot_hold_are_named(bad, place):
    x = np.random.RandomState(2).randn(300000).astype(np.float32)  # most break the bound, too
    x[place] = x[-1] = bad
    name = re.escape(str(x[place]))
    for strict in (False, True):
        with pytest.raises(CuszplusError, match=rf"value {place} is {name};.*429496\.7"):
            compress(x, 1e-4, strict=strict)


def _check(x, max_error, strict=False):
    payload = compress(x, max_error, strict=strict)
    n, step, raw = model.parts(data_of(payload))
    assert n == x.size
    assert np.array_equal(raw, model.raw_words(x, step, max_error))
    y = cuszplus_decompress(payload, "cpu").numpy()
    assert np.array_equal(y, model.decoded(raw, n, step))
    return step, y


def test_payloads_of_all_sizes_are_those_of_the_model():
    for i, n in enumerate(SIZES):
        x = (np.random.RandomState(n).randn(n) * (0.02, 1e5)[i % 2]).astype(np.float32)
        _, y = _check(x, 1e-3, strict=True)
        assert y.shape == (n,) and _error(x, y) <= 1e-3


def _midpoints(random, n, step, magnitude):
    """Values next to the middle of two neighbours of the grid, where rounding decides."""
    q = random.integers(-magnitude, magnitude, n) + 0.5
    x = (q * float(step)).astype(np.float32)
    for _ in range(2):
        towards = random.choice(np.array([-np.inf, np.inf], np.float32), n)
        x = np.where(random.random(n) < 0.5, np.nextafter(x, towards), x)
    return x


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_holds_next_to_midpoints_at_all_magnitudes(seed):
    random = np.random.default_rng(seed)
    max_error = float(2.0 ** random.uniform(-100, 100))
    step = np.float32(2 * max_error)
    magnitude = int(2 ** random.uniform(1, 29))
    x = _midpoints(random, int(random.integers(1, 2000)), step, magnitude)
    used, y = _check(x, max_error, strict=True)
    assert _error(x, y) <= max_error
    original = model.dequantised(model.quotients(x, step, max_error), step)
    # Another step only where the original's cannot keep the bound.
    assert (used == step) == (_error(x, original) <= max_error)
    assert max_error <= used <= step


def test_a_neighbour_of_the_quotient_keeps_the_step():
    random = np.random.default_rng(0)
    max_error, step = 1e-4, np.float32(2e-4)
    moved = 0
    for magnitude in 2.0 ** np.arange(10, 22):
        x = _midpoints(random, 4000, step, int(magnitude))
        q = model.original_quotients(x, step)
        original = np.abs(x.astype(np.float64) - model.dequantised(q, step))
        mended = model.dequantised(model.quotients(x, step, max_error), step)
        helped = (original > max_error) & (np.abs(x.astype(np.float64) - mended) <= max_error)
        if helped.any():
            used, y = _check(x[helped], max_error)
            assert used == step and _error(x[helped], y) <= max_error
            moved += int(helped.sum())
    assert moved > 100


def test_values_that_no_smaller_step_reaches():
    """Between 2^31 steps of a power of two and 2^31 of the original's."""
    x = np.random.default_rng(3).uniform(270000, 429000, 1000).astype(np.float32)
    with pytest.raises(CuszplusError, match="value 0 is .*cannot bring within max_error=0.0001"):
        compress(x, 1e-4, strict=True)
    step, y = _check(x, 1e-4)
    assert step == np.float32(2e-4)
    original = model.dequantised(model.original_quotients(x, step), step)
    assert 1e-4 < _error(x, y) <= _error(x, original) < 2.0**-22 * 429000


def test_the_largest_values_and_bounds():
    most = float(np.finfo(np.float32).max)
    x = np.array([most, -most, most / 3], np.float32)
    _, y = _check(x, most / 2)
    assert np.isfinite(y).all()
    for max_error in (2.0**-127, most / 2):
        x = (np.array([0.4, -3, 1000]) * min(2 * max_error, 1e35)).astype(np.float32)
        assert _error(x, _round_trip(x, max_error, strict=True)) <= max_error
    tiny = np.array([2.0**-149, -(2.0**-140), 0, -0.0], np.float32)
    assert _error(tiny, _round_trip(tiny, 2.0**-127, strict=True)) <= 2.0**-127


def test_flush_to_zero_of_the_calling_thread_changes_nothing():
    x = (np.random.default_rng(5).normal(size=3000) * 1e-37).astype(np.float32)
    payload = compress(x, 6e-39)
    y = cuszplus_decompress(payload, "cpu")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush to zero")
    try:
        assert torch.equal(compress(x, 6e-39), payload)
        assert torch.equal(
            cuszplus_decompress(payload, "cpu").view(torch.int32), y.view(torch.int32)
        )
    finally:
        torch.set_flush_denormal(False)


def test_shapes_and_strides():
    x = torch.randn(60, 70, generator=torch.Generator().manual_seed(0))
    flat = cuszplus_compress(x.reshape(-1), 1e-4)
    assert torch.equal(cuszplus_compress(x, 1e-4), flat)
    assert torch.equal(cuszplus_compress(x.view(3, 20, 70).requires_grad_(), 1e-4), flat)
    for view in (x.t(), x[::2, ::3], x[:1].expand(5, 70), x[3, 4], x[:0], x.flip(0)[7:]):
        payload = cuszplus_compress(view, 1e-4)
        assert torch.equal(payload, cuszplus_compress(view.contiguous().view(-1), 1e-4))
        y = cuszplus_decompress(payload, torch.device("cpu"))
        assert y.shape == (view.numel(),) and y.dtype == torch.float32
        assert torch.allclose(y, view.reshape(-1), rtol=0, atol=1.001e-4)
    negated = torch.complex(x, x).conj().imag  # its memory holds x
    assert torch.equal(cuszplus_compress(negated, 1e-4), cuszplus_compress(-x, 1e-4))
    odd = torch.frombuffer(bytearray(13), dtype=torch.float32, offset=1)
    assert cuszplus_decompress(cuszplus_compress(odd, 1e-4), "cpu").tolist() == [0, 0, 0]
    strided = torch.stack([flat, flat], 1)[:, 0]
    assert torch.equal(cuszplus_decompress(strided, "cpu"), cuszplus_decompress(flat, "cpu"))


def test_an_empty_tensor_has_a_payload():
    payload = cuszplus_compress(torch.zeros(0, 3), 1e-4)
    assert data_of(payload)[:12] == model.header(0, 2e-4)
    assert cuszplus_decompress(payload, "cpu").shape == (0,)


@pytest.mark.parametrize("max_error", [0.0, -1e-4, np.nan, np.inf, 2.0**-128, 1.8e38])
def test_bounds_out_of_range_are_named(max_error):
    with pytest.raises(CuszplusError, match=re.escape(f"max_error is {max_error}, allowed")):
        cuszplus_compress(torch.zeros(3), max_error)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: cuszplus_compress(torch.zeros(3).half(), 1e-4), ValueError, "float16.*float32"),
        (lambda: cuszplus_compress(torch.zeros(3).double(), 1e-4), RuntimeError, "float64"),
        (lambda: cuszplus_compress(torch.zeros(3).to_sparse(), 1e-4), ValueError, "sparse_coo"),
        (lambda: cuszplus_compress(torch.zeros(3, device="meta"), 1e-4), ValueError, "meta"),
        (lambda: cuszplus_compress([1.0], 1e-4), TypeError, "list"),
        (lambda: cuszplus_compress(torch.zeros(3), "1e-4"), TypeError, "'1e-4'"),
        (lambda: cuszplus_compress(torch.zeros(3), 10**5000), CuszplusError, "max_error is inf"),
        (lambda: cuszplus_compress(torch.zeros(3), True), TypeError, "max_error is True"),
        (lambda: cuszplus_compress(torch.zeros(3), bytearray(b"1")), TypeError, "bytearray"),
        (lambda: cuszplus_decompress(torch.zeros(3), "cpu"), RuntimeError, "float32.*uint8"),
        (lambda: cuszplus_decompress(b"abc", "cpu"), TypeError, "bytes"),
        (lambda: cuszplus_decompress(torch.zeros(3).byte(), "nowhere"), RuntimeError, "nowhere"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_without_zstandard_the_error_says_what_to_install():
    script = (
        "import sys; sys.modules['zstandard'] = None\n"
        "import torch\n"
        "from torch_cgx.compat import cuda_float_compress\n"
        "cuda_float_compress.cuszplus_compress(torch.zeros(3), 1e-4)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: the format of cuda_float_compress needs the package zstandard: pip" in (
        done.stderr
    )
    assert '"torch_cgx[bounded]"' in done.stderr.splitlines()[-1]
