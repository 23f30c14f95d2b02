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
from torch_cgx.bounded._payload import open_payload
from torch_cgx.bounded._threads import each
from torch_cgx.bounded._whole import (
    Frame,
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
# One of so many blocks says whether a frame is surely shorter than blocks, by this factor.
_SAMPLED, _SURELY = 8, 2
# A frame must be shorter than blocks by _CLEARLY; a deeper search makes it shorter by _DEEPER.
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
    repeating = repeats(reals)
    if repeating:
        reals = reals.cpu()
        frame = _surely_shorter(reals, bound)
        if frame is not None:
            return payload_of(frame, reals, bound, shape, dtype)
    blocks = _in_blocks(reals, bound, shape, dtype)
    if nearly_constant(reals, blocks):
        frame = as_mostly(_rounded(blocks, reals, bound))
    elif repeating and not is_tiny(blocks.numel(), reals):
        frame = in_words(reals, bound)
        if frame is None:
            # What the blocks stand for is within the bound, and repeats as the values do.
            frame = as_values(_rounded(blocks, reals, bound))
    else:
        return blocks
    # Blocks are read one by one, a frame as a whole.
    wanted = _CLEARLY * blocks.numel()
    if frame is None or _DEEPER * len(frame.data) >= wanted:
        return blocks
    whole = payload_of(frame, reals, bound, shape, dtype)
    return whole if whole.numel() < wanted else blocks


def _rounded(blocks: torch.Tensor, reals: torch.Tensor, bound: Bound) -> torch.Tensor:
    """What the payload `blocks` of the values stands for, on the CPU."""
    if bound.kind == LOSSLESS and not reals.is_cuda:
        return reals
    opened = open_payload(blocks)
    values = torch.empty_like(reals, device="cpu")
    decode_into(opened, 0, opened.reals, values)
    return values


def _surely_shorter(reals: torch.Tensor, bound: Bound) -> Frame | None:
    """A frame of values whose rows are there again, on the CPU, if some of their blocks say that
    these are far longer.
    """
    count = -(-reals.numel() // _C.BOUNDED_BLOCK_VALUES)
    if count < _SAMPLED:
        return None
    some = range(_SAMPLED // 2, count, _SAMPLED)
    estimated = _encoded(reals, bound, 0, some).block_bytes * count / len(some)
    if is_tiny(estimated, reals):
        return None
    frame = in_words(reals, bound)
    return None if frame is None or _SURELY * len(frame.data) >= estimated else frame


def _in_blocks(
    reals: torch.Tensor, bound: Bound, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    arena = _encoded(reals, bound, len(shape), range(-(-reals.numel() // _C.BOUNDED_BLOCK_VALUES)))
    _C.bounded_write(
        _dtypes.ELEMENTS[reals.dtype],
        dtype in _dtypes.REAL_TYPES,
        bound.kind,
        bound.asked,
        bound.value,
        list(shape),
        arena,
    )
    payload = memoryview(arena)
    # A large payload stays in its arena; a small one is copied, as its arena wastes the rest of a
    # page. Not by torch: a forked process lacks torch's threads.
    room = arena if payload.nbytes >= LARGE else bytearray(payload)
    return torch.frombuffer(room, dtype=torch.uint8)


def _encoded(reals: torch.Tensor, bound: Bound, dims: int, blocks: range) -> Any:
    """The arena with these blocks of the values, all of them if they are on a GPU. dims: of the
    tensor, for the payload's header.
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
