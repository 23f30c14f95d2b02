"""What other implementations say of formats: ml_dtypes, gfloat, torch, NumPy.

`check(name, x)` casts x, and compares the values with each oracle that has the format. The table of
docs/formats.md counts by it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torch_cgx import emulate

Floats = npt.NDArray[np.float32]
# Name -> bits of exponent and mantissa, bias, code of the largest number.
FORMATS: dict[str, tuple[int, int, int, int]] = {
    "fp16": (5, 10, 15, 0x7BFF),
    "bf16": (8, 7, 127, 0x7F7F),
    "tf32": (8, 10, 127, 0x3FBFF),
    "e5m2": (5, 2, 15, 0x7B),
    "e4m3": (4, 3, 7, 0x77),
    "e4m3fn": (4, 3, 7, 0x7E),
    "e5m2fnuz": (5, 2, 16, 0x7F),
    "e4m3fnuz": (4, 3, 8, 0x7F),
    "e3m4": (3, 4, 3, 0x6F),
    "e3m2": (3, 2, 3, 0x1F),
    "e2m3": (2, 3, 1, 0x1F),
    "e2m1": (2, 1, 1, 0x7),
    "e8m0": (8, 0, 127, 0xFE),
    **{f"binary8p{p}": (8 - p, p - 1, 1 << (7 - p), 0x7E) for p in range(1, 8)},
}


def numbers(name: str) -> npt.NDArray[np.float64]:
    """The positive numbers of a format, and 0, in their order; for e8m0 without 0."""
    _, mantissa, bias, top = FORMATS[name]
    code = np.arange(top + 1)
    if name == "e8m0":
        return np.ldexp(1.0, code - bias)
    e, k = code >> mantissa, code & ((1 << mantissa) - 1)
    significand = np.where(e == 0, k, k + (1 << mantissa)).astype(np.float64)
    return np.ldexp(significand, np.maximum(e, 1) - bias - mantissa)


def borders(name: str) -> Floats:
    """Each number, each midpoint, their neighbours in float32, of both signs; NaN, infinities."""
    grid = numbers(name)
    # Beyond the last number the next one would be as far away as the one before.
    middles = np.append((grid[1:] + grid[:-1]) / 2, grid[-1] + (grid[-1] - grid[-2]) / 2)
    with np.errstate(over="ignore"):
        x = np.concatenate([grid, middles]).astype(np.float32)
        x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(0))])
    special = np.array([np.inf, np.nan, 0], np.float32)
    x = np.concatenate([x, special])
    return np.concatenate([x, -x])


def spread(stride: int) -> Floats:
    """Every so manyth of all 2^32 floats."""
    return np.arange(stride // 2 - 1, 1 << 32, stride, np.uint64).astype(np.uint32).view(np.float32)


@dataclasses.dataclass(frozen=True)
class Oracle:
    """cast: from float32 to the format and back. changes: parameters of the preset that agree with
    the oracle. holds: for which values it speaks.
    """

    name: str
    cast: Callable[[Floats], npt.NDArray[Any]]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    holds: Callable[[Floats], npt.NDArray[np.bool_]] = lambda x: np.ones(x.shape, bool)


ML_DTYPES = {
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3": "float8_e4m3",
    "e4m3fn": "float8_e4m3fn",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e3m4": "float8_e3m4",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
}
TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e5m2": torch.float8_e5m2,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e4m3fn": torch.float8_e4m3fn,
    "e8m0": torch.float8_e8m0fnu,
}
FINITE = ("e3m2", "e2m3", "e2m1")  # have no NaN, which stays one here and becomes a number there


def oracles(name: str) -> list[Oracle]:
    return [*_numpy(name), *_ml_dtypes(name), *_gfloat(name), *_torch(name)]


def _not_nan(x: Floats) -> npt.NDArray[np.bool_]:
    return ~np.isnan(x)


def _numpy(name: str) -> Iterator[Oracle]:
    if name == "fp16":
        yield Oracle("NumPy", lambda x: x.astype(np.float16))
    if name == "tf32":
        yield Oracle("NumPy's integers", _tf32)


def _tf32(x: Floats) -> Floats:
    """To ten bits of a mantissa, ties to even."""
    bits = x.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    found: Floats = np.where(np.isfinite(x), rounded.view(np.float32), x)
    return found


def _ml_dtypes(name: str) -> Iterator[Oracle]:
    if name not in ML_DTYPES:
        return
    import ml_dtypes

    dtype = getattr(ml_dtypes, ML_DTYPES[name])
    # NaN beyond the largest number.
    changes = {"overflow": "nan"} if name == "e4m3fn" else {}
    holds = _not_nan if name in FINITE else Oracle.holds
    if name == "e8m0":
        holds = _powers
    yield Oracle("ml_dtypes", lambda x: x.astype(dtype), changes, holds)


def _powers(x: Floats) -> npt.NDArray[np.bool_]:
    """Where ml_dtypes and torch round to the nearest power of two: they round ties up, and all
    between 2^-127 and 2^-126.
    """
    return (np.frexp(x)[0] != 0.75) & ~((x > np.float32(2.0**-127)) & (x < np.float32(2.0**-126)))


GFLOAT = {
    "fp16": "binary16",
    "bf16": "bfloat16",
    "e5m2": "ocp_e5m2",
    "e4m3fn": "ocp_e4m3",
    "e3m2": "ocp_e3m2",
    "e2m3": "ocp_e2m3",
    "e2m1": "ocp_e2m1",
    "e8m0": "ocp_e8m0",
}


def format_of_gfloat(name: str) -> Any:
    """None: it has no such format."""
    import gfloat.formats as known

    if name.startswith("binary8p"):
        return known.format_info_p3109(8, int(name[-1]))
    return getattr(known, f"format_info_{GFLOAT[name]}") if name in GFLOAT else None


def _gfloat(name: str) -> Iterator[Oracle]:
    format = format_of_gfloat(name)
    if format is None:
        return
    saturates = name in FINITE
    changes = {"overflow": "nan"} if name == "e4m3fn" else {}
    holds = _not_nan if saturates else Oracle.holds
    if name == "e8m0":  # it keeps zero, and has powers below 2^-127

        def holds(x: np.ndarray) -> np.ndarray:
            return (x >= np.float32(2.0**-127)) | np.isnan(x)

    yield Oracle("gfloat", _rounded_by_gfloat(format, saturates), changes, holds)


def _rounded_by_gfloat(format: Any, saturates: bool) -> Callable[[Floats], npt.NDArray[Any]]:
    import gfloat

    def cast(x: Floats) -> npt.NDArray[Any]:
        # Of float64, which holds what float32 does.
        even = gfloat.RoundMode.TiesToEven
        found: npt.NDArray[Any] = gfloat.round_ndarray(
            format, x.astype(np.float64), even, saturates
        )
        return found

    return cast


def _torch(name: str) -> Iterator[Oracle]:
    if name not in TORCH:
        return
    dtype = TORCH[name]
    # Versions of torch differ in what becomes of larger values in e4m3fn.
    holds = (lambda x: np.abs(x) <= 464) if name == "e4m3fn" else Oracle.holds
    if name == "e8m0":  # of the magnitude, 0 included

        def holds(x: np.ndarray) -> np.ndarray:
            return _powers(x) & ~(x <= 0)

    yield Oracle("torch", lambda x: torch.from_numpy(x).to(dtype).float().numpy(), {}, holds)


def same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Equal with the sign of zero, or both NaN."""
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return np.asarray(equal | (np.isnan(a) & np.isnan(b)))


@functools.cache
def values(name: str, stride: int) -> Floats:
    return np.concatenate([borders(name), spread(stride)])


def check(name: str, oracle: Oracle, x: Floats) -> tuple[int, list[tuple[float, float, float]]]:
    """How many values were compared, and (value, ours, the oracle's) of those that differ."""
    format = emulate.preset(name, **oracle.changes)
    x = x[oracle.holds(x)]
    ours = emulate.cast(torch.from_numpy(x), format).numpy()
    with np.errstate(all="ignore"):
        theirs = oracle.cast(x).astype(np.float32)
    bad = np.nonzero(~same(ours, theirs))[0]
    return len(x), [(float(x[i]), float(ours[i]), float(theirs[i])) for i in bad]
