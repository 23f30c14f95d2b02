"""A sample of a bucket's values: some of each layer, the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

LEAST, MOST = 1 << 12, 1 << 16  # values of a bucket
SPACING = 64  # one of so many values of a bucket, within these limits
RUN = 32  # values in a row, which share buckets of the codec


class Sample:
    """names, sizes: of the layers, in the bucket's order. About a 64th of the values, at least
    4096 and at most 65536 (and one run of 32 for each layer), in runs that are spread evenly.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int], device: torch.device):
        total = sum(sizes)
        wanted = min(max(total // SPACING, LEAST), MOST)
        self._names = list(names)
        self._counts: list[int] = []
        chosen = []
        offset = 0
        for size in sizes:
            places = _places(size, -(-wanted * size // max(1, total)))
            self._counts.append(places.numel())
            chosen.append(places + offset)
            offset += size
        none = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._index = torch.cat([none, *chosen]).to(device)

    @property
    def numel(self) -> int:
        return self._index.numel()

    def values(self, buffer: torch.Tensor) -> torch.Tensor:
        """The sampled values of a flat bucket, as fp32."""
        return buffer.reshape(-1).index_select(0, self._index).float()

    def errors(self, found: torch.Tensor, exact: torch.Tensor) -> dict[str, float | None]:
        """L2 error by L2 norm of each layer; None for a layer of zeros. Tensors: float64."""
        squares = torch.stack([(found - exact).square(), exact.square()])
        result: dict[str, float | None] = {}
        sums = [layer.sum(1) for layer in squares.split(self._counts, 1)]
        table = torch.stack(sums).tolist() if sums else []
        for name, (error, norm) in zip(self._names, table, strict=True):
            result[name] = (error / norm) ** 0.5 if norm > 0 else None
        return result


def _places(size: int, wanted: int) -> torch.Tensor:
    """Indices below `size`: all, or runs of RUN."""
    if size <= max(wanted, RUN):
        return _numbers(size)
    runs = max(1, wanted // RUN)
    begins = _numbers(runs) * (size - RUN) // max(1, runs - 1)
    places = (begins[:, None] + _numbers(RUN)[None, :]).reshape(-1)
    return torch.unique(places)


def _numbers(end: int) -> torch.Tensor:
    return torch.arange(end, dtype=torch.int64, device="cpu")
