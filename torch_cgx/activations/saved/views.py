"""Which elements of its storage a view has, so that views of the same elements share a payload."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Region:
    """Elements of a storage in the order of their addresses: a rectangle of `sizes` whose last
    dimension is the nearest in memory. offset, strides: in elements.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        found = 1
        for size in self.sizes:
            found *= size
        return found

    @property
    def end(self) -> int:
        """The place behind the last element."""
        return (
            self.offset
            + sum((n - 1) * by for n, by in zip(self.sizes, self.strides, strict=True))
            + 1
        )

    @property
    def dense(self) -> bool:
        """Whether it has no gaps."""
        return self.end - self.offset == self.numel

    def contains(self, other: Region) -> bool:
        """Whether it has all elements of the other; False where that takes long to say."""
        return self.dense and self.offset <= other.offset and other.end <= self.end


def region_of(tensor: torch.Tensor) -> Region | None:
    """The region of a tensor's elements. Dimensions are sorted by stride and merged where one
    continues the other, so it is the same for a transposed, reshaped or expanded view. None: the
    tensor is empty, or its elements overlap in another way than by expanding.
    """
    dimensions = [
        (by, n) for by, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1 and by != 0
    ]
    if tensor.numel() == 0:
        return None
    dimensions.sort(reverse=True)
    sizes: list[int] = []
    strides: list[int] = []
    for by, n in dimensions:
        if sizes and strides[-1] == by * n:
            sizes[-1] *= n
            strides[-1] = by
        elif sizes and strides[-1] < by * n:
            return None
        else:
            sizes.append(n)
            strides.append(by)
    if not sizes:
        sizes, strides = [1], [1]
    return Region(int(tensor.storage_offset()), tuple(sizes), tuple(strides))
