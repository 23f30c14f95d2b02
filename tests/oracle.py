"""An independent model of the `maxmin` codec in numpy, and the error bound that it must keep.

Written from the formulas, not from the engine: vectorised over buckets, codes packed by
``numpy.packbits``. Every step is float32 arithmetic of numpy, whose scalar operations are IEEE
operations; the bound is evaluated in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_NAN = np.array([0x7FC00000], np.uint32).view(np.float32)[0]
_MASK64 = (1 << 64) - 1
_F = np.float32


@dataclass(frozen=True)
class Spec:
    """Fields of the codec, and of the call where rounding is stochastic."""

    bits: int = 4
    bucket_size: int = 512
    stochastic: bool = False
    seed: int = 0
    sequence: int = 0
    rank: int = 0
    stage: int = 0
    index: int = 0
    exact_zeros: bool = False


def splitmix64(x: int) -> int:
    """Steele, Lea, Flood, OOPSLA 2014."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def uniform(spec: Spec, n: int) -> Floats:
    """u of the values 0 .. n-1 of the run, in [0, 1) with 24 bits."""
    state = splitmix64(spec.seed)
    state = splitmix64(state ^ spec.sequence)
    state = splitmix64(state ^ (spec.stage << 32) ^ spec.rank)
    u = np.empty(n, np.float32)
    start = 0
    while start < n:
        block, low = divmod(spec.index + start, 1 << 32)
        take = min(n - start, (1 << 32) - low)
        key = state ^ (splitmix64(block) if block else 0)
        x = np.arange(low, low + take, dtype=np.uint64).astype(np.uint32)
        x *= np.uint32(0x9E3779B9)
        x += np.uint32(key & 0xFFFFFFFF)
        x ^= (x >> np.uint32(16)) ^ np.uint32(key >> 32)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        u[start : start + take] = (~x >> np.uint32(8)).astype(np.float32) * _F(2**-24)
        start += take
    return u


def with_zero(
    low: float, high: float, unit: float, levels: int
) -> tuple[np.float32, np.float32] | None:
    """Unit and min of a bucket from `low` < 0 to `high` >= 0 with zero among its levels, from
    docs/numerics.md; unit: without it. None: that grid overflows."""
    a, b, top = _F(-low), _F(high), _F(levels)
    least, most = (1, levels - 1) if high > 0 else (levels, levels)
    floor = int(min(a / _F(unit), _F(most)))
    choices = []
    for below in (floor, floor + 1):
        below = min(max(below, least), most)
        right = b / (top - _F(below)) if high > 0 else _F(0)
        choices.append((max(a / _F(below), right), below))
    unit, below = min(choices, key=lambda choice: choice[0])  # of two equal ones the first
    bits = int(unit.view(np.uint32))
    bits = bits + 1 if bits < 1 << 16 else (bits + 256) // 256 * 256
    unit = np.uint32(bits).view(np.float32)
    bottom = -(unit * _F(below))
    return (unit, bottom) if np.isfinite(bottom) and np.isfinite(unit * top) else None


def _quantize(
    x: Floats, u: Floats | None, levels: int, exact_zeros: bool
) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Buckets (rows) to meta (rows of unit, min) and codes."""
    meta = np.zeros((len(x), 2), np.float32)
    codes = np.zeros(x.shape, np.uint8)
    good = np.isfinite(x).all(axis=1)
    meta[~good] = _NAN
    low = np.where(good, x.min(axis=1), _F(0)).astype(np.float32) + _F(0)
    high = np.where(good, x.max(axis=1), _F(0)).astype(np.float32) + _F(0)
    span = high - low
    step = span / _F(levels)
    wide = good & ~np.isfinite(low + step * _F(levels))
    tiny = step < _F(2**-126)
    # In units of 2^-149, as exact integers: the smallest step whose levels reach the maximum.
    quanta = np.round(span[tiny].astype(np.float64) * 2.0**149).astype(np.int64)
    exact = step[tiny].view(np.uint32).astype(np.int64)
    exact += exact * levels < quanta
    step[tiny] = exact.astype(np.uint32).view(np.float32)
    half_low = low * _F(0.5)
    half_step = (high * _F(0.5) - half_low) / _F(levels)
    plain = good & (span > 0) & ~wide
    if exact_zeros:
        for row in np.flatnonzero(plain & (low < 0) & (high >= 0) & (x == 0).any(axis=1)):
            old = step[row], low[row]
            step[row], low[row] = with_zero(low[row], high[row], step[row], levels) or old
    meta[good, 1] = low[good]
    meta[plain, 0] = step[plain]
    meta[wide, 0] = -half_step[wide]

    def rows(select: npt.NDArray[np.bool_], t: Floats) -> None:
        if u is None:
            q = np.rint(t)
        else:
            whole = np.trunc(t)
            q = whole + (t - whole > u[select])
        codes[select] = np.minimum(q, levels).astype(np.uint8)

    rows(plain, (x[plain] - low[plain, None]) / step[plain, None])
    rows(wide, (x[wide] * _F(0.5) - half_low[wide, None]) / half_step[wide, None])
    return meta, codes


def encode(x: Floats, spec: Spec) -> bytes:
    """The payload of a run without a raw rest."""
    b, levels = spec.bucket_size, 2**spec.bits - 1
    n, full = len(x), len(x) // spec.bucket_size
    u = uniform(spec, n) if spec.stochastic else None
    metas, codes = [], []
    with np.errstate(all="ignore"):
        for cut, shape in (
            (slice(0, full * b), (full, b)),
            (slice(full * b, n), (1, n - full * b)),
        ):
            if shape[0] and shape[1]:
                part = None if u is None else u[cut].reshape(shape)
                meta, code = _quantize(x[cut].reshape(shape), part, levels, spec.exact_zeros)
                metas.append(meta.tobytes())
                codes.append(code.ravel())
    flat = np.concatenate(codes) if codes else np.zeros(0, np.uint8)
    stream = np.unpackbits(flat[:, None], axis=1, bitorder="little")[:, : spec.bits]
    return b"".join(metas) + np.packbits(stream.ravel(), bitorder="little").tobytes()


def decode(payload: bytes, n: int, spec: Spec) -> Floats:
    """The values of a payload of n values without a raw rest."""
    buckets = -(-n // spec.bucket_size)
    meta = np.frombuffer(payload, np.float32, 2 * buckets).reshape(buckets, 2)
    packed = np.frombuffer(payload, np.uint8, offset=8 * buckets)
    stream = np.unpackbits(packed, bitorder="little")[: n * spec.bits].reshape(n, spec.bits)
    q = stream.astype(np.float32) @ (2.0 ** np.arange(spec.bits)).astype(np.float32)
    unit, low = meta[np.arange(n) // spec.bucket_size].T
    with np.errstate(all="ignore"):
        plain = low + unit * q
        half = low * _F(0.5) + (-unit) * q
        wide = _F(2) * np.minimum(half, np.finfo(np.float32).max / _F(2))
    result: Floats = np.where(unit < 0, wide, plain).astype(np.float32)
    return result


def bound(x: Floats, spec: Spec) -> Doubles:
    """What |decoded - x| may be at most, for finite x: the statement of
    csrc/codec/families/maxmin/formulas.h, in float64."""
    b = spec.bucket_size
    limits = np.empty(len(x), np.float64)
    for start in range(0, len(x), b):
        bucket = x[start : start + b].astype(np.float64)
        step = (bucket.max() - bucket.min()) / (2**spec.bits - 1)
        if step < 2.0**-126:
            step = np.ceil(step * 2.0**149) * 2.0**-149
        if spec.exact_zeros and bucket.min() < 0 <= bucket.max() and (bucket == 0).any():
            step = step * (2**spec.bits - 1) / (2**spec.bits - 2) * (1 + 2.0**-15) + 2.0**-141
        slack = 12 * 2.0**-24 * np.abs(bucket).max() + 2.0**-148
        limits[start : start + b] = (step if spec.stochastic else step / 2) + slack
    return limits
