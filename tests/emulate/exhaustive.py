"""Every float32 there is, cast to every named float format, by hand: python -m
tests.emulate.exhaustive [--rounding nearest] [names ...]. A minute a format and level.
 The oracle is a format's list of numbers, from its definition, in exact arithmetic. Rounding is
monotonic,
so between two borders of the list all values have one result: values in the order of their bits are
compared with that, range by range. tests/emulate/test_oracles.py has samples of this in CI.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch

from torch_cgx import emulate

CHUNK = 1 << 24
INFINITY = 0x7F800000


def numbers(format: emulate.Float) -> list[Fraction]:
    """The non-negative finite numbers, in order: number k has code k."""
    e, m, variant = format.exponent, format.mantissa, format.variant
    if variant == "scale":
        return [Fraction(2) ** (code - 127) for code in range(255)]
    codes = 1 << (e + m)
    left = {"ieee": 1 << m, "fn": 1, "finite": 0, "fnuz": 0, "p3109": 1}[variant]
    bias = (1 << (e - 1)) - (0 if variant in ("fnuz", "p3109") else 1)
    found = []
    for code in range(codes - left):
        field, rest = code >> m, code & ((1 << m) - 1)
        significand = rest if field == 0 else (1 << m) + rest
        found.append(significand * Fraction(2) ** (max(field, 1) - bias - m))
    return found


def first_float(border: Fraction, above: bool) -> int:
    """The bits of the least float32 that is at least `border`, or above it."""
    value = np.float32(float(border)) if border < Fraction(2) ** 128 else np.float32(np.inf)
    bits = int(value.view(np.uint32))
    while bits > 0 and holds(bits - 1, border, above):
        bits -= 1
    while bits < INFINITY and not holds(bits, border, above):
        bits += 1
    return bits


def holds(bits: int, border: Fraction, above: bool) -> bool:
    value = Fraction(float(np.uint32(bits).view(np.float32))) if bits < INFINITY else None
    return value is None or value > border or (value == border and not above)


def ranges(format: emulate.Float) -> Iterator[tuple[int, float]]:
    """(first bits, result) of each range of magnitudes, in order, up to infinity."""
    found = numbers(format)
    to_zero = format.rounding == "zero"
    yield 0, float(found[0])
    for code, (low, high) in enumerate(itertools.pairwise(found)):
        border = high if to_zero else (low + high) / 2
        yield first_float(border, above=not to_zero and code % 2 == 0), float(high)
    # As if the list went on, to the border of the number after the largest, of its exponent.
    gap = Fraction(2) ** (math.frexp(float(found[-1]))[1] - 1 - format.mantissa)
    after = {"saturate": float(found[-1]), "inf": math.inf, "nan": math.nan}[overflow_of(format)]
    if not to_zero:
        even = (len(found) - 1) % 2 == 0
        yield first_float(found[-1] + gap / 2, above=even), after


def overflow_of(format: emulate.Float) -> str:
    default = {"fn": "saturate", "finite": "saturate", "fnuz": "nan", "scale": "nan"}
    return format.overflow or default.get(format.variant, "inf")


def check(format: emulate.Float) -> int:
    """Casts all magnitudes of both signs. How many values were compared; AssertionError."""
    found = numbers(format)
    signed_zero = format.variant not in ("fnuz", "p3109")
    limits = [*ranges(format)]
    infinite = {"saturate": float(found[-1]), "inf": math.inf, "nan": math.nan}[overflow_of(format)]
    limits += [(INFINITY, infinite), (INFINITY + 1, math.nan), (1 << 31, math.nan)]
    compared = 0
    place = 0
    for start in range(0, 1 << 31, CHUNK):
        bits = torch.arange(start, start + CHUNK, dtype=torch.int64).to(torch.int32)
        results = []
        for sign in (0, -(1 << 31)):
            x = (bits | sign).view(torch.float32)
            results.append(emulate.cast(x, format).view(torch.int32))
        while place + 1 < len(limits) and limits[place + 1][0] <= start:
            place += 1
        at, k = start, place
        while at < start + CHUNK:
            end = min(limits[k + 1][0] if k + 1 < len(limits) else 1 << 31, start + CHUNK)
            for negative, y in zip((False, True), results, strict=True):
                part = y[at - start : end - start]
                wanted = word(limits[k][1], negative, format, at, signed_zero)
                if format.variant == "scale" and at == 0 and not negative:
                    assert part[0].item() == word(math.nan, False, format, 0, True), "zero"
                    part = part[1:]
                assert bool((part == wanted).all()), (format, hex(at), hex(end), negative)
            compared += 2 * (end - at)
            at, k = end, k + 1
    return compared


def word(value: float, negative: bool, format: emulate.Float, at: int, signed_zero: bool) -> int:
    if math.isnan(value) or (format.variant == "scale" and negative):
        return 0x7FC00000
    bits = int(np.float32(value).view(np.int32))
    return bits | -(1 << 31) if negative and (bits != 0 or signed_zero) else bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="formats; none: all float formats")
    parser.add_argument("--rounding", default="nearest", choices=("nearest", "zero"))
    options = parser.parse_args()
    named = [n for n in emulate.presets() if isinstance(emulate.preset(n), emulate.Float)]
    for name in options.names or named:
        format = emulate.preset(name)
        if format.variant == "scale" and options.rounding == "zero":
            continue
        format = emulate.preset(name, rounding=options.rounding)
        began = time.monotonic()
        count = check(format)
        print(
            f"{name} {options.rounding}: {count} values, 0 differ, {time.monotonic() - began:.0f} s"
        )


if __name__ == "__main__":
    main()
