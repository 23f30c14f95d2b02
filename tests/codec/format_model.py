"""Independent models of `float` and `block` in float64, for golden vectors: a table of a format's
numbers, and a search in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests import oracle
from tests.oracle import Floats, Spec

Codes = npt.NDArray[np.int64]
_OVERFLOW = {"ieee": "inf", "p3109": "inf", "fn": "saturate", "finite": "saturate", "fnuz": "nan"}


@dataclass(frozen=True)
class Format:
    exponent: int
    mantissa: int
    variant: str = "ieee"
    overflow: str = "default"
    subnormals: bool = True
    # The numbers by code, and one more as if they went on.
    numbers: npt.NDArray[np.float64] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", self._numbers())

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def top(self) -> int:
        codes = 1 << (self.exponent + self.mantissa)
        left_out = {"ieee": 1 << self.mantissa, "fn": 1, "p3109": 1}
        return codes - 1 - left_out.get(self.variant, 0)

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - (0 if self.variant in ("fnuz", "p3109") else 1)

    @property
    def infinity(self) -> int | None:
        return self.top + 1 if self.variant in ("ieee", "p3109") else None

    @property
    def nan(self) -> int | None:
        if self.variant in ("fnuz", "p3109"):
            return 1 << (self.exponent + self.mantissa)
        if self.variant == "ieee":
            return self.top + 1 + (1 << self.mantissa >> 1) if self.mantissa else None
        return self.top + 1 if self.variant == "fn" else None

    def _numbers(self) -> npt.NDArray[np.float64]:
        one = 1 << self.mantissa
        found = []
        for code in range(self.top + 2):
            e, k = divmod(code, one)
            significand = k if e == 0 else one + k
            found.append(math.ldexp(significand, max(e, 1) - self.bias - self.mantissa))
        return np.array(found)

    def code_of(self, x: float, rounding: str, random: int, random_bits: int) -> int:
        """`random`: the value's random bits."""
        negative = math.copysign(1.0, x) < 0
        sign = int(negative) << (self.exponent + self.mantissa)
        overflow = _OVERFLOW[self.variant] if self.overflow == "default" else self.overflow
        infinity, nan = self.infinity, self.nan
        if math.isnan(x):
            return infinity or 0 if nan is None else nan
        if math.isinf(x) and overflow == "saturate":
            overflow = "nan" if infinity is None else "inf"
        code = self._rounded(abs(x), rounding, random, random_bits)
        if not self.subnormals and code < 1 << self.mantissa:
            code = 0
        if math.isinf(x) or (code > self.top and rounding != "zero"):
            if overflow == "nan":
                assert nan is not None
                return nan
            if overflow == "inf":
                assert infinity is not None
                return infinity | sign
        code = min(code, self.top)
        return code if code == 0 and self.variant in ("fnuz", "p3109") else code | sign

    def _rounded(self, a: float, rounding: str, random: int, random_bits: int) -> int:
        numbers = self.numbers
        low = int(np.searchsorted(numbers, a, side="right")) - 1
        if low > self.top:
            return low
        below, above = float(numbers[low]), float(numbers[low + 1])
        fraction = (a - below) / (above - below)
        if rounding == "zero":
            return low
        if rounding == "stochastic":
            return low + int(math.floor(fraction * 2**random_bits) + random >= 2**random_bits)
        return low + int(fraction > 0.5 or (fraction == 0.5 and low % 2 == 1))

    def value_of(self, code: int) -> float:
        sign, c = divmod(code, 1 << (self.exponent + self.mantissa))
        if code == self.nan or (c > self.top and c != self.infinity):
            return math.nan
        value = math.inf if c > self.top else float(self.numbers[c])
        return -value if sign else value


def _randoms(parameters: Mapping[str, Any], call: Spec, n: int) -> Codes:
    # 24 bits, falling as the generator's bits rise.
    bits = 2**24 - 1 - (oracle.uniform(call, n).astype(np.float64) * 2**24).astype(np.int64)
    return bits >> (24 - parameters["random_bits"])


def codes_of(x: Floats, fmt: Format, parameters: Mapping[str, Any], call: Spec) -> Codes:
    randoms = _randoms(parameters, call, len(x))
    rounding, bits = parameters["rounding"], parameters["random_bits"]
    codes = [fmt.code_of(float(v), rounding, int(r), bits) for v, r in zip(x, randoms, strict=True)]
    return np.array(codes, np.int64)


def values_of(codes: Codes, fmt: Format) -> Floats:
    return np.array([fmt.value_of(int(c)) for c in codes], np.float64).astype(np.float32)


def packed(codes: Codes, bits: int) -> bytes:
    """One stream of bits, the lowest first."""
    each = (codes[:, None] >> np.arange(bits)) & 1
    return np.packbits(each.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def format_of(parameters: Mapping[str, Any]) -> Format:
    names = ("exponent", "mantissa", "variant", "overflow", "subnormals")
    return Format(**{name: parameters[name] for name in names})


BLOCKS = {
    "mxfp8_e4m3": Format(4, 3, "fn"),
    "mxfp8_e5m2": Format(5, 2, "ieee", "saturate"),
    "mxfp6_e3m2": Format(3, 2, "finite"),
    "mxfp6_e2m3": Format(2, 3, "finite"),
    "mxfp4": Format(2, 1, "finite"),
    "mxint8": Format(1, 6, "fnuz", "saturate"),
    "fp8_block128": Format(4, 3, "fn"),
}


def power_of(amax: float, fmt: Format, rounding: str) -> int:
    """s of a block's scale 2^s."""
    largest = float(fmt.numbers[fmt.top])
    _, e_largest = math.frexp(largest)
    if amax == 0:
        return -127
    fraction, e = math.frexp(amax)  # fraction in [0.5, 1)
    if rounding == "ceil" and fraction > 0.5:
        e += 1
    if rounding == "even":
        steps = 2.0 ** (fmt.mantissa + 1)
        e += int(math.floor(fraction * steps + 0.5) >= steps)
    s = e - e_largest
    if rounding == "rceil" and amax > math.ldexp(largest, s):
        s += 1
    return min(max(s, -127), 127)


def blocks(x: Floats, parameters: Mapping[str, Any], call: Spec) -> tuple[bytes, Floats]:
    name = parameters["format"]
    fmt, wide = BLOCKS[name], name == "fp8_block128"
    size = 128 if wide else 32
    scales, divisors = b"", np.empty(len(x), np.float32)
    for start in range(0, len(x), size):
        block = x[start : start + size]
        finite = bool(np.isfinite(block).all())
        amax = float(np.abs(block).max()) if finite else 0.0
        if wide:
            largest = np.float32(fmt.numbers[fmt.top])
            scale = max(np.float32(amax) / largest, np.float32(2.0**-126))
            scale = np.float32(1) if amax == 0 else scale
            scale = scale if finite else np.float32(math.nan)
            scales += np.uint32(0x7FC00000).tobytes() if not finite else scale.tobytes()
        else:
            s = power_of(amax, fmt, parameters["scale_rounding"])
            scale = np.float32(2.0**s if finite else math.nan)
            scales += bytes([s + 127 if finite else 255])
        divisors[start : start + size] = scale
    with np.errstate(invalid="ignore"):
        quotients = (x / divisors).astype(np.float32)
    codes = codes_of(quotients, fmt, parameters, call)
    codes[np.isnan(divisors)] = 0
    values = (values_of(codes, fmt) * divisors).astype(np.float32)
    return scales + packed(codes, fmt.bits), values
