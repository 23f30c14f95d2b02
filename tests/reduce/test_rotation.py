"""The codecs `rotated` and `trellis` in the real reducers against the numpy models, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.reduce.simulation import check, gaussian, run
from torch_cgx import _C

ALGORITHMS = ["oneshot", "sra", "ring"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BLOCK = 256


def codec(name: str, bits: int, **more: object) -> _C.Codec:
    return _C.Codec(codec=name, bits=bits, block_size=BLOCK, **more)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_sizes_widths_and_types(ranks: int, algorithm: str) -> None:
    sizes = [0, 1, 2, 17, 63, 255, 256, 257, 511, 700, 1023, 1025]
    for turn, n in enumerate(sizes):
        name = ("rotated", "trellis")[(turn + ranks) % 2]
        bits = turn % (8 if name == "rotated" else 4) + 1
        check(gaussian(ranks, n, DTYPES[turn % 3]), [(n, codec(name, bits))], algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["rotated", "trellis"])
def test_short_messages_and_several_layers(name: str, algorithm: str) -> None:
    """Rounds of a few blocks; layers that start anywhere, so do the signs."""
    layers = [(5, None), (1500, codec(name, 2)), (300, codec(name, 1)), (700, _C.Codec(bits=4))]
    n = sum(numel for numel, _ in layers)
    for average in (False, True):
        check(gaussian(3, n), layers, algorithm, average, slot_bytes=1024)


@pytest.mark.parametrize("hosts", ["aabb", "aab"])
@pytest.mark.parametrize("inner_exact", [True, False])
def test_two_levels(hosts: str, inner_exact: bool) -> None:
    for name, algorithm in (("rotated", "sra"), ("trellis", "oneshot")):
        layers = [(1000, codec(name, 3)), (40, None)]
        inputs = gaussian(len(hosts), 1040)
        check(inputs, layers, algorithm, hosts=list(hosts), inner_exact=inner_exact)


def test_contributions_have_keys_of_their_own() -> None:
    """Equal inputs: errors average out, down to the bias of least squares, 0.117 of the values."""
    n, ranks = 64 * BLOCK, 16
    x = gaussian(1, n)[0]

    def error(scale: str) -> float:
        spec = codec("rotated", 2, scale=scale)
        found = run([x.clone() for _ in range(ranks)], [(n, spec)], "oneshot")[0][0] / ranks
        return float((found - x).square().sum() / x.square().sum())

    assert 0.117**2 < error("mse") < 0.117**2 + 0.117 / ranks
    assert error("unbiased") < 0.117 / 0.883 / ranks * 1.1
