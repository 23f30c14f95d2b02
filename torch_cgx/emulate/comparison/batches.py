"""Batches: drawn from samples by seed and step, and cut into micro-batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_cgx.emulate.comparison.generators import generator


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Batches of samples, shuffled anew for each epoch; the last, incomplete batch of an epoch is
    left out. samples: tensors that have the samples in dimension 0, or a dataset with a length and
    numbered samples, which torch's `default_collate` joins. ValueError, at a call: a batch is
    larger than all samples.
    """

    samples: Any

    def __call__(self, seed: int, step: int, size: int) -> Any:
        """The batch of a step: a tuple of tensors [size, ...], or what `default_collate` makes."""
        total = count(self.samples)
        if size > total:
            raise ValueError(f"batch={size} exceeds the {total} samples to train on")
        epoch, number = divmod(step, total // size)
        order = _order(seed, epoch, total)
        return take(self.samples, order[number * size : (number + 1) * size])


@functools.lru_cache(4)
def _order(seed: int, epoch: int, total: int) -> torch.Tensor:
    return torch.randperm(
        total, generator=generator(seed, "epoch", epoch), dtype=torch.int64, device="cpu"
    )


def count(samples: Any) -> int:
    """How many samples there are."""
    return len(samples[0]) if isinstance(samples, tuple) else len(samples)


def take(samples: Any, index: torch.Tensor) -> Any:
    """The samples of these numbers, int64 [n]."""
    if isinstance(samples, tuple):
        return tuple(tensor[index] for tensor in samples)
    from torch.utils.data import default_collate

    return default_collate([samples[i] for i in index.tolist()])


def split(batch: Any, parts: int) -> list[Any]:
    """A batch in `parts` equal ones. batch: a tensor, or tuples, lists and dicts of tensors with
    the samples in dimension 0. TypeError, ValueError: it is not, or cannot be cut so.
    """
    if parts == 1:
        return [batch]
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0 or batch.shape[0] % parts:
            raise ValueError(
                f"a batch has a tensor of shape {tuple(batch.shape)}, which is not cut into "
                f"{parts} equal parts along dimension 0"
            )
        return list(batch.chunk(parts))
    if isinstance(batch, Mapping):
        columns = {key: split(value, parts) for key, value in batch.items()}
        return [{key: column[i] for key, column in columns.items()} for i in range(parts)]
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        rows = list(zip(*(split(value, parts) for value in batch), strict=True))
        fields = hasattr(batch, "_fields")  # a named tuple
        return [type(batch)(*row) if fields else type(batch)(row) for row in rows]  # type: ignore
    raise TypeError(
        f"a batch holds an object of type {type(batch).__name__}; allowed: tensors, and tuples, "
        "lists and dicts of them"
    )
