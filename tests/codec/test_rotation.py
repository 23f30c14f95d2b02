"""The families `rotated` and `trellis`: error per byte, bias, and what a block holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.codec.rotation_model import table
from torch_cgx import codecs

BLOCK = 1024
# Largest squared error relative to the squared norm, on Gaussian values.
TARGETS = {
    "rotated": {1: 0.37, 2: 0.121, 3: 0.0355, 4: 0.0098},
    "trellis": {1: 0.33, 2: 0.092, 3: 0.0258, 4: 0.0068},
}
BOTH = [(name, bits) for name, by_bits in TARGETS.items() for bits in by_bits]


def gaussian(n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(n).astype(np.float32))


def coded(codec: codecs.Codec, x: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x), numel=x.numel())


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Squared error over squared norm, in float64."""
    return float((found.double() - exact.double()).square().sum() / exact.double().square().sum())


@pytest.mark.parametrize("name, bits", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_and_size_of_gaussian_values(name: str, bits: int, dtype: torch.dtype) -> None:
    x = gaussian(256 * BLOCK).to(dtype)
    codec = codecs.make(name, bits=bits)
    payload = codec.encode(x)
    assert 8 * payload.numel() / x.numel() <= bits + 0.04
    found = codec.decode(payload, numel=x.numel(), dtype=dtype)
    assert relative(found, x) <= TARGETS[name][bits]


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_of_rotated_are_the_lloyd_max_quantizer(bits: int) -> None:
    """Each level is the mean of the values between the middles around it."""
    count = 2 ** (bits - 1)
    levels = table("rotated")[count - 1 : 2 * count - 1].astype(np.float64)
    middles = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [math.inf]])
    for i, level in enumerate(levels):
        low, high = middles[i], middles[i + 1]
        mass = 0.5 * (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2)))
        density = math.exp(-low * low / 2) - math.exp(-high * high / 2)
        assert level == pytest.approx(density / math.sqrt(2 * math.pi) / mass, rel=1e-6)


def test_levels_of_trellis_rise() -> None:
    levels = table("trellis")
    assert len(levels) == 60
    for bits in range(1, 5):
        assert np.all(np.diff(levels[2 ** (bits + 1) - 4 : 2 ** (bits + 2) - 4]) > 0)


@pytest.mark.parametrize("name, bits", [("rotated", 1), ("rotated", 3), ("trellis", 2)])
def test_unbiased_errors_average_out(name: str, bits: int) -> None:
    """Over calls with keys of their own; with mse every call has the same error."""
    x = gaussian(4 * BLOCK + 300)
    x[:BLOCK] *= 1e-3  # blocks of their own scale
    x[BLOCK + 7] = 6
    calls = 64
    codec = codecs.make(name, bits=bits, scale="unbiased")
    payloads = [codec.encode(x, sequence=k, rank=k % 3) for k in range(calls)]
    values = torch.stack([codec.decode(p, numel=x.numel()) for p in payloads])
    one = relative(values[0], x)
    mean = relative(values.double().mean(0).float(), x)
    assert one / calls * 0.5 < mean < one / calls * 2


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", ["mse", "unbiased"])
def test_signs_are_those_of_the_call(name: str, scale: str) -> None:
    x = gaussian(500)
    codec = codecs.make(name, bits=2, scale=scale)
    first = codec.encode(x, sequence=1, rank=2)
    assert torch.equal(first, codecs.make(name, bits=2, scale=scale).encode(x, sequence=1, rank=2))
    assert not torch.equal(first[:8], codec.encode(x, sequence=2, rank=2)[:8])
    assert not torch.equal(first[:8], codec.encode(x, sequence=1, rank=3)[:8])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", ["mse", "unbiased"])
def test_a_payload_decodes_by_itself(name: str, scale: str) -> None:
    """What decoding needs of the key is in it: seed, call and rank are not asked for."""
    x = gaussian(3000)
    codec = codecs.make(name, bits=2, seed=7, scale=scale)
    payload = codec.encode(x, sequence=3, rank=2)
    other = codecs.make(name, bits=2, seed=8, scale=scale)
    values = codec.decode(payload, numel=3000)
    assert torch.equal(other.decode(payload, numel=3000), values)
    assert not torch.equal(other.encode(x, sequence=3, rank=2), payload)
    # The scale is a matter of encoding only.
    back = codecs.make(name, bits=2, scale="unbiased" if scale == "mse" else "mse")
    assert torch.equal(back.decode(payload, numel=3000), values)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("exponent", [-100, -60, 60, 100])
def test_error_does_not_depend_on_magnitude(name: str, exponent: int) -> None:
    x = gaussian(2 * BLOCK + 77)
    codec = codecs.make(name, bits=2)
    factor = 2.0**exponent
    assert torch.equal(coded(codec, x * factor), coded(codec, x) * factor)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("scale", ["mse", "unbiased"])
@pytest.mark.parametrize("n", [1, 2, 3, 255, 257, 1023, 2500])
def test_ends_of_the_range(name: str, scale: str, n: int) -> None:
    largest = torch.finfo(torch.float32).max
    codec = codecs.make(name, bits=1, block_size=256, scale=scale)
    for x in (
        torch.full((n,), largest),
        torch.full((n,), -largest),
        largest * torch.sign(gaussian(n)),
        torch.full((n,), 1e-45),
        1e-42 * gaussian(n),
    ):
        found = coded(codec, x)
        assert torch.isfinite(found).all()
        if scale == "mse":
            assert relative(found, x) <= 1.01


@pytest.mark.parametrize("name", TARGETS)
def test_zeros_and_bad_values_stay_in_their_block(name: str) -> None:
    x = gaussian(5 * BLOCK + 100)
    x[BLOCK : 2 * BLOCK] = 0
    x[BLOCK + 3] = -0.0
    x[2 * BLOCK + 1] = math.nan
    x[3 * BLOCK + 5] = -math.inf
    found = coded(codecs.make(name, bits=2), x)
    clean = coded(codecs.make(name, bits=2), torch.where(torch.isfinite(x), x, torch.zeros(())))
    zeros = found[BLOCK : 2 * BLOCK]
    assert torch.equal(zeros, torch.zeros(BLOCK)) and not torch.signbit(zeros).any()
    assert torch.isnan(found[2 * BLOCK : 4 * BLOCK]).all()
    for part in (slice(0, 2 * BLOCK), slice(4 * BLOCK, None)):
        assert torch.equal(found[part], clean[part])


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_single_value_among_zeros(bits: int) -> None:
    """Its rotation has one magnitude, which least squares meet exactly."""
    x = torch.zeros(BLOCK)
    x[77] = 3.25
    found = coded(codecs.make("rotated", bits=bits), x)
    assert relative(found, x) < 1e-12


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("n", [1, 5, 31, 100, 255, 256, 300, 1000, 1500])
def test_sizes_without_padding(name: str, n: int) -> None:
    codec = codecs.make(name, bits=3, block_size=256)
    x = gaussian(n)
    payload = codec.encode(x)
    assert payload.numel() == 8 + 4 * math.ceil(n / 256) + math.ceil(3 * n / 8)
    # Short blocks are less even; still far better than their norm.
    assert relative(coded(codec, x), x) < (1.0 if n < 32 else 0.06)


def test_bad_parameters() -> None:
    with pytest.raises(
        ValueError, match="block_size='1000' is not allowed; .*powers of two from 256 to 4096"
    ):
        codecs.make("rotated", block_size=1000)
    with pytest.raises(
        ValueError, match="bits='5' is not allowed; bits takes integers from 1 to 4"
    ):
        codecs.make("trellis", bits=5)
    with pytest.raises(
        ValueError, match="bits='9' is not allowed; bits takes integers from 1 to 8"
    ):
        codecs.make("rotated", bits=9)
    with pytest.raises(
        ValueError, match="scale='best' is not allowed; scale takes one of mse,unbiased"
    ):
        codecs.make("rotated", scale="best")
