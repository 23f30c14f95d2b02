"""bounded.compress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import LOSSLESS, Bound, bound_of, maps_of
from torch_cgx.bounded._coarse import Note, warn_of_relative
from torch_cgx.bounded._decompress import decode_into
from torch_cgx.bounded._entropy import Coder
from torch_cgx.bounded._memory import LARGE
from torch_cgx.bounded._payload import header_of, open_payload
from torch_cgx.bounded._threads import each
from torch_cgx.bounded._whole import (
    as_mostly,
    as_values,
    in_words,
    is_tiny,
    nearly_constant,
    payload_of,
    repeats,
)

# Bytes that a raw block has beside its values.
_MOST_BESIDE = 5
# One block in _SAMPLED is encoded to estimate the length of all. A frame that is shorter than that
# by the factor _SURELY is the payload, and the other blocks are not encoded.
_SAMPLED, _SURELY = 8, 2
# A frame replaces blocks if it has less than _CLEARLY of their bytes. A deeper search may shorten a
# frame to _DEEPER of its bytes.
_CLEARLY, _DEEPER = 0.9, 0.85


def compress(
    tensor: torch.Tensor,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
) -> torch.Tensor:
    """Compresses a tensor within a bound. Returns the payload: uint8, 1-D, on the CPU, exactly as
    long as needed.

    tensor: any shape, strides and device. A CUDA device quantizes its values itself; the payload is
    the same as from the CPU. float32, float64, float16, bfloat16 and complex tensors take exactly
    one bound, which holds for the real and for the imaginary part of a complex number; integers and
    bool are lossless and need no bound. Bounds are finite numbers >= 0; 0 is lossless:

        max_error    |x - y| <= max_error
        relative     |x - y| <= relative * (greatest - least finite value of the tensor)
        pointwise    |x - y| <= pointwise * |x|, below 1

    evaluated in float64, for every finite x, subnormal numbers included. Infinities and -0 are
    kept, and NaN stays NaN, with other payload bits perhaps. It uses as many threads as torch
    (torch.set_num_threads); the payload does not depend on their number.

    ValueError: a bound that is not allowed, or a tensor that is sparse, nested, quantized, or of
    another dtype. ImportError: zstandard is missing.

    Warns if `relative` amounts to more than nearly all values, which then become 0: outliers, or a
    fill value such as 1e20, make the range.
    """
    return compress_noting(
        tensor, warn_of_relative, max_error=max_error, relative=relative, pointwise=pointwise
    )


@safe_after_fork
def compress_noting(
    tensor: torch.Tensor,
    note: Note,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
) -> torch.Tensor:
    """`compress` that calls `note` with the values and the bound, and does not warn itself."""
    _dtypes.check(tensor)
    shape, dtype = tensor.shape, tensor.dtype
    reals = _dtypes.reals_of(tensor)
    bound = bound_of(reals, max_error, relative, pointwise)
    note(reals, bound)
    frame, repeating = None, repeats(reals)
    if repeating:
        reals = reals.cpu()
        estimated = _estimated_bytes(reals, bound)
        if not is_tiny(estimated, reals):
            frame = in_words(reals, bound)
        if frame is not None and _SURELY * len(frame.data) < estimated:
            return payload_of(frame, reals, bound, shape, dtype)
    blocks = _in_blocks(reals, bound, shape, dtype)
    if nearly_constant(reals, blocks):
        frame = as_mostly(_rounded(blocks, reals, bound))
    elif repeating and not is_tiny(blocks.numel(), reals):
        if frame is None:
            frame = in_words(reals, bound)
        if frame is None:
            # Decoding the blocks gives values within the bound, whose equal rows a frame finds.
            frame = as_values(_rounded(blocks, reals, bound))
    else:
        return blocks
    # A reader needs only some blocks for some rows, but the whole frame.
    wanted = _CLEARLY * blocks.numel()
    if frame is None or _DEEPER * len(frame.data) >= wanted:
        return blocks
    whole = payload_of(frame, reals, bound, shape, dtype)
    return whole if whole.numel() < wanted else blocks


def _rounded(blocks: torch.Tensor, reals: torch.Tensor, bound: Bound) -> torch.Tensor:
    """Returns the values that decoding the payload `blocks` gives, on the CPU."""
    if bound.kind == LOSSLESS and not reals.is_cuda:
        return reals
    opened = open_payload(blocks)
    values = torch.empty_like(reals, device="cpu")
    decode_into(opened, 0, opened.reals, values)
    return values


def _estimated_bytes(reals: torch.Tensor, bound: Bound) -> float:
    """The length of the blocks of values on the CPU, extrapolated from one block in _SAMPLED; 0 if
    there are fewer blocks.
    """
    count = -(-reals.numel() // _C.BOUNDED_BLOCK_VALUES)
    some = range(_SAMPLED // 2, count, _SAMPLED) if count >= _SAMPLED else range(0)
    return _encoded(reals, bound, 0, some).block_bytes * count / len(some) if some else 0.0


def _in_blocks(
    reals: torch.Tensor, bound: Bound, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    arena = _encoded(reals, bound, len(shape), range(-(-reals.numel() // _C.BOUNDED_BLOCK_VALUES)))
    _C.bounded_write(*header_of(reals, bound, shape, dtype), arena)
    payload = memoryview(arena)
    # A large payload stays in its arena; a small one is copied, as its arena wastes the rest of a
    # page. Not by torch: a forked process lacks torch's threads.
    room = arena if payload.nbytes >= LARGE else bytearray(payload)
    return torch.frombuffer(room, dtype=torch.uint8)


def _encoded(reals: torch.Tensor, bound: Bound, dims: int, blocks: range) -> Any:
    """Encodes these blocks of the values and returns the arena that holds them. Of values on a GPU,
    `blocks` must be all. dims: dimensions of the tensor, for the size of the payload's header.
    """
    maps = maps_of(_dtypes.ELEMENTS[reals.dtype], bound)
    numel, size = reals.numel(), _C.BOUNDED_BLOCK_VALUES
    room = min(reals.nbytes, len(blocks) * size * reals.element_size())
    arena = _C.BoundedArena(dims, len(blocks), room + len(blocks) * _MOST_BESIDE)

    def worker(entropy: Coder) -> Callable[[int], None]:
        encoder = _C.BoundedEncoder(maps)

        def work(number: int) -> None:
            first = blocks[number] * size
            encoder.encode(reals, first, min(size, numel - first))
            entropy.finish(encoder, arena, number)

        return work

    if reals.is_cuda:
        from torch_cgx.bounded._cuda import encode_blocks

        encode_blocks(reals, maps, arena)
    else:
        each(len(blocks), worker)
    return arena
