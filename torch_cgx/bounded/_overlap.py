"""Tensors to write: their memory must be theirs alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from torch_cgx.bounded._named import Named


def check_writable(tensors: Sequence[Named]) -> None:
    """ValueError, with names: a tensor has several values in one place, or two tensors share
    memory. A value that is written twice is rounded twice, beyond the bound.
    """
    for one in tensors:
        _check_alone(one)
    for near in _neighbours(tensors):
        _check_apart(near)


def _dims(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Stride and size of its dimensions, without those of one place."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [(stride, size) for stride, size in pairs if size > 1]


def _check_alone(one: Named) -> None:
    if one.tensor.numel() == 0:
        return
    reach = 0  # of the dimensions with smaller strides, from the first value to the last
    for stride, size in sorted(_dims(one.tensor)):
        if stride <= reach:
            kind = "an expanded tensor" if stride == 0 else "a tensor with overlapping values"
            raise ValueError(
                f"{one.name or 'the tensor'}: {kind} cannot be written; give a contiguous one"
            )
        reach += stride * (size - 1)


def _neighbours(tensors: Sequence[Named]) -> Iterator[list[Named]]:
    """Groups of tensors, of which each begins before all the earlier ones end."""
    filled = [one for one in tensors if one.tensor.numel() > 0]
    filled.sort(key=lambda one: (str(one.tensor.device), one.tensor.data_ptr()))
    near: list[Named] = []
    end = 0
    for one in filled:
        tensor = one.tensor
        if near and (near[0].tensor.device != tensor.device or tensor.data_ptr() >= end):
            yield near
            near, end = [], 0
        near.append(one)
        last = sum(stride * (size - 1) for stride, size in _dims(tensor))
        end = max(end, tensor.data_ptr() + (last + 1) * tensor.element_size())
    if near:
        yield near


def _check_apart(near: list[Named]) -> None:
    """Columns of a matrix lie between each other, and are apart: a map of the memory tells."""
    if len(near) == 1:
        return
    first = near[0].tensor.data_ptr()
    starts = [one.tensor.data_ptr() - first for one in near]
    unit = math.gcd(*starts, *(one.tensor.element_size() for one in near))
    views = []
    for one, start in zip(near, starts, strict=True):
        each = one.tensor.element_size() // unit
        dims = [(stride * each, size) for stride, size in _dims(one.tensor)] + [(1, each)]
        views.append((dims, start // unit))
    room = 1 + max(
        start + sum(stride * (size - 1) for stride, size in dims) for dims, start in views
    )
    owners = torch.zeros(room, dtype=torch.int32, device="cpu")  # 0: none
    for number, (dims, start) in enumerate(views, 1):
        places = owners.as_strided([size for _, size in dims], [step for step, _ in dims], start)
        owner = int(places.max())
        if owner > 0:
            names = near[owner - 1].name, near[number - 1].name
            raise ValueError(f"{names[0]} and {names[1]} share memory: broadcast one of them")
        places.fill_(number)
