"""Integers and bools in the bits that they need, on any device.

csrc/codec/activations/integers describes the format. The CPU has an operator; other devices go by
torch's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_cgx.activations import _operators

_ops = torch.ops.torch_cgx
_GROUP = 8  # codes, whose bits fill whole bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """codes: uint8, or None where all values are `low`."""

    codes: torch.Tensor | None
    low: int
    bits: int


def worth(tensor: torch.Tensor) -> bool:
    """Whether the tensor has a type of which values may need fewer bits."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def pack(tensor: torch.Tensor) -> Packed | None:
    """Any strides, values in row-major order. None: nothing is won. On a GPU the CPU waits for the
    smallest and the largest value of integers.
    """
    if tensor.dtype == torch.bool:
        return Packed(_pack(tensor, 0, 1), 0, 1)
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64) or not tensor.numel():
        return None  # torch has no extremes of these
    least, most = (int(value) for value in torch.aminmax(tensor))
    bits = (most - least).bit_length()
    if bits == 0:
        return Packed(None, least, 0)
    if bits >= 8 * tensor.itemsize:
        return None
    return Packed(_pack(tensor, least, bits), least, bits)


def unpack(packed: Packed, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The values, in one dimension."""
    if packed.codes is None:
        return torch.full((numel,), packed.low, dtype=dtype, device=device)
    if device.type == "cpu":
        return _ops.unpack_integers(packed.codes, packed.low, packed.bits, numel, dtype=dtype)
    return unpack_by_torch(packed, numel, dtype)


def _pack(tensor: torch.Tensor, low: int, bits: int) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return _ops.pack_integers(tensor, low, bits)
    return pack_by_torch(tensor, low, bits)


def pack_by_torch(tensor: torch.Tensor, low: int, bits: int) -> torch.Tensor:
    values = tensor.reshape(-1).to(torch.int64) - low
    planes, rest = divmod(bits, 8)
    parts = [(values >> (8 * plane) & 0xFF).to(torch.uint8) for plane in range(planes)]
    if rest:
        numel = values.numel()
        codes = values >> (8 * planes) & ((1 << rest) - 1)
        codes = torch.nn.functional.pad(codes, (0, -numel % _GROUP)).view(-1, _GROUP)
        shifts = _shifts(rest, tensor.device)
        words = (codes << shifts).sum(1)
        stream = words.view(torch.uint8).view(-1, 8)[:, :rest].reshape(-1)
        parts.append(stream[: _operators.packed_bytes(numel, rest)])
    return torch.cat(parts)


def unpack_by_torch(packed: Packed, numel: int, dtype: torch.dtype) -> torch.Tensor:
    codes = packed.codes
    assert codes is not None
    planes, rest = divmod(packed.bits, 8)
    values = torch.zeros(numel, dtype=torch.int64, device=codes.device)
    for plane in range(planes):
        values |= codes[plane * numel : (plane + 1) * numel].to(torch.int64) << (8 * plane)
    if rest:
        stream = codes[planes * numel :]
        stream = torch.nn.functional.pad(stream, (0, -stream.numel() % rest)).view(-1, rest)
        words = torch.nn.functional.pad(stream, (0, 8 - rest)).view(torch.int64)
        shifts = _shifts(rest, codes.device)
        found = (words >> shifts & ((1 << rest) - 1)).view(-1)[:numel]
        values |= found << (8 * planes)
    return (values + packed.low).to(dtype)


def _shifts(rest: int, device: torch.device) -> torch.Tensor:
    """Of the codes of a group."""
    return torch.arange(0, _GROUP * rest, rest, dtype=torch.int64, device=device)
