"""The operators for activations on tensors without values: shapes, dtypes and checks, as
torch_cgx/_operators.py has them for codecs. Importing this module loads the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _operators
from torch_cgx._operators import _check_device, _check_payload, _check_tensor, _fake

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MOST_LEVELS = 16
LARGEST = torch.finfo(torch.float32).max  # of a level
Int = _operators.Int


def _check_floating(what: str, tensor: torch.Tensor) -> None:
    _check_tensor(what, tensor)
    if tensor.dtype not in FLOATING:
        raise TypeError(
            f"{what}.dtype is {tensor.dtype}, allowed: float32, float64, float16, bfloat16"
        )


def _check_integers(what: str, dtype: torch.dtype) -> None:
    if dtype.is_floating_point or dtype.is_complex:
        raise TypeError(f"{what} is {dtype}, allowed: integers, bool")


def code_bytes(numel: Int, levels: int) -> Int:
    """Of the codes of `numel` values by a table of so many levels."""
    return (numel * (levels - 1).bit_length() + 7) // 8


def packed_bytes(numel: Int, bits: int) -> Int:
    """Of `numel` integers in `bits` bits each (csrc/codec/activations/integers)."""
    return bits // 8 * numel + (numel * (bits % 8) + 7) // 8


def _check_levels(levels: int) -> None:
    if not 2 <= levels <= MOST_LEVELS:
        raise ValueError(f"a table has {levels} levels, allowed: 2 to {MOST_LEVELS}")


@_fake("level_encode")
def _level_encode(
    tensor: torch.Tensor,
    borders: Sequence[float],
    levels: int,
    *,
    magnitude: bool = False,
    mark_nans: bool = False,
) -> torch.Tensor:
    _check_floating("tensor", tensor)
    _check_levels(len(borders) + 1)
    _check_levels(levels)
    return tensor.new_empty((code_bytes(tensor.numel(), levels),), dtype=torch.uint8)


@_fake("level_multiply")
def _level_multiply(
    grad: torch.Tensor, codes: torch.Tensor, levels: Sequence[float]
) -> torch.Tensor:
    _check_floating("grad", grad)
    _check_payload("codes", codes)
    _check_device("codes", codes, "grad", grad)
    _check_levels(len(levels))
    return grad.new_empty(grad.shape)


@_fake("level_decode")
def _level_decode(
    codes: torch.Tensor, levels: Sequence[float], numel: Int, *, dtype: torch.dtype
) -> torch.Tensor:
    _check_payload("codes", codes)
    _check_levels(len(levels))
    return codes.new_empty((numel,), dtype=dtype)


@_fake("pack_two_values")
def _pack_two_values(tensor: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The size of its result depends on values: empty where there are others than these two."""
    _check_floating("tensor", tensor)
    size = torch.library.get_ctx().new_dynamic_size()
    return tensor.new_empty((size,), dtype=torch.uint8)


@_fake("pack_integers")
def _pack_integers(tensor: torch.Tensor, low: int, bits: int) -> torch.Tensor:
    _check_tensor("tensor", tensor)
    _check_integers("tensor.dtype", tensor.dtype)
    return tensor.new_empty((packed_bytes(tensor.numel(), bits),), dtype=torch.uint8)


@_fake("unpack_integers")
def _unpack_integers(
    codes: torch.Tensor, low: int, bits: int, numel: Int, *, dtype: torch.dtype
) -> torch.Tensor:
    _check_payload("codes", codes)
    _check_integers("dtype", dtype)
    return codes.new_empty((numel,), dtype=dtype)


@_fake("norm_backward")
def _norm_backward(
    grad: torch.Tensor,
    output: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    inverse: torch.Tensor,
    centred: bool,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check_floating("output", output)
    dx = output.new_empty(output.shape if wanted[0] else (0,))
    dweight, dbias = (weight.new_empty((weight.numel() if one else 0,)) for one in wanted[1:])
    return dx, dweight, dbias


@_fake("dropout")
def _dropout(tensor: torch.Tensor, p: float, key: int) -> torch.Tensor:
    _check_floating("tensor", tensor)
    return tensor.new_empty(tensor.shape)
