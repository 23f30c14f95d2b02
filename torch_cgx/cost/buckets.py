"""The layers of a model in the buckets that DistributedDataParallel makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20  # DDP's defaults


@dataclass(frozen=True)
class Layer:
    """A parameter. shape: of it; width: bytes of a value."""

    name: str
    shape: tuple[int, ...]
    width: int = 4

    @property
    def numel(self) -> int:
        numel = 1
        for size in self.shape:
            numel *= size
        return numel

    @property
    def nbytes(self) -> int:
        return self.numel * self.width


def buckets_of(
    layers: Sequence[Layer], first_bytes: int = FIRST_BYTES, bucket_bytes: int = BUCKET_BYTES
) -> list[list[Layer]]:
    """Buckets in the order in which DDP hands them over: the last layers first. A bucket is closed
    by the layer that reaches its limit, as torch's `compute_bucket_assignment_by_size` has it;
    widths are kept apart.
    """
    found: list[list[Layer]] = []
    open_buckets: dict[int, list[Layer]] = {}
    limits: dict[int, int] = {}
    for layer in reversed(layers):
        bucket = open_buckets.setdefault(layer.width, [])
        bucket.append(layer)
        if sum(one.nbytes for one in bucket) >= limits.setdefault(layer.width, first_bytes):
            found.append(open_buckets.pop(layer.width))
            limits[layer.width] = bucket_bytes
    return found + [bucket for bucket in open_buckets.values() if bucket]
