"""Ratios that README, docs/bounded.md and the project promise. They depend on the version of
zstandard, and on nothing else of the machine.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import zstandard

from torch_cgx import bounded
from torch_cgx.compat._stages import PART, raw_words

N = 1 << 20


def _ratio(x: torch.Tensor, **bound: float) -> float:
    return x.nbytes / bounded.compress(x, **bound).numel()


def _gaussian(sigma: float) -> torch.Tensor:
    values = np.random.RandomState(0).normal(0, sigma, N)
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("sigma", [1.0, 0.02])
@pytest.mark.parametrize("max_error", [1e-4, 1e-3])
def test_of_the_gaussian_limit(sigma: float, max_error: float) -> None:
    bits = math.log2(sigma * math.sqrt(2 * math.pi * math.e) / (2 * max_error))
    ratio = _ratio(_gaussian(sigma), max_error=max_error)
    assert 0.985 <= ratio / (32 / bits) <= 1.001
    if (sigma, max_error) == (0.02, 1e-4):
        assert round(ratio, 1) == 3.7  # README


def test_of_uniform_values() -> None:
    """Of which Zstandard keeps fine symbols as they are."""
    x = torch.from_numpy(np.random.RandomState(0).uniform(size=N // 4).astype(np.float32))
    for k in range(18):
        steps = 500 * 2 ** (k / 6)
        assert _ratio(x, max_error=0.5 / steps) > 0.987 * 32 / math.log2(steps), steps


def test_of_the_original_format() -> None:
    """Its stages and one call of zstd, as the original writes it."""
    for x, bound, least in (
        (_gaussian(0.02), 1e-4, 1.07),
        (_gaussian(0.02), 1e-3, 1.07),
        (_gaussian(1.0), 1e-4, 1.07),
        (torch.round(_gaussian(317.0) + 78000), 0.5, 1.07),
        (_gaussian(0.02).square(), 1e-6, 1.0),
        (_gaussian(0.02).square(), 1e-4, 1.0),
        (_gaussian(0.02) * (_gaussian(1.0).roll(1) > 1.3), 1e-4, 1.0),
        (_gaussian(0.02).cumsum(0), 1e-3, 1.0),
    ):
        step = float(np.float32(2 * bound))
        raw = torch.empty(raw_words(N), dtype=torch.int32)
        misfits = torch.empty(raw.numel() // PART, dtype=torch.int32)
        torch.ops.torch_cgx.cuda_float_compress_encode(
            x, step, 3e38, True, words=raw, misfits=misfits
        )
        zstd = zstandard.ZstdCompressor(level=1)
        original = x.nbytes / (12 + len(zstd.compress(raw.numpy().data)))
        assert _ratio(x, max_error=bound) >= least * original, bound


def test_of_smooth_values_and_zeros() -> None:
    sine = torch.sin(torch.arange(1_000_000, dtype=torch.float64) / 500).float()
    assert _ratio(sine, max_error=1e-4) >= 41
    assert bounded.compress(torch.zeros(1_000_000), max_error=1e-4).numel() <= 200


def test_of_lossless_weights() -> None:
    assert _ratio(_gaussian(0.02).bfloat16(), max_error=0) >= 1.5
    assert _ratio(_gaussian(0.02), max_error=0) >= 1.2
