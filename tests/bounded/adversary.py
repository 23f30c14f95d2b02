"""Tensors and bounds that an error-bounded compressor finds hard, and the promise as an oracle.

    python -m tests.bounded.adversary --tensors 1000000 --seed 7

compresses and decompresses that many tensors on all cores and prints violations with their tensors,
and their number: 0 is expected. A tensor depends on the seed and its number alone: `--first NUMBER
--tensors 1` makes it again. Exits with 1 if there is a violation.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from tests.bounded import adversary_fields as fields
from torch_cgx import bounded

Array = npt.NDArray[np.float64]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.complex32: torch.float16,
}
WHOLE = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
)
INTEGERS = tuple(dtype for dtype in WHOLE if dtype != torch.bool)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
KINDS = ("max_error", "relative", "pointwise")
_BATCH = 2000


@dataclasses.dataclass(frozen=True)
class Case:
    """bound: the arguments of `compress`. what: how the tensor was made."""

    tensor: torch.Tensor
    bound: dict[str, float]
    what: str


def bits_of(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    """The bits of each value (of complex numbers: each part), in memory order."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    whole = BITS[tensor.element_size()]
    return tensor.contiguous().view(whole).flatten().numpy().astype(np.int64)


def values_of(tensor: torch.Tensor) -> Array:
    """The values of floating-point numbers (of complex numbers: each part) in float64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().double().flatten().numpy()


def violation(x: torch.Tensor, y: torch.Tensor, bound: dict[str, float]) -> str | None:
    """What of the promise y, which came back for x, does not keep."""
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"{y.dtype} {list(y.shape)} came back"
    if x.is_conj():
        x = x.resolve_conj()
    ((kind, number),) = bound.items() if bound else (("max_error", 0.0),)
    before, after = bits_of(x), bits_of(y)
    same = before == after
    if same.all():
        return None
    dtype = COMPLEX.get(x.dtype, x.dtype)
    if not dtype.is_floating_point or number == 0:
        return _first(~same, before, after, "altered")
    a, b = values_of(x), values_of(y)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(a)
        exact = np.isinf(a) | ((a == 0) & np.signbit(a))
        bad = (exact & ~same) | (np.isnan(a) & ~np.isnan(b))
        if kind == "pointwise":
            # Larger, so that no product is rounded to a subnormal number.
            scale = np.where(np.abs(a) < 2.0**-900, 2.0**100, 1.0)
            a, b = a * scale, b * scale
            allowed = number * np.abs(a)
        elif kind == "relative":
            range_ = a[finite].max() - a[finite].min() if finite.any() else 0.0
            allowed = np.full_like(a, number * range_)
        else:
            allowed = np.full_like(a, number)
        bad |= finite & ~(np.abs(a - b) <= allowed)
    return _first(bad, a, b, "off") if bad.any() else None


def _first(bad: npt.NDArray[np.bool_], a: npt.NDArray, b: npt.NDArray, what: str) -> str:
    at = int(np.flatnonzero(bad)[0])
    return f"{int(bad.sum())} of {bad.size} {what}, the first at {at}: {a[at]!r} became {b[at]!r}"


_LONG = 0.01  # the share of long tensors


def _size(rng: np.random.Generator) -> int:
    draw = rng.random()
    if draw < 0.05:
        return int(rng.integers(0, 4))
    if draw < 0.6:
        return int(rng.integers(1, 400))
    if draw < 0.7:
        return int(rng.choice([256, 512, 1024, 1088, 2048])) + int(rng.integers(-2, 3))
    if draw < 0.998:
        return int(rng.integers(400, 3200))
    return 65536 * int(rng.integers(1, 3)) + int(rng.integers(-2, 3))


def _least(dtype: torch.dtype) -> float:
    """The least subnormal number."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def _floats(
    rng: np.random.Generator, n: int, dtype: torch.dtype, scale: float, step: float
) -> tuple[torch.Tensor, str]:
    """n values of one of many kinds. step: the distance of the bound's grid."""
    info = torch.finfo(dtype)
    kind = str(rng.choice(_KINDS))
    if step < 100 * _least(dtype):
        kind = "least"
    unit = rng.standard_normal(n)
    i = np.arange(n)
    x: npt.NDArray[np.floating] = unit * scale
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if kind == "scales":
            x = unit * 10.0 ** rng.uniform(np.log10(info.tiny) - 2, np.log10(info.max), n)
        elif kind == "midpoints":
            x = (np.rint(unit * 10 ** rng.uniform(0, 4)) + 0.5) * step
        elif kind == "ties":
            x = np.rint(unit * 50) * step / 2
        elif kind == "subnormal":
            x = unit * info.smallest_normal * rng.choice([0.01, 1.0, 4.0])
            if rng.random() < 0.3:  # a few among others
                x = np.where(rng.random(n) < rng.choice([0.003, 0.05]), x, unit * scale)
        elif kind == "huge":
            x = info.max * (1 - np.abs(unit) * rng.choice([1e-6, 1e-2, 0.3])) * np.sign(unit)
        elif kind == "outlier":
            x = np.full(n, scale) + unit * rng.choice([0.0, 1e-7, 1e-3]) * scale
            x[rng.integers(0, max(n, 1), min(n, 1 + n // 300))] = rng.choice([-1e6, 0, 3.0]) * scale
        elif kind == "periodic":
            x = np.sin(i % rng.integers(2, 40)) * scale
        elif kind == "sorted":
            x = np.sort(x)
        elif kind == "ramp":
            x = (i - rng.integers(0, n + 1)) * scale * rng.uniform(1e-4, 1)
        elif kind == "smooth":
            x = (np.sin(i * rng.uniform(1e-4, 0.05)) + rng.uniform(-2, 2)) * scale
        elif kind == "walk":
            x = np.cumsum(unit) * scale
        elif kind == "heaps":
            x = np.where(rng.random(n) < 0.3, 17.0, -2.0) * scale + unit * scale * 1e-3
        elif kind == "sparse":
            x = np.where(rng.random(n) < 0.03, x, 0.0)
        elif kind == "zeros":
            x = np.where(rng.random(n) < rng.choice([0.01, 0.5]), -0.0, 0.0)
        elif kind == "runs":
            x = np.where(i // 23 % 4 == 1, np.nan, np.where(i // 23 % 4 == 2, np.inf * unit, x))
        elif kind == "far places":
            x = unit * step * 1e-3
            x[:: rng.integers(50, 700)] = rng.choice([-1, 1]) * 2.0 ** rng.choice([31, 32]) * step
            if rng.random() < 0.5:
                x[1 :: rng.integers(2, 90)] = -0.0
        elif kind == "both zeros":
            x = np.where(rng.random(n) < 0.3, np.where(unit < 0, -0.0, 0.0), x)
        elif kind == "least":
            x = info.smallest_normal + rng.integers(0, 5000, n) * _least(dtype)
            x[rng.integers(0, max(n, 1), min(n, 1))] *= 10.0 ** rng.uniform(1, 33)
        elif kind == "binades":
            x = np.sign(unit) * 2.0 ** np.rint(rng.uniform(-4, 4, n))
    values = torch.from_numpy(x).to(dtype)
    if kind == "bits":
        raw = rng.integers(-(2**63), 2**63, n, dtype=np.int64)
        values = torch.from_numpy(raw).to(BITS[dtype.itemsize]).view(dtype)
    elif kind in ("midpoints", "binades", "ties", "far places") and rng.random() < 0.7:
        near = torch.from_numpy(rng.integers(-2, 3, n)).to(BITS[dtype.itemsize])
        values = (values.view(near.dtype) + near).view(dtype)
    if n > 0 and rng.random() < 0.2:
        rare = [np.nan, np.inf, -np.inf, -0.0, float(info.tiny) / 2, float(info.max)]
        at = torch.from_numpy(rng.integers(0, n, 1 + n // int(rng.integers(5, 200))))
        values[at] = torch.from_numpy(rng.choice(rare, len(at))).to(dtype)
    return values, kind


_KINDS = (
    "gauss",
    "scales",
    "midpoints",
    "ties",
    "subnormal",
    "huge",
    "outlier",
    "periodic",
    "sorted",
    "ramp",
    "smooth",
    "walk",
    "heaps",
    "sparse",
    "zeros",
    "runs",
    "far places",
    "both zeros",
    "least",
    "binades",
    "bits",
)


def _whole(rng: np.random.Generator, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, str]:
    kind = str(rng.choice(["bits", "small", "ends", "ramp", "sparse", "shifted", "constant"]))
    raw = rng.integers(0, 2**64, n, dtype=np.uint64)
    if kind == "small":
        raw = (raw % 17) - np.uint64(8)  # wraps
    elif kind == "ends":
        raw = rng.choice(np.array([0, 2**64 - 1, 0x8080808080808080], dtype=np.uint64), n)
    elif kind == "ramp":
        raw = np.arange(n, dtype=np.uint64) * np.uint64(rng.integers(1, 9)) + np.uint64(2**63)
    elif kind == "sparse":
        raw = np.where(rng.random(n) < 0.02, raw, np.uint64(0))
    elif kind == "shifted":
        raw = raw << np.uint64(rng.integers(1, 8 * dtype.itemsize))
    elif kind == "constant":
        raw = np.full(n, raw[0] if n else 0, dtype=np.uint64)
    if dtype == torch.bool:
        return torch.from_numpy((raw & np.uint64(1)).astype(np.uint8)).bool(), kind
    narrow = raw.astype(f"u{dtype.itemsize}")  # keeps the low bits
    return torch.from_numpy(narrow).view(dtype), kind


def _bound(rng: np.random.Generator, dtype: torch.dtype, scale: float) -> dict[str, float]:
    kind = str(rng.choice(KINDS, p=[0.6, 0.15, 0.25]))
    draw = rng.random()
    if draw < 0.06:
        return {kind: 0.0}
    if kind != "max_error":
        power = rng.uniform(-9, -0.05) if draw < 0.9 else rng.uniform(-300, -9)
        number = 10.0**power if rng.random() < 0.7 else 2.0 ** np.rint(3.3 * power)
        return {kind: float(min(number, 0.999) if kind == "pointwise" else number)}
    if draw < 0.2:  # next to the distance of neighbours in the type
        ulps = float(rng.choice([0.25, 0.5, 1, 1.5, 2, 3, 8])) * (
            1 + rng.integers(-1, 2) * 2.0**-52
        )
        return {kind: scale * torch.finfo(dtype).eps * ulps}
    if draw < 0.23:
        return {kind: _least(dtype) * float(rng.uniform(0.3, 9))}
    if draw < 0.28:
        return {kind: float(rng.choice([5e-324, 1e-310, 1e-45, 1e-30, 1e30, 1e300]))}
    if draw < 0.36:  # ties are exact
        return {kind: 2.0 ** int(rng.integers(-20, 12))}
    return {kind: scale * float(10.0 ** rng.uniform(-7, 1))}


def _arranged(rng: np.random.Generator, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The values, or some of them, with another shape and other strides."""
    n = x.numel()
    draw = int(rng.integers(0, 12))
    if draw == 0:
        return x[::2], "every second"
    if draw == 1:
        return x[1:], "from the second"
    if draw == 2 and n >= 6:
        return x[: n // 6 * 6].view(2, -1, 3).transpose(0, 2), "transposed"
    if draw == 3 and 0 < n < 300:
        return x[None, :, None].expand(3, n, 2), "expanded"
    if draw == 4 and n >= 1:
        return x[0], "0-D"
    if draw == 5 and n >= 8:
        return x[: n // 8 * 8].view(2, 2, 1, -1, 2), "5-D"
    if draw == 6 and x.is_complex() and x.dtype != torch.complex32:
        return x.conj(), "conjugate"
    if draw == 7 and n >= 4:
        return x[: n // 4 * 4].view(4, -1)[1:3, 1:], "inner part"
    return x, "plain"


def _long(rng: np.random.Generator, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """At least 2^17 bytes: rows of these values, again and again, or mostly one of them."""
    if not x.is_complex() and x.dtype not in BITS.values():
        # torch has no such indices for all types.
        long, what = _long(rng, x.view(BITS[x.element_size()]))
        return long.view(x.dtype), what
    each = x.element_size() // (2 if x.is_complex() else 1)
    n = (1 << 17) // each + int(rng.integers(0, 70_000))
    if rng.random() < 0.7:
        width = int(rng.integers(1, min(x.numel(), 3000) + 1))
        rows = x[: x.numel() // width * width].view(-1, width)
        return rows[torch.from_numpy(rng.integers(0, len(rows), n // width + 1))], "rows again"
    most = x[int(rng.integers(x.numel()))]
    long = most.repeat(n + 65536 * int(rng.integers(0, 20)))
    places = torch.from_numpy(rng.integers(0, len(long), int(rng.integers(0, 40))))
    long[places] = x[torch.from_numpy(rng.integers(0, x.numel(), len(places)))]
    return long, "mostly one"


def case(seed: int, number: int) -> Case:
    rng = np.random.default_rng([seed, number])
    n = _size(rng)
    draw = rng.random()
    if draw > 0.7:
        return _field(rng, wide=draw > 0.95)
    if draw < 0.12:
        x, kind = _whole(rng, n, WHOLE[int(rng.integers(len(WHOLE)))])
        bound: dict[str, float] = {} if rng.random() < 0.8 else {"max_error": 0.0}
        long = n > 0 and rng.random() < _LONG
        x, arranged = _long(rng, x) if long else _arranged(rng, x)
        return Case(x, bound, f"{kind}, {arranged}")
    if draw < 0.22:
        wanted = list(COMPLEX)[int(rng.integers(len(COMPLEX)))]
        dtype = COMPLEX[wanted]
        n = n // 2 * 2
    else:
        dtype = FLOATS[int(rng.choice(4, p=[0.4, 0.2, 0.2, 0.2]))]
        wanted = dtype
    scale = float(10.0 ** rng.uniform(-4, 4)) if rng.random() < 0.8 else 1.0
    bound = _bound(rng, dtype, scale)
    ((name, given),) = bound.items()
    step = 2 * given if name == "max_error" and given > 0 else 1e-3 * scale
    x, kind = _floats(rng, n, dtype, scale, step)
    if wanted != dtype:
        x = torch.view_as_complex(x.view(-1, 2))
    long = x.numel() > 0 and rng.random() < _LONG
    x, arranged = _long(rng, x) if long else _arranged(rng, x)
    return Case(x, bound, f"{kind}, {arranged}")


def _field(rng: np.random.Generator, wide: bool) -> Case:
    """Rows and planes; wide: whole numbers."""
    if wide:
        x, kind = fields.image(rng, INTEGERS[int(rng.integers(len(INTEGERS)))])
        return Case(x, {}, kind)
    dtype = FLOATS[int(rng.choice(4, p=[0.5, 0.3, 0.1, 0.1]))]
    scale = float(10.0 ** rng.uniform(-3, 4)) if rng.random() < 0.8 else 1.0
    bound = {"max_error": 0.0} if rng.random() < 0.35 else _bound(rng, dtype, scale)
    x, kind = fields.field(rng, scale, dtype)
    return Case(x, bound, kind)


def broken(made: Case) -> str | None:
    """What is wrong with the tensor that comes back. None: nothing."""
    try:
        payload = bounded.compress(made.tensor, **made.bound)
    except ValueError as error:
        # The one bound that has no value: of a range that float64 cannot hold.
        return None if "range that float64 cannot hold" in str(error) else f"refused: {error}"
    try:
        found = bounded.decompress(payload)
    except ValueError as error:
        return f"its payload is refused: {error}"
    return violation(made.tensor, found, made.bound)


@dataclasses.dataclass
class Report:
    tensors: int = 0
    values: int = 0
    violations: list[str] = dataclasses.field(default_factory=list)
    dtypes: collections.Counter[torch.dtype] = dataclasses.field(
        default_factory=collections.Counter
    )


def run(seed: int, first: int, count: int) -> Report:
    """Of the tensors with these numbers."""
    torch.set_num_threads(1)
    report = Report()
    for number in range(first, first + count):
        made = case(seed, number)
        found = broken(made)
        report.tensors += 1
        report.values += made.tensor.numel()
        report.dtypes[made.tensor.dtype] += 1
        if found is not None:
            report.violations.append(
                f"seed {seed}, tensor {number}: {describe(made)}: {found}\n{made.tensor.tolist()}"
            )
    return report


def describe(made: Case) -> str:
    x = made.tensor
    return f"{x.dtype} {list(x.shape)} ({made.what}), bound {made.bound}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--first", type=int, default=0, help="number of the first tensor")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    starts = range(options.first, options.first + options.tensors, _BATCH)
    last = options.first + options.tensors
    begin = time.perf_counter()
    total = Report()
    # Processes that start anew: threads of torch do not survive a fork.
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(run, options.seed, k, min(_BATCH, last - k)) for k in starts]
        for part in parts:
            report = part.result()
            total.tensors += report.tensors
            total.values += report.values
            total.dtypes += report.dtypes
            for text in report.violations:
                print(text, flush=True)
            total.violations += report.violations
    by_dtype = ", ".join(f"{d} {c}".removeprefix("torch.") for d, c in total.dtypes.most_common())
    print(
        f"{total.tensors} tensors with {total.values} values, seed {options.seed}, numbers "
        f"{options.first} to {last - 1}: {len(total.violations)} violations; "
        f"{time.perf_counter() - begin:.0f} s on {options.processes} processes\n{by_dtype}"
    )
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
