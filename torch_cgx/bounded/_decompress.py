"""bounded.decompress."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._entropy import coder
from torch_cgx.bounded._memory import new_tensor
from torch_cgx.bounded._payload import Payload, PayloadError, open_payload
from torch_cgx.bounded._threads import each

# Devices whose memory blocks are decoded into.
_OWN = ("cpu", "cuda")


def decompress(
    payload: torch.Tensor | bytes | bytearray | memoryview,
    out: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor:
    """The tensor of a payload, with its shape and dtype.

    payload: what `compress` returned, on any device, or its bytes. out: a tensor of the same shape
    and dtype to write into, which is returned; on an error it may be partly written. device: of the
    result; default: the CPU. A CUDA device makes the values itself; the CPU runs the entropy
    decoder. rows: a part of the first dimension, such as slice(100, 200); only the blocks that hold
    it are decoded. On as many threads as torch uses.

    PayloadError (a ValueError): the payload is of another version or codec, cut, or altered.
    ValueError: out does not fit, or rows has a negative step.
    """
    opened = open_payload(payload)
    first, last, shape = 0, opened.parts, opened.shape
    step = 1
    if rows is not None:
        first, last, shape, step = _rows(opened, rows)
    wanted = (-(-shape[0] // step), *shape[1:]) if rows is not None else shape
    if out is not None:
        _check_out(out, wanted, opened.dtype, device)
    direct = out is not None and step == 1 and _takes_blocks(out)
    where = out.device if out is not None else torch.device(device or "cpu")
    parts = _target(out if direct else None, opened, shape, where)
    decode_into(opened, first, last, parts)
    if direct:
        assert out is not None
        return out
    values = torch.view_as_complex(parts) if opened.dtype in _dtypes.PARTS else parts
    values = values.reshape(shape)
    if step != 1:
        values = values[::step]
    if out is not None:
        with torch.no_grad():
            return out.copy_(values)
    return (values if step == 1 else values.contiguous()).to(where)


def _rows(opened: Payload, rows: slice) -> tuple[int, int, tuple[int, ...], int]:
    """First and last part, the shape of all rows between them, and the step."""
    if not isinstance(rows, slice):
        raise TypeError(f"rows is {rows!r}, expected a slice")
    if not opened.shape:
        raise ValueError("rows of a payload of a scalar: it has no dimension")
    start, stop, step = rows.indices(opened.shape[0])
    if step < 0:
        raise ValueError(f"rows has the step {step}, allowed: positive steps")
    stop = max(start, stop)
    each_row = math.prod(opened.shape[1:]) * (2 if opened.dtype in _dtypes.PARTS else 1)
    return start * each_row, stop * each_row, (stop - start, *opened.shape[1:]), step


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> None:
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"out is {_dtypes.name(out.dtype)} {list(out.shape)}, the payload holds "
            f"{_dtypes.name(dtype)} {list(shape)}"
        )
    if device is not None and torch.device(device) != out.device:
        raise ValueError(f"device is {device}, out is on {out.device}: give one of them")


def _takes_blocks(out: torch.Tensor) -> bool:
    """True: blocks may be decoded into its memory."""
    aligned = out.data_ptr() % max(out.element_size() // (2 if out.is_complex() else 1), 1) == 0
    plain = not (out.is_conj() or out.is_neg())
    return out.device.type in _OWN and out.is_contiguous() and aligned and plain


def _target(
    out: torch.Tensor | None, opened: Payload, shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """A tensor to decode into; on the device, if blocks are decoded there."""
    if out is not None:
        plain = out.detach()
        return torch.view_as_real(plain) if plain.is_complex() else plain
    dtype = opened.dtype
    if dtype in _dtypes.PARTS:
        shape, dtype = (*shape, 2), _dtypes.PARTS[dtype]
    if device.type == "cuda":
        return torch.empty(shape, dtype=dtype, device=device)
    return new_tensor(shape, dtype)


def decode_into(opened: Payload, first: int, last: int, parts: torch.Tensor) -> None:
    """Writes the values [first, last) to a contiguous tensor, on the CPU or a GPU. PayloadError: as
    `decompress`.
    """
    if parts.is_cuda:
        from torch_cgx.bounded import _cuda

        _cuda.decode_into(opened, first, last, parts)
        return
    maps = opened.maps()
    if first >= last:
        return
    size, bytes_each = _C.BOUNDED_BLOCK_VALUES, parts.element_size()
    lowest, start = first // size, parts.data_ptr()

    def worker() -> Callable[[int], None]:
        decoder, entropy = _C.BoundedDecoder(maps), coder()
        whole = torch.empty(0, dtype=torch.uint8)  # of a block that is wanted in part

        def work(number: int) -> None:
            nonlocal whole
            block = lowest + number
            n = opened.values_of(block)
            try:
                part = decoder.open(opened.block(block), n)
                frame = part.frame
                content = entropy.decompress(frame, part.content_bytes) if frame else b""
                begin, end = block * size, block * size + n
                if first <= begin and end <= last:
                    decoder.decode(part, content, start + (begin - first) * bytes_each)
                    return
                if whole.numel() == 0:
                    whole = torch.empty(size * bytes_each, dtype=torch.uint8)
                decoder.decode(part, content, whole.data_ptr())
            except ValueError as error:
                raise PayloadError(f"block {block}: {error}") from None
            low, high = max(first, begin), min(last, end)
            target = parts.view(-1).view(torch.uint8)
            target[(low - first) * bytes_each : (high - first) * bytes_each] = whole[
                (low - begin) * bytes_each : (high - begin) * bytes_each
            ]

        return work

    each((last - 1) // size - lowest + 1, worker)
