"""bounded.decompress."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._entropy import Coder
from torch_cgx.bounded._memory import Memory, new_tensor
from torch_cgx.bounded._payload import Payload, content_of, of_block, open_payload
from torch_cgx.bounded._threads import each

# Blocks that a thread decodes one after the other. Threads that write to one large page of new
# memory would each clear it, all but one in vain: a page of 2 MiB has 8 blocks of float32.
_LONGEST_RUN = 32
# Devices whose memory blocks are decoded into.
_OWN = ("cpu", "cuda")


@safe_after_fork
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
    it are decoded. With a step, all rows between the first and the last are. On as many threads as
    torch uses.

    PayloadError (a ValueError): the payload is of another version or codec, cut, or altered.
    ValueError: out does not fit, or has no plain memory; rows has a negative step; the payload's
    bytes are not contiguous. TypeError: an argument of another type.
    """
    opened = open_payload(payload)
    part = _rows(opened, rows)
    if out is not None:
        _check_out(out, part.result, opened.dtype, device)
        where = out.device
    else:
        where = torch.device("cpu" if device is None else device)
    direct = out if out is not None and part.step == 1 and _takes_blocks(out) else None
    parts = _target(direct, opened, part.shape, where)
    try:
        decode_into(opened, part.first, part.last, parts)
    finally:
        # Autograd may have saved it; an error may have left it partly written.
        if direct is not None and not direct.is_inference():
            torch.autograd.graph.increment_version(direct)
    if direct is not None:
        return direct
    values = torch.view_as_complex(parts) if opened.dtype in _dtypes.PARTS else parts
    values = values.reshape(part.shape)
    if part.step != 1:
        values = values[:: part.step]
    if out is not None:
        with torch.no_grad():
            return out.copy_(values)
    return (values if part.step == 1 else values.contiguous()).to(where)


class _Part(NamedTuple):
    """What of a payload is wanted: the values [first, last) are decoded, of `shape`; of their rows
    each `step`th is in the result, of the shape `result`.
    """

    first: int
    last: int
    shape: tuple[int, ...]
    step: int
    result: tuple[int, ...]


def _rows(opened: Payload, rows: slice | None) -> _Part:
    if rows is None:
        return _Part(0, opened.parts, opened.shape, 1, opened.shape)
    if not isinstance(rows, slice):
        raise TypeError(f"rows is {rows!r}, expected a slice")
    if not opened.shape:
        raise ValueError("rows of a payload of a scalar: it has no dimension")
    start, stop, step = rows.indices(opened.shape[0])
    if step < 0:
        raise ValueError(f"rows has the step {step}, allowed: positive steps")
    stop = max(start, stop)
    step = min(step, max(stop - start, 1))  # which torch may take as an index
    shape = opened.shape[1:]
    each_row = math.prod(shape) * (2 if opened.dtype in _dtypes.PARTS else 1)
    kept = len(range(start, stop, step))
    return _Part(start * each_row, stop * each_row, (stop - start, *shape), step, (kept, *shape))


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> None:
    _dtypes.check_memory(out, "cannot be out")
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"out is {_dtypes.name(out.dtype)} {list(out.shape)}, the payload holds "
            f"{_dtypes.name(dtype)} {list(shape)}"
        )
    if device is not None and not _is_device(torch.device(device), out.device):
        raise ValueError(f"device is {device}, out is on {out.device}: give one of them")


def _is_device(asked: torch.device, there: torch.device) -> bool:
    """Without a number, any of its type is."""
    return asked.type == there.type and asked.index in (None, there.index or 0)


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
        _dtypes.check_memory(plain, "cannot be out")  # a fake one, under FakeTensorMode
        return torch.view_as_real(plain) if plain.is_complex() else plain
    dtype = opened.dtype
    if dtype in _dtypes.PARTS:
        shape, dtype = (*shape, 2), _dtypes.PARTS[dtype]
    return new_tensor(shape, dtype, device)


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
    lowest = first // size

    def worker(entropy: Coder) -> Callable[[int], None]:
        decoder, values = _C.BoundedDecoder(maps), Memory(parts)

        def work(number: int) -> None:
            block = lowest + number
            n, begin = opened.values_of(block), block * size
            whole = first <= begin and begin + n <= last
            with of_block(block):
                part = decoder.open(opened.block(block), n)
                content = content_of(part, entropy)
                if whole:
                    decoder.decode(part, content, values.at((begin - first) * bytes_each))
                    return
                low, high = max(first - begin, 0), min(last - begin, n)
                target = values.at((begin + low - first) * bytes_each)
                decoder.decode_part(part, content, low, high, bytes_each, target)

        return work

    each((last - 1) // size - lowest + 1, worker, _LONGEST_RUN)
