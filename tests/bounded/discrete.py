"""Tensors of few values, of multiples, and of what is there again; and what must hold of them."""

from __future__ import annotations

import numpy as np
import torch

from tests.bounded import adversary, reader
from tests.bounded.forged import both_read
from tests.bounded.helpers import same_bits
from torch_cgx import bounded

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)
REALS = (*FLOATS, *adversary.WHOLE)


def lossless(x: torch.Tensor) -> torch.Tensor:
    """The payload."""
    given = x.is_floating_point() or x.is_complex()
    return bounded.compress(x, **({"max_error": 0} if given else {}))


def check(x: torch.Tensor, *, second: bool = True, **bound: float) -> bounded.Info:
    """x comes back bit for bit, from the second reader too if `second`."""
    payload = bounded.compress(x, **bound) if bound else lossless(x)
    assert same_bits(bounded.decompress(payload), x)
    if second:
        fields, bits = reader.read(payload.numpy().tobytes())
        assert fields["shape"] == tuple(x.shape)
        whole = adversary.bits_of(x).astype(f"i{bits.itemsize}").view(bits.dtype)
        np.testing.assert_array_equal(whole, bits)
    return bounded.info(payload)


def within(x: torch.Tensor, second: bool = True, **bound: float) -> set[str]:
    """x comes back within the bound. second: from the reader in numpy, too. Returns the maps of its
    blocks.
    """
    payload = bounded.compress(x, **bound)
    y = bounded.decompress(payload)
    assert (wrong := adversary.violation(x, y, bound)) is None, (x.dtype, x.shape, bound, wrong)
    if second:
        both_read(payload.numpy().tobytes())
    return maps(bounded.info(payload))


def maps(info: bounded.Info) -> set[str]:
    return {block.map for block in info.blocks}


def bits_each(x: torch.Tensor) -> float:
    """Bits of the payload for each value."""
    return 8 * lossless(x).numel() / x.numel()


def colors(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """So many values that differ in their bits, of floating-point numbers NaNs of some kinds, both
    infinities and -0 among them.
    """
    if dtype == torch.bool:
        return torch.tensor([False, True])[:count]
    whole = adversary.BITS[dtype.itemsize]
    rng = np.random.default_rng(seed)
    drawn = rng.integers(-(2**63), 2**63, 3 * count + 40, dtype=np.int64)
    bits = torch.from_numpy(drawn).to(whole)
    if dtype.is_floating_point:
        rare = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0, 0.0], dtype=dtype)
        some = rare.view(whole)
        bits = torch.cat([some[4:], some[:4] + torch.tensor([1, 5, 0, 0]).to(whole), bits])
    bits = bits.numpy()
    _, first = np.unique(bits, return_index=True)
    return torch.from_numpy(bits[np.sort(first)][:count].copy()).view(dtype)


def picked(values: torch.Tensor, n: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return values[torch.randint(len(values), (n,), generator=generator)]


def decimals(n: int, places: int, dtype: torch.dtype, seed: int = 2) -> torch.Tensor:
    """Numbers with so many decimal places, up to 2^20 times the last one."""
    whole = np.random.default_rng(seed).normal(0, 2**16, n).round().clip(-(2**20), 2**20)
    return torch.from_numpy(whole / 10.0**places).to(dtype)


def rows_of_multiples(
    rows: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 3
) -> torch.Tensor:
    """Weights that were quantized to int8 with a scale for each row."""
    rng = np.random.default_rng(seed)
    codes = rng.normal(0, 30, (rows, width)).round().clip(-127, 127)
    codes[:, 0] = 127
    units = torch.from_numpy(rng.uniform(1e-4, 1e-2, (rows, 1))).to(dtype)
    return torch.from_numpy(codes).to(dtype) * units


def mostly(n: int, value: float, others: dict[int, float], dtype: torch.dtype) -> torch.Tensor:
    """One value, and others at these places."""
    x = torch.full((n,), value, dtype=torch.float64)
    for place, other in others.items():
        x[place] = other
    return x.to(dtype)


def again(n: int, length: int, dtype: torch.dtype = torch.float32, seed: int = 4) -> torch.Tensor:
    """Pieces of random values, each of them several times."""
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.randn(7, length, generator=generator, dtype=torch.float64) * 60
    drawn = torch.randint(7, (n // length + 1,), generator=generator)
    return pieces[drawn].view(-1)[:n].to(dtype)
