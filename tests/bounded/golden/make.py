"""Makes the golden vectors of the newest version before its release; none is changed after that.

python -m tests.bounded.golden.make
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.bounded import adversary, reader
from tests.bounded.helpers import gaussian
from tests.bounded.images import image, mask
from torch_cgx import bounded

Case = tuple[str, torch.Tensor, dict[str, float]]
BOUNDS: tuple[dict[str, float], ...] = (
    {"max_error": 1e-2},
    {"relative": 1e-3},
    {"pointwise": 1e-2},
    {"max_error": 0},
)
SHAPE, PLANES = (33, 37), (3, 19, 21)


def floats(dtype: torch.dtype) -> Iterator[Case]:
    noise = gaussian(300, 5)
    place = torch.arange(1500).view(-1, 5)
    for bound in BOUNDS:
        yield "image", image(SHAPE, dtype, noise=1e-3), bound
        yield "planes", image(PLANES, dtype, noise=1e-3), bound
        yield "walk", (gaussian(1200) / 8).cumsum(0).to(dtype), bound
        yield "heaps", (noise * torch.exp(3 * torch.sin(place / 100))).to(dtype), bound
    sparse = gaussian(800, 5) * (torch.arange(4000).view(-1, 5) % 2000 < 300)
    yield "sparse heaps", sparse.to(dtype), BOUNDS[0]
    yield "nothing", torch.zeros(0, 5, dtype=dtype), {"max_error": 0.5}
    yield "zeros", torch.zeros(400_000, dtype=dtype), {"max_error": 0.5}
    yield "equal blocks", torch.full((5 * 65536 + 9,), 2.5, dtype=dtype), {"relative": 1e-3}
    yield "coarse", (noise / 1000).to(dtype), {"max_error": 0.5}


def fields(dtype: torch.dtype) -> Iterator[Case]:
    x = image(SHAPE, dtype, noise=1e-3)
    gone, scattered = mask(SHAPE, 0.2, True), mask(SHAPE, 0.05, False)
    fills = x.masked_fill(gone, math.nan).masked_fill(scattered, 1e20)
    fills[3, 3], fills[4, 4] = -0.0, math.inf
    for bound in (BOUNDS[0], BOUNDS[3]):
        yield "image with holes", x.masked_fill(gone, math.nan), bound
        yield "image with fills", fills, bound
    stripes = (torch.arange(SHAPE[1]) % 5 == 0).expand(SHAPE)
    yield "stripes of holes", x.masked_fill(stripes, -9999.0), BOUNDS[0]
    coast = mask(PLANES[1:], 0.3, True).expand(PLANES)
    planes = image(PLANES, dtype, noise=1e-3)
    yield "coast of holes", planes.masked_fill(coast, math.nan), BOUNDS[0]
    bits, nan = torch.int32, 0x7F800001
    if dtype == torch.float64:
        bits, nan = torch.int64, 0x7FF0000000000001
    many = x.clone()
    for k in range(40):
        many.view(bits).view(-1)[k * 30] = nan + k % 20
    yield "many fills", many, BOUNDS[0]
    yield "row", image((1300,), dtype, noise=1e-3), {"max_error": 1e-3}
    yield "narrow rows", torch.sin(torch.arange(7 * 250) / 70).to(dtype).view(-1, 7), BOUNDS[0]


def frames(dtype: torch.dtype) -> Iterator[Case]:
    x = gaussian(9, 64)[torch.arange(1100) * 7 % 9].to(dtype)
    for bound in ({"max_error": 0.05}, {"max_error": 1e-3}, {"relative": 1e-7}, *BOUNDS[2:]):
        yield "repeated rows", x, bound
    x[99, 9], x[1000, 3], x[7, 60] = math.nan, -0.0, math.inf
    yield "repeated rows with holes", x, BOUNDS[0]
    nearly = torch.full((300_000,), 0.5, dtype=dtype)
    nearly[::30_011] = -0.0
    nearly[77::30_011] = math.nan
    yield "nearly constant", nearly, BOUNDS[0]
    yield "nearly constant", nearly, BOUNDS[3]


def cases() -> Iterator[Case]:
    for dtype in adversary.FLOATS:
        yield from floats(dtype)
    for dtype in adversary.FLOATS[:2]:
        yield from fields(dtype)
        yield from frames(dtype)
    yield "blocks within planes", image((10, 90, 80), torch.float32, noise=0), {"max_error": 0.05}
    for dtype in adversary.WHOLE:
        if dtype != torch.bool:
            yield "image", image(SHAPE, dtype, noise=1e-5), {}
            yield "planes", image(PLANES, dtype, noise=1e-5), {}
    place = torch.arange(8000)
    yield "mask", mask((50, 60), 0.3, True), {}
    yield "mask of heaps", (place // 50 % 7 == 0) & (place % 3 > 0), {}
    noise = gaussian(180)
    for dtype in adversary.COMPLEX:
        yield "noise", torch.complex(noise[:90], noise[90:]).to(dtype), {"relative": 1e-3}


def vector(x: torch.Tensor, bound: dict[str, float]) -> dict[str, str]:
    """Checked with the second reader."""
    payload = bounded.compress(x, **bound)
    y = bounded.decompress(payload)
    assert adversary.violation(x, y, bound) is None
    size = y.element_size() // (2 if y.is_complex() else 1)
    plain = adversary.bits_of(y).astype(f"<i{size}")
    _, bits = reader.read(payload.numpy().tobytes())
    assert (bits.view(plain.dtype) == plain).all()
    return {
        "payload": base64.b85encode(payload.numpy().tobytes()).decode(),
        "sha256": hashlib.sha256(plain.tobytes()).hexdigest(),
    }


def main() -> None:
    made = {}
    for what, x, bound in cases():
        words = [str(x.dtype).removeprefix("torch."), what, *(f"{k}={v}" for k, v in bound.items())]
        name = " ".join(words)
        assert name not in made
        made[name] = vector(x, bound)
    path = Path(__file__).with_name("version_3.json")
    path.write_text(json.dumps(made, indent=1) + "\n")
    text = json.dumps(sorted(made.items()), sort_keys=True)
    print(len(made), hashlib.sha256(text.encode()).hexdigest())


if __name__ == "__main__":
    main()
