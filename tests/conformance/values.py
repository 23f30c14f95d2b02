"""What each rank puts into a collective, and what NumPy says comes out. All values are bytes of a
pool that every process fills alike, so each rank can work out the input of every other one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Raw = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

_POOL_BYTES = 1 << 21
_STARTS = 1 << 20  # a prime number of bytes apart, so no two inputs of a call begin alike

# None: NumPy has no such type; its values are computed in float32, or it is only moved.
_NUMPY: dict[torch.dtype, type | None] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.uint16: np.uint16,
    torch.int32: np.int32,
    torch.uint32: np.uint32,
    torch.int64: np.int64,
    torch.uint64: np.uint64,
    torch.float16: np.float16,
    torch.bfloat16: None,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
    torch.float8_e4m3fn: None,
    torch.float8_e5m2: None,
    torch.float8_e4m3fnuz: None,
    torch.float8_e5m2fnuz: None,
}
MOVED = list(_NUMPY)
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ORDERED = ("MIN", "MAX", "PRODUCT")
BITWISE = ("BAND", "BOR", "BXOR")
REDUCTIONS = ("SUM", "AVG", *ORDERED, *BITWISE)


def reduced(reduction: str) -> list[torch.dtype]:
    """The types of which torch has this reduction."""
    if reduction in BITWISE:
        return [*INTEGERS, torch.bool]
    if reduction == "AVG":
        return INTEGERS + FLOATS + COMPLEX
    return INTEGERS + FLOATS + [torch.bool] + (COMPLEX if reduction == "SUM" else [])


@functools.cache
def _pool() -> Raw:
    return np.random.default_rng(20261129).integers(0, 256, _POOL_BYTES, dtype=np.uint8)


def prepare() -> None:
    """Fills the pool, for processes that are forked later."""
    _pool()


def raw(key: int, rank: int, part: int, nbytes: int) -> Raw:
    """Bytes of part `part` of the input of rank `rank`; read only."""
    start = (key * 31 + rank * 7919 + part * 104_729) % _STARTS
    if start + nbytes <= _POOL_BYTES:
        return _pool()[start : start + nbytes]
    return np.resize(_pool()[start:], nbytes)


def moved(dtype: torch.dtype, key: int, rank: int, part: int, n: int) -> Raw:
    """Bytes of `n` values that are only moved: any bits, except of a bool."""
    found = raw(key, rank, part, n * dtype.itemsize)
    return found & 1 if dtype == torch.bool else found


def tensor_of(bits: Raw, dtype: torch.dtype) -> torch.Tensor:
    """A new tensor, one-dimensional and contiguous."""
    if len(bits) == 0:
        return torch.empty(0, dtype=dtype)
    return torch.from_numpy(bits.copy()).view(dtype)


def bits_of(tensor: torch.Tensor) -> Raw:
    flat = tensor.detach().contiguous().view(-1)
    found: Raw = flat.view(torch.uint8).numpy()
    return found


# ---- numbers ----


def decode(bits: Raw, dtype: torch.dtype) -> Array:
    """Numbers in the type in which they are computed; complex ones are two real ones each."""
    if dtype == torch.bfloat16:
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype in COMPLEX:
        return bits.view(np.float32 if dtype == torch.complex64 else np.float64)
    kind = _NUMPY[dtype]
    assert kind is not None, dtype
    return bits.view(kind)


def encode(numbers: Array, dtype: torch.dtype) -> Raw:
    """Numbers that `decode` or a sum in float32 gave, rounded to the type."""
    if dtype == torch.bfloat16:
        word = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
        even = word + np.uint32(0x7FFF) + (word >> 16 & 1)  # none of them is a NaN
        return (even >> 16).astype(np.uint16).view(np.uint8)
    kind = numbers.dtype if dtype in COMPLEX else _NUMPY[dtype]
    return np.ascontiguousarray(numbers.astype(kind)).view(np.uint8)


def reducible(
    dtype: torch.dtype, key: int, rank: int, part: int, n: int, rough: bool = False
) -> Raw:
    """Bytes of `n` values to reduce: any integers; whole floats from -2 to 2, whose sums and
    products are exact in any order; `rough`: floats whose sum depends on the order.
    """
    if dtype == torch.bool or dtype in INTEGERS:
        return moved(dtype, key, rank, part, n)
    count = n * (2 if dtype in COMPLEX else 1)
    if not rough:
        small = raw(key, rank, part, count).astype(np.int64) % 5 - 2
        return encode(small.astype(_computed(dtype)), dtype)
    wide = raw(key, rank, part, 4 * count).view(np.uint32).astype(np.float64)
    return encode(((wide - 2.0**31) / 2.0**29.3).astype(_computed(dtype)), dtype)


def _computed(dtype: torch.dtype) -> type:
    return np.float64 if dtype in (torch.float64, torch.complex128) else np.float32


_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "SUM": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def combine(inputs: Sequence[Raw], reduction: str, dtype: torch.dtype) -> Raw:
    """The reduction in rank order. Integers wrap; floats are added in float32 (float64 in their own
    type) and rounded once; an average is divided once, of integers towards zero.
    """
    numbers = [decode(bits, dtype) for bits in inputs]
    if numbers[0].dtype == np.float16:
        numbers = [x.astype(np.float32) for x in numbers]
    two = _TWO["SUM" if reduction == "AVG" else reduction]
    total = functools.reduce(two, numbers)
    if reduction == "AVG":
        if dtype in INTEGERS:
            size = total.dtype.type(len(inputs))
            down = total // size
            total = down + ((total < 0) & (down * size != total)).astype(total.dtype)
        else:
            total = total / total.dtype.type(len(inputs))
    return encode(total, dtype)
