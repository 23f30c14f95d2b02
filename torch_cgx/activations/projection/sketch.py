"""Random projections S [k, n] with E S^T S = 1, which are made again from their seed.

"gaussian": normal entries / sqrt(k). "rademacher": 1 and -1, / sqrt(k). "srht": k rows, drawn
without replacement, of the Hadamard matrix of m >= n rows (a power of two) times random signs,
/ sqrt(k) (subsampled randomized Hadamard transform: Ailon and Chazelle 2009, Tropp 2011); it costs
m log m operations a column, the others k n.

S is never whole in memory, but one block of columns at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from torch_cgx._hadamard import transform

_BLOCK = 1 << 21  # values of S, or of what is transformed, that live at once
_HALVES = (torch.float16, torch.bfloat16)


def project(x: torch.Tensor, generator: torch.Generator, rows: int, method: str) -> torch.Tensor:
    """S x for x [n, width]: [rows, width] of x's type. Sums of float16 and bfloat16 are float32
    between blocks."""
    n, width = x.shape
    if method == "srht":
        return _srht(x, generator, rows)
    wide = torch.float32 if x.dtype in _HALVES else x.dtype
    total = torch.zeros(rows, width, dtype=wide, device=x.device)
    power, rest = _scales(rows)
    for first, block in _blocks(generator, rows, n, method, x, power):
        part = x[first : first + block.shape[1]]
        if x.dtype in _HALVES:
            total += block @ part
        else:
            total.addmm_(block, part)
    return total.mul_(rest).to(x.dtype)


def back(values: torch.Tensor, generator: torch.Generator, size: int, method: str) -> torch.Tensor:
    """values S for values [height, k]: [height, size]. The generator begins as for `project`."""
    height, rows = values.shape
    if method == "srht":
        return _srht_back(values, generator, size)
    found = values.new_empty(height, size, dtype=values.dtype, device=values.device)
    power, rest = _scales(rows)
    for first, block in _blocks(generator, rows, size, method, values, power):
        found[:, first : first + block.shape[1]] = values @ block
    return found.mul_(rest)


def _scales(rows: int) -> tuple[float, float]:
    """1 / sqrt(rows) as a power of two and a rest of 0.7 to 1.5: the first changes no digit of a
    float16 or bfloat16, while all entries of S rounded alike would make every estimate too large or
    too small, by up to 0.4 % in bfloat16."""
    power = 2.0 ** round(-math.log2(rows) / 2)
    return power, rows**-0.5 / power


def _blocks(
    generator: torch.Generator,
    rows: int,
    n: int,
    method: str,
    like: torch.Tensor,
    scale: float,
) -> Iterator[tuple[int, torch.Tensor]]:
    """The number of a block's first column, and the block [rows, some] times sqrt(rows) * scale, of
    the type of `like`."""
    step = max(16, _BLOCK // rows)
    for first in range(0, n, step):
        shape = rows, min(step, n - first)
        if method == "gaussian":
            block = torch.randn(shape, generator=generator, dtype=torch.float32, device=like.device)
        else:
            block = _signs(generator, shape[0] * shape[1], like.device).reshape(shape)
        yield first, block.to(like.dtype).mul_(scale)


def _signs(generator: torch.Generator, n: int, device: torch.device) -> torch.Tensor:
    """n times 1 or -1, float32: the bits of random bytes."""
    drawn = torch.randint(
        256, ((n + 7) // 8, 1), generator=generator, dtype=torch.uint8, device=device
    )
    bits = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)
    return ((drawn & bits) != 0).flatten()[:n].float().mul_(2).sub_(1)


def _sampled(
    generator: torch.Generator, rows: int, n: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Signs of n rows, and which rows of the matrix of m are kept."""
    m = 1 << (n - 1).bit_length()
    signs = _signs(generator, n, device)
    kept = torch.randperm(m, generator=generator, dtype=torch.int64, device=device)[:rows]
    return signs, kept, m


def _srht(x: torch.Tensor, generator: torch.Generator, rows: int) -> torch.Tensor:
    n, width = x.shape
    signs, kept, m = _sampled(generator, rows, n, x.device)
    wide = torch.float32 if x.dtype in _HALVES else x.dtype
    found = x.new_empty(rows, width, dtype=x.dtype, device=x.device)
    step = max(16, _BLOCK // m)
    for first in range(0, width, step):
        part = x[:, first : first + step].to(wide) * (signs.to(wide)[:, None] * rows**-0.5)
        part = torch.nn.functional.pad(part, (0, 0, 0, m - n))
        found[:, first : first + step] = transform(part)[kept]
    return found


def _srht_back(values: torch.Tensor, generator: torch.Generator, size: int) -> torch.Tensor:
    height, rows = values.shape
    signs, kept, m = _sampled(generator, rows, size, values.device)
    wide = torch.float32 if values.dtype in _HALVES else values.dtype
    found = values.new_empty(height, size, dtype=values.dtype, device=values.device)
    step = max(16, _BLOCK // m)
    for first in range(0, height, step):
        part = values[first : first + step].to(wide).t()
        spread = torch.zeros(m, part.shape[1], dtype=wide, device=values.device)
        spread[kept] = part
        whole = transform(spread)[:size] * (signs.to(wide)[:, None] * rows**-0.5)
        found[first : first + step] = whole.t()
    return found
