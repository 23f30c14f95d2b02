"""The ways to all-reduce that are compared, one object each behind one interface, and how far from
the exact sum of known data each may be.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import torch_cgx

GLOO = "gloo fp32"
STAGES = ("encode", "transfer", "decode")
COUNTERS = ("calls", "bytes_sent", *(f"seconds_{stage}" for stage in STAGES))
FP32_ROUNDING = 2.0**-24
# Largest error of a 16-bit float next to 1, and its smallest subnormal.
HALF = {
    torch.float16: (2.0**-11, 2.0**-24),
    torch.bfloat16: (2.0**-8, 2.0**-133),
}
# Evaluating a bound must not be the reason for missing it.
_SLACK = 1 + 2.0**-20
LARGEST_BLOCK = 4096  # of the codecs rotated and trellis


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
        self.norms = 0.0  # of the longest block of each rank, added up
        for rank in range(world_size):
            x = contribution(rank, numel)
            self.sum += x
            rows = by_bucket(x, bucket_size)
            low, high = rows.aminmax(dim=1)
            self.ranges += high.double() - low.double()
            self.peaks += torch.maximum(high.abs(), low.abs()).double()
            self.norms += float(by_bucket(x, LARGEST_BLOCK).double().norm(dim=1).max())
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
        """Of a maxmin sum, per bucket (csrc/codec/families/maxmin/formulas.h): step/2 + 12 2^-24 M
        per rounding, with step = range / (2^bits - 1). Every contribution is rounded once, and with
        `two_roundings` their sum once more, whose range the first errors may have widened.
        """
        levels = 2**bits - 1
        bound = self.ranges / levels / 2 + 12 * FP32_ROUNDING * self.peaks
        bound = bound + self.fp32_bound()
        if two_roundings:
            widened = self.sum_range + 2 * bound
            bound = bound + widened / levels / 2 + 12 * FP32_ROUNDING * (self.peaks + bound)
        return bound * _SLACK

    def rotation_bound(self) -> torch.Tensor:
        """Of a sum with the codec rotated or trellis, scale mse, per bucket: no encoding is off by
        more than the norm of its block (csrc/codec/rotation/formulas.h), and the second one's
        values are at most twice as large as the first one's.
        """
        return torch.full_like(self.peaks, 4 * self.norms) + self.fp32_bound()

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


# ---- methods


class Method(ABC):
    """All-reduces an fp32 vector in place, among all ranks. `mean`: the result is their mean."""

    name: str
    communicator: str = "gloo"
    bits: int = 32
    mean: bool = False
    wire_source: str = "formula"

    @abstractmethod
    def run(self, x: torch.Tensor) -> None: ...

    @abstractmethod
    def bound(self, reference: Reference) -> torch.Tensor:
        """Largest allowed error per bucket."""

    def wire_bytes(self, ranks: int, nbytes: int) -> float:
        """Bytes that a rank sends for `nbytes` of fp32, where nobody counts them."""
        return ring_bytes(ranks, self.bits, nbytes)

    def counted(self) -> dict[str, float]:
        """Counters since the group was made (see torch_cgx.stats), or nothing."""
        return {}

    def staging_bytes(self) -> int | None:
        """Host memory that messages between hosts hold now; None: nobody counts it."""
        return None


class Gloo(Method):
    """What a program without cgx does: dist.all_reduce on a gloo group of its own."""

    name = GLOO

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")

    def run(self, x: torch.Tensor) -> None:
        dist.all_reduce(x, group=self._group)

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.fp32_bound()


class _Bucket:
    """What torch's compression hooks use of a GradBucket, which only DDP can make."""

    def __init__(self, x: torch.Tensor):
        self._x = x

    def buffer(self) -> torch.Tensor:
        return self._x


class Hook(Method):
    """torch's own 16-bit DDP hooks, called as DDP calls them, on a gloo group: cast, divide by the
    number of ranks, all-reduce, copy back.
    """

    mean = True
    bits = 16

    def __init__(self, dtype: torch.dtype):
        self._dtype = dtype
        hooks: dict[torch.dtype, tuple[str, Callable[..., Any]]] = {
            torch.float16: ("fp16 hook", default_hooks.fp16_compress_hook),
            torch.bfloat16: ("bf16 hook", default_hooks.bf16_compress_hook),
        }
        self.name, self._hook = hooks[dtype]
        self._group = dist.new_group(backend="gloo")

    def run(self, x: torch.Tensor) -> None:
        self._hook(self._group, _Bucket(x)).wait()

    def bound(self, reference: Reference) -> torch.Tensor:
        return reference.half_bound(self._dtype)


class CgxGroup(Method):
    """dist.all_reduce on a cgx group of all ranks. options: of torch_cgx.Options."""

    wire_source = "measured"

    def __init__(self, name: str, communicator: str, options: dict[str, Any]):
        self.name = name
        self.communicator = communicator
        self.bits = options["bits"]
        self.codec = options.get("codec", "maxmin")
        self.group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(**options))

    def run(self, x: torch.Tensor) -> None:
        dist.all_reduce(x, group=self.group)

    def bound(self, reference: Reference) -> torch.Tensor:
        if self.bits == 16:
            return reference.cast_bound(torch.bfloat16)
        if self.bits > 8:
            return reference.fp32_bound()
        if self.codec != "maxmin":
            return reference.rotation_bound()
        return reference.maxmin_bound(self.bits, two_roundings=self.two_roundings(reference))

    def two_roundings(self, reference: Reference) -> bool:
        """Whether a value may be rounded twice."""
        return True

    def counted(self) -> dict[str, float]:
        stats = torch_cgx.stats(self.group)
        return {name: stats[name] for name in COUNTERS}

    def staging_bytes(self) -> int | None:
        return int(torch_cgx.stats(self.group)["staging_bytes"])


class WidthGroup(CgxGroup):
    """What an autotuned group chooses from, and such a group. By name: "exact" and "again" (another
    one like it), "half" (16 bits), "asked" (`bits`), and "tuned", which is autotuned and was asked
    for `bits`. options: further torch_cgx.Options.
    """

    CHOICES = ("exact", "half", "asked")

    def __init__(self, name: str, bits: int, bucket_size: int, **options: Any):
        width = {"exact": 32, "again": 32, "half": 16}.get(name, bits)
        options |= {"bits": width, "bucket_size": bucket_size, "autotune": name == "tuned"}
        super().__init__(name, "any", options)

    def bound(self, reference: Reference) -> torch.Tensor:
        if self.bits > 16:
            return reference.fp32_bound()
        # half_bound bounds a mean.
        half = reference.half_bound(torch.bfloat16) * reference.world_size
        if self.bits == 16:
            return half
        asked = reference.maxmin_bound(self.bits, two_roundings=True)
        return torch.maximum(asked, half) if self.name == "tuned" else asked

    def tuning_of(self, nbytes: int) -> dict[str, Any]:
        """What the autotuned group knows of messages of this size."""
        known = torch_cgx.tuning(self.group)
        assert known is not None, f"{self.name} is not autotuned"
        rows = known["classes"]
        (row,) = [row for row in rows if row["bytes"] == nbytes]
        return dict(row)


def ring_bytes(world_size: int, bits: int, nbytes: int) -> float:
    """Bytes that a rank sends in a ring or halving-doubling all-reduce of `nbytes` of fp32, sent
    with `bits` (16 or 32) per value: 2 (N - 1) / N of the vector.
    """
    return 2 * (world_size - 1) / world_size * nbytes * bits / 32
