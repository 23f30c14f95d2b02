"""An independent model of the reducers in numpy: what every rank must get, from the plan's borders
and the codec oracle.

It follows docs/numerics.md, not the C++: fp32 sums in rank order, one rounding (one-shot) or two
(scatter-reduce-all-gather, whose owner of a chunk adds its own values unrounded).
"""

from __future__ import annotations

import numpy as np
import torch

from tests import oracle
from torch_cgx import _C

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def to_float32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


def through_codec(
    values: np.ndarray, spec: _C.Spec | None, dtype: torch.dtype, *, source: np.ndarray
) -> np.ndarray:
    """fp32 values of one run after encode and decode. `source`: the same values as they were (for
    raw parts).
    """
    if spec is None:
        return to_float32(torch.from_numpy(np.ascontiguousarray(values)).to(dtype))
    full = len(values)
    if spec.skip_incomplete_buckets:
        full -= full % spec.bucket_size
    wanted = oracle.Spec(bits=spec.bits, bucket_size=spec.bucket_size)
    decoded = oracle.decode(oracle.encode(values[:full], wanted), full, wanted)
    rest = to_float32(torch.from_numpy(np.ascontiguousarray(source[full:])).to(dtype))
    return np.concatenate([decoded, rest]).astype(np.float32)


def all_reduce(
    inputs: list[torch.Tensor],
    layers: list[tuple[int, _C.Spec | None]],
    algorithm: str,
    capacity: int,
    average: bool = False,
) -> torch.Tensor:
    """The result of all ranks, as a flat tensor of the inputs' dtype."""
    dtype, size, n = inputs[0].dtype, len(inputs), inputs[0].numel()
    flat = [to_float32(x.reshape(-1)) for x in inputs]
    result = np.zeros(n, np.float32)
    if size == 1:
        return inputs[0].reshape(-1).clone()
    owner_of: dict[tuple[int, int], int] = {}
    for chunks in _C.describe_plan(layers, DTYPES[dtype], size, algorithm, capacity):
        for owner, pieces in enumerate(chunks):
            for offset, count, _, _, _ in pieces:
                owner_of[(offset, count)] = owner
    starts = np.cumsum([0] + [numel for numel, _ in layers])
    divisor = np.float32(size)
    with np.errstate(over="ignore", invalid="ignore"):
        for (offset, count), owner in owner_of.items():
            spec = layers[int(np.searchsorted(starts, offset, side="right")) - 1][1]
            part = slice(offset, offset + count)
            total = np.zeros(count, np.float32)
            for rank in range(size):
                mine = flat[rank][part]
                if algorithm == "oneshot" or rank != owner:
                    mine = through_codec(mine, spec, dtype, source=mine)
                total = mine.copy() if rank == 0 else (total + mine).astype(np.float32)
            if average:
                total = (total / divisor).astype(np.float32)
            if algorithm == "sra":
                total = through_codec(total, spec, dtype, source=total)
            result[part] = total
    return torch.from_numpy(result).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integer = {4: torch.int32, 2: torch.int16}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(
        a.reshape(-1).view(integer), b.reshape(-1).view(integer)
    )
