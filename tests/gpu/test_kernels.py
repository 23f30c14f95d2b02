"""Encode, decode and decode+add against the CPU's codecs, byte by byte."""

from __future__ import annotations

import pytest
import torch

from tests.codec import gpu_cases as cases
from tests.gpu import ranks
from torch_cgx.codecs import Block, Float, Half, MaxMin, Rotated, Trellis

LARGE = 2**20 + 3
HUGE = LARGE if ranks.FAKE else 2**26 + 3


def _sizes(rank, world_size, dtype, bucket_size):
    step = 101 if ranks.FAKE else 20
    cases.check_sizes(dtype, bucket_size, cases.sizes(step))


@pytest.mark.parametrize("bucket_size", cases.BUCKETS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_all_widths_and_ways(dtype, bucket_size):
    ranks.run_alone(_sizes, dtype, bucket_size, timeout=300)


def _every_size(rank, world_size):
    for bucket_size in (5, 64):
        cases.check_sizes(
            torch.float32, bucket_size, range(401), [("stochastic", True)], bits=[3, 4]
        )


def test_every_small_size():
    ranks.run_alone(_every_size, timeout=300)


def _special(rank, world_size, dtype):
    cases.check_special(dtype)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nan_inf_and_extremes(dtype):
    ranks.run_alone(_special, dtype)


def _rotated(rank, world_size, dtype):
    cases.check_rotated(dtype, every=6 if ranks.FAKE else 1)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_rotated_blocks(dtype):
    ranks.run_alone(_rotated, dtype, timeout=300)


def _formats(rank, world_size, dtype):
    cases.check_formats(dtype, every=3 if ranks.FAKE else 1)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_formats_of_values_and_blocks(dtype):
    ranks.run_alone(_formats, dtype, timeout=300)


def _half(rank, world_size):
    for codec, x, shift in cases.half_cases():
        cases.check(codec, x, shift)


def test_sixteen_bits():
    ranks.run_alone(_half)


def _large(rank, world_size, n, codecs, shift):
    for dtype in (torch.float32, torch.bfloat16):
        x = cases.values(n, dtype)
        for codec in codecs:
            cases.check(codec, x, shift)


@pytest.mark.parametrize("shift", [0, 3])
def test_more_tiles_than_blocks(shift):
    codecs = [MaxMin(bits, bucket) for bits in (1, 3, 4, 8) for bucket in (64, 512, 2049)]
    codecs += [MaxMin(4, 512, "stochastic", 9), MaxMin(8, 100_000), MaxMin(2, 1000, "nearest", 0)]
    codecs += [MaxMin(4, 1024), Rotated(4), Trellis(4), Half("bf16"), Half("fp16")]
    codecs += [
        Float(4, 3),
        Float(3, 2, "stochastic", seed=9),
        Block("mxfp4"),
        Block("fp8_block128"),
    ]
    ranks.run_alone(_large, LARGE, codecs, shift, timeout=300)


def test_more_than_two_to_the_26_values():
    ranks.run_alone(_large, HUGE, [MaxMin(4), MaxMin(8, 512, "stochastic", 9)], 0, timeout=300)


def _at_any_byte(rank, world_size, dtype):
    """A view of a storage of bytes whose address is no multiple of the element size."""
    x = cases.values(5000, dtype)
    room = torch.zeros(x.nbytes + 1, dtype=torch.uint8, device="cuda")
    unaligned = torch.empty(0, dtype=dtype, device="cuda")
    unaligned.set_(room.untyped_storage()[1:], 0, x.shape)
    assert unaligned.data_ptr() % x.element_size() == 1
    for codec in (MaxMin(4), Rotated(4), Trellis(4)):
        room[1:].copy_(x.view(torch.uint8))
        sent = codec.encode(unaligned)
        assert torch.equal(sent.cpu(), codec.encode(x))
        back = codec.decode(sent, numel=x.numel(), dtype=dtype)
        room.zero_()
        codec.decode(sent, unaligned)
        assert torch.equal(room[1:].cpu(), back.cpu().view(torch.uint8))


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_values_may_lie_at_any_byte(dtype):
    ranks.run_alone(_at_any_byte, dtype)


def _beyond(rank, world_size):
    """Values whose places need more than 32 bits in bytes: the last part, against itself alone."""
    n, last = 2**30 + 5 * 512, 5 * 512 + 512
    x = torch.zeros(n, device="cuda")
    x[-last:].copy_(cases.values(last))
    codec = MaxMin(4, 512)
    sent = codec.encode(x)
    del x
    back = codec.decode(sent, numel=n)
    assert torch.equal(back[-last:].cpu(), codec.roundtrip(cases.values(last)))
    assert back[:-last].eq(0).all()


@ranks.real
def test_more_than_four_gibibytes():
    ranks.run_alone(_beyond)


def _repeat(rank, world_size):
    x = cases.values(LARGE).to("cuda")
    for codec in (MaxMin(4), MaxMin(8, 2049), MaxMin(2, 64, "stochastic", 3)):
        first = codec.encode(x, rank=1, sequence=2)
        for _ in range(20):
            assert torch.equal(codec.encode(x, rank=1, sequence=2), first)


def test_bytes_are_the_same_from_run_to_run():
    ranks.run_alone(_repeat)
