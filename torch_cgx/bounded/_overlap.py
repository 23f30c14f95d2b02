"""Finds tensors that share memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from torch_cgx.bounded._named import Named


def check_writable(tensors: Sequence[Named]) -> None:
    """ValueError, with names: several values of a tensor are at the same address, or two tensors
    share memory. A value that is written twice would be rounded twice, which may exceed the bound.
    """
    for one in tensors:
        _check_alone(one)
    for near in _neighbours(tensors):
        _check_apart(near)


def _dims(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Stride and size of each dimension whose size is above 1."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [(stride, size) for stride, size in pairs if size > 1]


def _check_alone(one: Named) -> None:
    if one.tensor.numel() == 0:
        return
    reach = 0  # distance from the first to the last value along the dimensions with smaller strides
    for stride, size in sorted(_dims(one.tensor)):
        if stride <= reach:
            kind = "an expanded tensor" if stride == 0 else "a tensor with overlapping values"
            raise ValueError(
                f"{one.name or 'the tensor'}: {kind} cannot be written; pass a contiguous one"
            )
        reach += stride * (size - 1)


def groups(tensors: Sequence[Named]) -> list[list[int]]:
    """Groups of numbers of tensors that share memory, directly or through others. Tensors that
    share no memory are in no group.
    """
    numbers = {id(one): number for number, one in enumerate(tensors)}
    parent = list(range(len(tensors)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for near in _neighbours(tensors):
        for one, other in _meetings(near):
            a, b = root(numbers[id(one)]), root(numbers[id(other)])
            parent[max(a, b)] = min(a, b)
    found: dict[int, list[int]] = {}
    for number in range(len(tensors)):
        found.setdefault(root(number), []).append(number)
    return [group for group in found.values() if len(group) > 1]


def _neighbours(tensors: Sequence[Named]) -> Iterator[list[Named]]:
    """Groups of tensors, by address. In a group, each tensor begins before the end of an earlier
    one; tensors of two groups share no memory.
    """
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
        end = max(end, _end(tensor))
    if near:
        yield near


def _end(tensor: torch.Tensor) -> int:
    """The address after its last value."""
    last = sum(stride * (size - 1) for stride, size in _dims(tensor))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _check_apart(near: list[Named]) -> None:
    for one, other in _meetings(near):
        raise ValueError(f"{one.name} and {other.name} share memory: broadcast one of them")


def _meetings(near: list[Named]) -> Iterator[tuple[Named, Named]]:
    """Pairs of tensors that share memory. Two tensors that share memory are connected by pairs, and
    perhaps not a pair themselves. near: sorted by address.
    """
    if len(near) == 1:
        return
    if all(_end(one.tensor) - one.tensor.data_ptr() == one.tensor.nbytes for one in near):
        last = near[0]
        for one in near[1:]:  # each is without gaps, and begins before an earlier one ends
            yield last, one
            last = max(last, one, key=lambda some: _end(some.tensor))
        return
    # Columns of a matrix are interleaved and share nothing, so each unit of memory gets an owner.
    first = near[0].tensor.data_ptr()
    starts = [one.tensor.data_ptr() - first for one in near]
    unit = math.gcd(*starts, *(one.tensor.element_size() for one in near))
    owners = torch.zeros(
        (max(_end(one.tensor) for one in near) - first) // unit, dtype=torch.int32, device="cpu"
    )  # 0: none
    for number, (one, start) in enumerate(zip(near, starts, strict=True), 1):
        each = one.tensor.element_size() // unit
        dims = [(stride * each, size) for stride, size in _dims(one.tensor) if stride > 0]
        dims.append((1, each))
        places = owners.as_strided(
            [size for _, size in dims], [step for step, _ in dims], start // unit
        )
        taken = places[places > 0]
        while taken.numel() > 0:
            owner = int(taken[0])
            yield near[owner - 1], one
            taken = taken[taken != owner]
        places.fill_(number)
