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
from torch_cgx.bounded._memory import new_tensor
from torch_cgx.bounded._payload import Payload, content_of, of_block, open_payload
from torch_cgx.bounded._threads import each
from torch_cgx.bounded._whole import decode_whole

# Blocks that a thread decodes one after the other. Threads that write to the same large page of new
# memory would each clear it, and only one needs to: a page of 2 MiB has 8 blocks of float32.
_LONGEST_RANGE = 32
# Blocks are decoded directly into the memory of these devices.
_DIRECT = ("cpu", "cuda")


@safe_after_fork
def decompress(
    payload: torch.Tensor | bytes | bytearray | memoryview,
    out: torch.Tensor | None = None,
    device: torch.device | str | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor:
    """Decompresses a payload. Returns a tensor of the shape and dtype that were compressed.

    payload: a result of `compress`, on any device, or its bytes. out: a tensor of the same shape
    and dtype to write into, which is returned; after an error it may be partly written. device: of
    the result; default: the CPU. A CUDA device dequantizes the values itself; the CPU runs the
    entropy decoder. rows: selects rows of the first dimension, such as slice(100, 200); only the
    blocks that hold them are decoded. With a step, all rows from the first to the last are decoded.
    It uses as many threads as torch.

    PayloadError (a ValueError): the payload is of another version or codec, cut, or altered.
    ValueError: out has another shape or dtype, or no plain memory; rows has a negative step; the
    payload's bytes are not contiguous. TypeError: an argument is of another type.
    """
    opened = open_payload(payload)
    selected = _rows(opened, rows)
    if out is not None:
        _check_out(out, selected.result, opened.dtype, device)
        where = out.device
    else:
        where = torch.device("cpu" if device is None else device)
    direct = out if out is not None and selected.step == 1 and _takes_blocks(out) else None
    reals = _target(direct, opened, selected.shape, where)
    try:
        decode_into(opened, selected.first, selected.last, reals)
    finally:
        # Also after an error: autograd may have saved `direct`, which may be partly written.
        if direct is not None and not direct.is_inference():
            torch.autograd.graph.increment_version(direct)
    if direct is not None:
        return direct
    values = torch.view_as_complex(reals) if opened.dtype in _dtypes.REAL_TYPES else reals
    values = values.reshape(selected.shape)
    if selected.step != 1:
        values = values[:: selected.step]
    if out is not None:
        with torch.no_grad():
            return out.copy_(values)
    return (values if selected.step == 1 else values.contiguous()).to(where)


class _Selection(NamedTuple):
    """The values of a payload to return: [first, last) are decoded, into the shape `shape`. The
    result has every `step`th of their rows, and the shape `result`. Complex numbers count twice in
    first and last.
    """

    first: int
    last: int
    shape: tuple[int, ...]
    step: int
    result: tuple[int, ...]


def _rows(opened: Payload, rows: slice | None) -> _Selection:
    if rows is None:
        return _Selection(0, opened.reals, opened.shape, 1, opened.shape)
    if not isinstance(rows, slice):
        raise TypeError(f"rows is {rows!r}, expected a slice")
    if not opened.shape:
        raise ValueError("rows is given for the payload of a scalar, which has no rows")
    start, stop, step = rows.indices(opened.shape[0])
    if step < 0:
        raise ValueError(f"rows has the step {step}, allowed: positive steps")
    stop = max(start, stop)
    step = min(step, max(stop - start, 1))  # torch takes no step of more than 63 bits
    shape = opened.shape[1:]
    each_row = math.prod(shape) * (2 if opened.dtype in _dtypes.REAL_TYPES else 1)
    kept = len(range(start, stop, step))
    return _Selection(
        start * each_row, stop * each_row, (stop - start, *shape), step, (kept, *shape)
    )


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> None:
    _dtypes.check_memory(out, "cannot be out")
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"out is {_dtypes.name(out.dtype)} {list(out.shape)}, the payload holds "
            f"{_dtypes.name(dtype)} {list(shape)}"
        )
    if device is not None and not _is_device(torch.device(device), out.device):
        raise ValueError(f"device is {device}, out is on {out.device}: give one of them")


def _is_device(asked: torch.device, found: torch.device) -> bool:
    """True if they are equal, or if `asked` has no index and their types are equal."""
    return asked.type == found.type and asked.index in (None, found.index or 0)


def _takes_blocks(out: torch.Tensor) -> bool:
    """True if blocks may be decoded directly into its memory."""
    aligned = out.data_ptr() % max(out.element_size() // (2 if out.is_complex() else 1), 1) == 0
    plain = not (out.is_conj() or out.is_neg())
    return out.device.type in _DIRECT and out.is_contiguous() and aligned and plain


def _target(
    out: torch.Tensor | None, opened: Payload, shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """The real tensor to decode into: of `out`, or a new one; on the device if it is one of
    _DIRECT, else on the CPU.
    """
    if out is not None:
        plain = out.detach()
        _dtypes.check_memory(plain, "cannot be out")  # detach() may have made a FakeTensor
        return torch.view_as_real(plain) if plain.is_complex() else plain
    dtype = opened.dtype
    if dtype in _dtypes.REAL_TYPES:
        shape, dtype = (*shape, 2), _dtypes.REAL_TYPES[dtype]
    return new_tensor(shape, dtype, device)


def decode_into(opened: Payload, first: int, last: int, reals: torch.Tensor) -> None:
    """Decodes the values [first, last) into a contiguous tensor of a real dtype, on the CPU or a
    GPU. PayloadError: as for `decompress`.
    """
    if opened.whole is not None:
        decode_whole(opened, first, last, reals)
        return
    if reals.is_cuda:
        from torch_cgx.bounded import _cuda

        _cuda.decode_into(opened, first, last, reals)
        return
    maps = opened.maps()
    if first >= last:
        return
    size = _C.BOUNDED_BLOCK_VALUES
    lowest = first // size

    def worker(entropy: Coder) -> Callable[[int], None]:
        decoder = _C.BoundedDecoder(maps)

        def work(number: int) -> None:
            block = lowest + number
            n, begin = opened.values_of(block), block * size
            with of_block(block):
                opened_block = decoder.open(opened.block(block), n)
                content = content_of(opened_block, entropy)
                low, high = max(first - begin, 0), min(last - begin, n)
                decoder.decode(opened_block, content, low, high, reals, begin + low - first)

        return work

    each((last - 1) // size - lowest + 1, worker, _LONGEST_RANGE)
