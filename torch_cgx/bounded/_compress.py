"""bounded.compress."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_cgx import _C
from torch_cgx._threads import safe_after_fork
from torch_cgx.bounded import _dtypes
from torch_cgx.bounded._bound import bound_of, maps_of
from torch_cgx.bounded._coarse import Note, warn_of_relative
from torch_cgx.bounded._entropy import Coder
from torch_cgx.bounded._memory import LARGE, Memory
from torch_cgx.bounded._threads import each

# Bytes of a block beside its values, if nothing can be made shorter.
_MOST_BESIDE = 5


def compress(
    tensor: torch.Tensor,
    *,
    max_error: float | None = None,
    relative: float | None = None,
    pointwise: float | None = None,
) -> torch.Tensor:
    """A payload that gives the tensor back within the bound: uint8, 1-D, on the CPU, exactly as
    long as needed.

    tensor: any shape, strides and device; values on a CUDA device become symbols there, others on
    the CPU, with equal payloads. float32, float64, float16, bfloat16, and complex numbers, whose
    real and imaginary parts are bounded each, take exactly one bound; whole numbers and bool are
    lossless and take none. Bounds are finite numbers >= 0; 0 is lossless:

        max_error    |x - y| <= max_error
        relative     |x - y| <= relative * (greatest - least finite value of the tensor)
        pointwise    |x - y| <= pointwise * |x|, below 1

    evaluated in float64 for every finite x, also a subnormal one. NaN (its payload bits aside),
    infinities and -0 come back as they are. Works on as many threads as torch does
    (torch.set_num_threads); the payload does not depend on them.

    ValueError: a bad bound, or a tensor that is sparse, nested, quantized, or of another dtype.
    ImportError: zstandard is missing.

    A `relative` that is above nearly all values, which makes them 0, is a warning: outliers or a
    fill value such as 1e20 set the range.
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
    """`compress` that gives the values and the bound to `note` instead of a warning."""
    _dtypes.check(tensor)
    shape, dtype = tensor.shape, tensor.dtype
    parts = _dtypes.parts_of(tensor)
    bound = bound_of(parts, max_error, relative, pointwise)
    note(parts, bound)
    maps = maps_of(_dtypes.ELEMENTS[parts.dtype], bound)
    numel, size = parts.numel(), _C.BOUNDED_BLOCK_VALUES
    bytes_each = parts.element_size()
    count = -(-numel // size)
    arena = _C.BoundedArena(len(shape), count, parts.nbytes + count * _MOST_BESIDE)

    def worker(entropy: Coder) -> Callable[[int], None]:
        encoder, values = _C.BoundedEncoder(maps), Memory(parts)

        def work(block: int) -> None:
            first = block * size
            encoder.encode(values.at(first * bytes_each), min(size, numel - first))
            frame = entropy.compress(memoryview(encoder), encoder.entropy, encoder.packed)
            encoder.finish(frame, arena, block)

        return work

    if parts.is_cuda:
        from torch_cgx.bounded._cuda import encode_blocks

        encode_blocks(parts, maps, arena)
    else:
        each(count, worker)
    _C.bounded_write(
        _dtypes.ELEMENTS[parts.dtype],
        dtype in _dtypes.PARTS,
        bound.kind,
        bound.asked,
        bound.value,
        list(shape),
        arena,
    )
    payload = memoryview(arena)
    # A large payload stays in its arena; a small one would waste the rest of a page. It is not
    # copied by torch, whose threads a forked process lacks.
    room = arena if payload.nbytes >= LARGE else bytearray(payload)
    return torch.frombuffer(room, dtype=torch.uint8)
