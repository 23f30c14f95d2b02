"""The inputs of every call, which each rank can work out for all, and what its result may be.

Written from docs/numerics.md in NumPy, independently of the engine: exact reductions against
float64 sums, compressed ones against the bound of the reducer. Where the algorithm is not known
(AUTO) or has no closed bound (ring, compressed inside hosts), it adds one error per encoding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.conformance.values import prepare as prepare_exact
from tests.stress.program import LARGEST, Call

Doubles = npt.NDArray[np.float64]
U = 2.0**-24
# Of rounding to the type: relative, absolute.
ROUNDING = {
    torch.float32: (2.0**-24, 2.0**-150),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.bfloat16: (2.0**-8, 2.0**-134),
}
_POOL = LARGEST + (1 << 16)


@functools.cache
def pool(kind: str, seed: int) -> npt.NDArray[np.float32]:
    """Values from which inputs are cut. Made once, before ranks are forked."""
    rng = np.random.default_rng([seed, len(kind), ord(kind[0])])
    x = rng.standard_normal(_POOL)
    if kind == "sparse":
        x[rng.random(_POOL) < 0.98] = 0
    elif kind == "offset":
        x += 100
    elif kind == "tiny":
        x *= 2.0**-120
    elif kind == "huge":
        x *= 2.0**100
    elif kind == "scales":
        x *= 10.0 ** rng.uniform(-15, 15, _POOL)
    return x.astype(np.float32)


def prepare(seed: int) -> None:
    prepare_exact()
    for kind in ("gauss", "sparse", "offset", "tiny", "huge", "scales"):
        pool(kind, seed)


def values(call: Call, rank: int, numel: int, seed: int) -> torch.Tensor:
    """What global rank `rank` puts into the call; a copy."""
    start = (call.key * 31 + rank * 7919) % (1 << 16)
    dtype = getattr(torch, call.dtype)
    if call.data == "equal":
        return torch.full((numel,), ((start + rank) % 64 - 20) / 8, dtype=dtype)
    return torch.from_numpy(pool(call.data, seed)[start : start + numel]).to(dtype, copy=True)


@dataclasses.dataclass(frozen=True)
class Way:
    """How the group reduces. hosts: members' positions per host; encodings: the most that a value
    goes through where there is no closed bound, else 0.
    """

    hosts: tuple[tuple[int, ...], ...]
    encodings: int = 0
    inner_exact: bool = True


def way_of(settings: dict[str, Any], hosts: Sequence[str]) -> Way:
    """hosts: label of every member."""
    labels = list(dict.fromkeys(hosts))
    groups = tuple(tuple(i for i, h in enumerate(hosts) if h == label) for label in labels)
    one, each = len(groups) == 1, len(groups) == len(hosts)
    algorithm = settings["inner_reduction" if one else "cross_reduction"]
    ring = len(hosts) if algorithm == "RING" else 0
    if one or each:
        return Way(tuple((i,) for i in range(len(hosts))), ring)
    compress = settings["intra_compress"]
    exact = settings["inner_communicator"] == "SHM" if compress == "AUTO" else not compress
    return Way(groups, ring, exact)


def block_bound(x: Doubles, spec: dict[str, Any], extra: Doubles | float) -> Doubles:
    """`codec_bound` of the codecs with a rotation: a share of the block's norm."""
    starts = np.arange(0, len(x), spec["block_size"])
    norm = np.sqrt(np.add.reduceat((np.abs(x) + extra) ** 2, starts))
    limit = (1 + 2.0**-12 if spec["scale"] == "mse" else 4.0) * norm + 2.0**-136
    return np.repeat(limit, spec["block_size"])[: len(x)]


def codec_bound(x: Doubles, spec: dict[str, Any], extra: Doubles | float = 0.0) -> Doubles:
    """E of docs/numerics.md for each value of x; `extra` is what the values may be off already."""
    if spec["codec"] != "maxmin" and spec["bits"] <= 8 and len(x) > 0:
        return block_bound(x, spec, extra)
    bits, bucket = spec["bits"], min(spec["bucket_size"], max(1, len(x)))
    if bits > 8 or len(x) == 0:
        return np.zeros_like(x)
    coded = len(x)
    if spec["skip_incomplete_buckets"]:
        coded -= coded % spec["bucket_size"]
    if coded == 0:
        return np.zeros_like(x)
    head = x[:coded]
    starts = np.arange(0, coded, bucket)
    slack = np.maximum.reduceat(np.broadcast_to(extra, x.shape)[:coded], starts)
    low, high = np.minimum.reduceat(head, starts), np.maximum.reduceat(head, starts)
    step = (high - low + 2 * slack) / (2**bits - 1)
    step = np.where(step < 2.0**-126, np.ceil(step * 2.0**149) * 2.0**-149, step)
    largest = np.maximum(np.abs(low), np.abs(high)) + slack
    share = 1.0 if spec["rounding"] == "stochastic" else 0.5
    limit = share * step + 12 * U * largest + 2.0**-148
    result = np.zeros_like(x)
    result[:coded] = np.repeat(limit, bucket)[:coded]
    return result


def sum_bound(
    inputs: Sequence[Doubles], spec: dict[str, Any], way: Way, dtype: torch.dtype, average: bool,
    encode_sum: bool,
) -> tuple[Doubles, Doubles]:  # fmt: skip
    """The exact sum or mean, and how far a result may be from it."""
    size = len(inputs)
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    magnitude = np.sum(np.abs(inputs), axis=0)
    error = np.zeros_like(exact)
    if not way.inner_exact:
        for x in inputs:
            error += codec_bound(x, spec)
    inside = error.copy()
    if not way.encodings:
        for host in way.hosts:
            share = np.sum([inputs[i] for i in host], axis=0)
            error += codec_bound(share, spec, inside + size * U * magnitude)
    # Exact parts travel in the tensor's type, and partial sums may be rounded to it on each way.
    relative, absolute = ROUNDING[dtype]
    ways = max(2, way.encodings)
    error += ways * (relative * (magnitude + error) + absolute)
    error += size * 2 * U * (magnitude + error)
    for _ in range(way.encodings):
        # Any partial sum of the bucket lies within +-(magnitude + error).
        both = codec_bound(magnitude, spec, magnitude + error)
        error += both + 2 * U * (magnitude + error)
    if average:
        exact, error, magnitude = exact / size, error / size, magnitude / size
        error = error + U * (np.abs(exact) + error) + 2.0**-149
    if encode_sum:
        error = error + codec_bound(exact, spec, error)
    return exact, error + 2 * (relative * (np.abs(exact) + error) + absolute)


def worst(result: torch.Tensor, exact: Doubles, limit: Doubles) -> float:
    """Largest error as a multiple of what is allowed; more than 1 is wrong."""
    if result.numel() == 0:
        return 0.0
    found = result.double().numpy()
    if not np.isfinite(found).all():
        return float("inf")
    return float((np.abs(found - exact) / limit).max())
