"""bounded.compress."""

from __future__ import annotations

from collections.abc import Callable

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
from torch_cgx.bounded._whole import compress_whole, repeats

# Bytes that a raw block has beside its values.
_MOST_BESIDE = 5


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
    if not repeats(reals):
        return _in_blocks(reals, bound, shape, dtype)
    reals = reals.cpu()
    blocks = _in_blocks(reals, bound, shape, dtype)
    if bound.kind != LOSSLESS:
        # What the blocks stand for is within the bound, and repeats as the values do, or more so.
        opened = open_payload(blocks)
        rounded = torch.empty_like(reals)
        decode_into(opened, 0, opened.reals, rounded)
        reals = rounded
    framed = compress_whole(reals, bound, shape, dtype)
    return framed if framed.numel() < blocks.numel() else blocks


def _in_blocks(
    reals: torch.Tensor, bound: Bound, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    maps = maps_of(_dtypes.ELEMENTS[reals.dtype], bound)
    numel, size = reals.numel(), _C.BOUNDED_BLOCK_VALUES
    count = -(-numel // size)
    arena = _C.BoundedArena(len(shape), count, reals.nbytes + count * _MOST_BESIDE)

    def worker(entropy: Coder) -> Callable[[int], None]:
        encoder = _C.BoundedEncoder(maps)

        def work(block: int) -> None:
            first = block * size
            encoder.encode(reals, first, min(size, numel - first))
            entropy.finish(encoder, arena, block)

        return work

    if reals.is_cuda:
        from torch_cgx.bounded._cuda import encode_blocks

        encode_blocks(reals, maps, arena)
    else:
        each(count, worker)
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
