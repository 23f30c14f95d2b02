"""What an all-reduce of known data has to give, and how far from it a result may be."""

from __future__ import annotations

import math
import zlib

import torch

FP32_ROUNDING = 2.0**-24
# Largest error of a 16-bit float next to 1, and its smallest subnormal.
HALF = {
    torch.float16: (2.0**-11, 2.0**-24),
    torch.bfloat16: (2.0**-8, 2.0**-133),
}
# Evaluating a bound must not be the reason for missing it.
_SLACK = 1 + 2.0**-20


def contribution(rank: int, numel: int) -> torch.Tensor:
    """The values that `rank` brings: fp32 of shape (numel,), standard normal, the same in every
    process.
    """
    generator = torch.Generator().manual_seed(1_000_003 * (rank + 1) + numel)
    return torch.randn(numel, generator=generator)


def by_bucket(values: torch.Tensor, bucket_size: int) -> torch.Tensor:
    """`values` as rows of one bucket each; the last row is filled up with the last value."""
    bucket_size = min(bucket_size, values.numel())
    missing = -values.numel() % bucket_size
    if missing:
        values = torch.cat([values, values[-1:].expand(missing)])
    return values.view(-1, bucket_size)


class Reference:
    """Exact results, and bounds on the error of each method, for one size.

    Everything of size numel is computed once: the sum in fp64, and of each rank's contribution the
    range and the largest magnitude of every bucket.
    """

    def __init__(self, world_size: int, numel: int, bucket_size: int):
        self.world_size = world_size
        self.bucket_size = bucket_size
        self.sum = torch.zeros(numel, dtype=torch.float64)
        buckets = math.ceil(numel / bucket_size)
        self.ranges = torch.zeros(buckets, dtype=torch.float64)  # added up over the ranks
        self.peaks = torch.zeros(buckets, dtype=torch.float64)
        for rank in range(world_size):
            x = contribution(rank, numel)
            self.sum += x
            rows = by_bucket(x, bucket_size)
            low, high = rows.aminmax(dim=1)
            self.ranges += high.double() - low.double()
            self.peaks += torch.maximum(high.abs(), low.abs()).double()
        rows = by_bucket(self.sum, bucket_size)
        self.sum_range = rows.amax(dim=1) - rows.amin(dim=1)

    def fp32_bound(self) -> torch.Tensor:
        """Of an fp32 sum in any order, per bucket: each of the N - 1 additions errs by at most
        2^-24 of a partial sum.
        """
        return self.world_size * FP32_ROUNDING * self.peaks * _SLACK

    def half_bound(self, dtype: torch.dtype) -> torch.Tensor:
        """Of a mean that is cast to `dtype`, divided by N and summed there: N + 1 roundings of
        something no larger than the sum of magnitudes over N, each with its subnormal floor.
        """
        relative, floor = HALF[dtype]
        n = self.world_size
        return (n + 1) * (relative * self.peaks / n * (1 + n * relative) + floor) * _SLACK

    def cast_bound(self, dtype: torch.dtype) -> torch.Tensor:
        """Of an fp32 sum of contributions cast to `dtype`, cast once more, per bucket."""
        relative, floor = HALF[dtype]
        cast = relative * self.peaks + self.world_size * floor
        return (cast + relative * (self.peaks + cast) + floor + self.fp32_bound()) * _SLACK

    def maxmin_bound(self, bits: int, two_roundings: bool) -> torch.Tensor:
        """Of a maxmin sum, per bucket (csrc/codec/families/maxmin/formulas.h): step / 2 + 12 2^-24 M per rounding,
        with step = range / (2^bits - 1). Every contribution is rounded once, and with
        `two_roundings` their sum once more, whose range the first errors may have widened.
        """
        levels = 2**bits - 1
        bound = self.ranges / levels / 2 + 12 * FP32_ROUNDING * self.peaks
        bound = bound + self.fp32_bound()
        if two_roundings:
            widened = self.sum_range + 2 * bound
            bound = bound + widened / levels / 2 + 12 * FP32_ROUNDING * (self.peaks + bound)
        return bound * _SLACK

    def compare(self, result: torch.Tensor, bound: torch.Tensor, mean: bool) -> tuple[bool, float]:
        """Whether every value lies within its bucket's bound, and the relative L2 error.

        result: fp32 of shape (numel,), a mean over the ranks if `mean`.
        """
        exact = self.sum / self.world_size if mean else self.sum
        error = result.double() - exact
        worst = by_bucket(error.abs(), self.bucket_size).amax(dim=1)
        inside = bool((worst <= bound).all())  # False for a NaN, too
        return inside, float(error.norm() / exact.norm())


def fingerprint(result: torch.Tensor) -> int:
    """Equal for equal bits."""
    return zlib.crc32(result.numpy().tobytes())
