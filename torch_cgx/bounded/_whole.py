"""Tensors as one frame of the entropy coder, which finds what repeats far away."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cgx import _C
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import Bound
from torch_cgx.bounded._entropy import lent
from torch_cgx.bounded._payload import Payload, PayloadError

# Bytes of each part by which repetitions are seen: the beginning, the middle and the end.
_PART = 1 << 20
# Tensors of fewer bytes are one block or two, in which the entropy coder finds repetitions itself.
_LEAST = 1 << 17


def repeats(reals: torch.Tensor) -> bool:
    """Whether rows of a contiguous tensor of any device seem to repeat."""
    if reals.nbytes < _LEAST:
        return False
    flat, count = reals.view(-1), _PART // reals.element_size()
    last = max(flat.numel() - count, 0)
    starts = sorted({0, last // 2, last})
    return any(_C.bounded_repeats(flat[start : start + count].cpu()) for start in starts)


def compress_whole(
    reals: torch.Tensor, bound: Bound, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Returns the payload, which gives `reals` back exactly. reals: contiguous, on the CPU; the
    caller has made sure that they keep the bound.
    """
    with lent() as entropy:
        frame = entropy.compress_bytes(reals.view(-1).view(torch.uint8).numpy().data)
    element = _dtypes.ELEMENTS[reals.dtype]
    payload = _C.bounded_write_framed(
        element,
        dtype in _dtypes.REAL_TYPES,
        bound.kind,
        bound.asked,
        bound.value,
        list(shape),
        memoryview(frame),
    )
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def decode_whole(opened: Payload, first: int, last: int, reals: torch.Tensor) -> None:
    """Decodes the values [first, last) into a contiguous tensor of a real dtype. PayloadError."""
    opened.maps()  # refuses a bound that the type does not have
    each = reals.element_size()
    with lent() as entropy:
        try:
            data = entropy.decompress(opened.block(0), opened.reals * each)
        except ValueError as error:
            raise PayloadError(str(error)) from None
    if first >= last:
        return
    view = memoryview(data)[first * each : last * each]
    with torch.no_grad():
        host = reals if reals.device.type == "cpu" else torch.empty_like(reals, device="cpu")
        raw = host.view(-1).view(torch.uint8)
        raw.numpy().data[:] = view  # no second copy of all values
        if reals.dtype == torch.bool and bool((raw > 1).any()):
            raw.zero_()  # torch computes with bools as if they were 0 or 1
            raise PayloadError("a bool is neither 0 nor 1")
        if host is not reals:
            reals.copy_(host)
