"""Independent models of `rotated` and `trellis` in numpy, for golden vectors: from values to a
payload, and from a payload to values.

Written from docs/numerics.md and docs/wire_format.md, not from the engine. Every step is float32
arithmetic of numpy, whose scalar operations are IEEE operations. Levels come from the equations of
the Lloyd-Max quantizer, those of the trellis from the table in docs/numerics.md's source, levels.h.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracle import splitmix64

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
_F = np.float32
_ROOT2 = _F(math.sqrt(2))
_MASK64 = (1 << 64) - 1
_LARGEST = np.finfo(np.float32).max
_STEP = 0xD1342543DE82EF95
_FAMILIES = Path(__file__).resolve().parents[2] / "csrc/codec/families"


def table(family: str) -> Floats:
    """The levels as the engine has them; test_rotation.py checks what they have to be."""
    text = (_FAMILIES / family / "levels.h").read_text().split("kLevels", 1)[1].split("{", 1)[1]
    return np.array([_F(word) for word in re.findall(r"(-?[\d.e-]+)f,", text)], np.float32)


@dataclasses.dataclass(frozen=True)
class Call:
    """What the signs depend on beside the seed. index: of the run's first value in its tensor."""

    sequence: int = 0
    rank: int = 0
    index: int = 0
    stage: int = 0


def state_of(call: Call, seed: int) -> int:
    """The state of the run's first value."""
    state = splitmix64(splitmix64(seed) ^ call.sequence)
    start = splitmix64(state ^ (call.stage << 32) ^ call.rank)
    return (start + call.index * _STEP) & _MASK64


def signs(state: int, n: int) -> Floats:
    """+1 or -1 of the values of a block, whose first one has this state."""
    found = np.ones(n, np.float32)
    for start in range(0, n, 64):
        word = splitmix64((state + start * _STEP) & _MASK64)
        bits = np.unpackbits(np.array([word], "<u8").view(np.uint8), bitorder="little")
        found[start : start + 64] -= _F(2) * bits[: n - start]
    return found


def stages_of(n: int) -> int:
    return (n - 1).bit_length()


def forth(z: Floats) -> Floats:
    for _ in range(stages_of(len(z))):
        n, pairs = len(z), len(z) // 2
        a, b = z[0 : 2 * pairs : 2], z[1 : 2 * pairs : 2]
        middle = [z[n - 1] * _ROOT2] if n % 2 else []
        z = np.concatenate([a + b, np.array(middle, np.float32), a - b])
    return z


def back(y: Floats) -> Floats:
    for _ in range(stages_of(len(y))):
        n, pairs = len(y), len(y) // 2
        a, b = y[:pairs], y[n - pairs :]
        z = np.empty(n, np.float32)
        z[0 : 2 * pairs : 2], z[1 : 2 * pairs : 2] = a + b, a - b
        if n % 2:
            z[n - 1] = y[pairs] * _ROOT2
        y = z
    return y


def factor_of(k: int) -> np.float32:
    """2^(-k/2): a power of two, times sqrt(2) in float32 for odd k."""
    power = _F(2.0 ** -((k + 1) // 2))
    return power * _ROOT2 if k % 2 else power


def total(a: Floats, b: Floats) -> np.float32:
    """The sum of a * b: 32 accumulators, folded in halves."""
    lanes = np.zeros(32, np.float32)
    for start in range(0, len(a), 32):
        some = a[start : start + 32] * b[start : start + 32]
        lanes[: len(some)] += some
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


class Rotated:
    """One Lloyd-Max code a coefficient."""

    def __init__(self, bits: int):
        count = 2 ** (bits - 1)
        self.count = count
        self.levels = table("rotated")[count - 1 : 2 * count - 1]

    def codes(self, u: Floats) -> Codes:
        middle = (self.levels[1:] + self.levels[:-1]) * _F(0.5)
        m = np.searchsorted(middle, np.abs(u))  # how many are below
        return np.where(np.signbit(u), m, m + self.count).astype(np.uint8)

    def values(self, codes: Codes) -> Floats:
        c = self.levels[codes % self.count]
        return np.where(codes < self.count, -c, c).astype(np.float32)


class Trellis:
    """The best path through four states, for eight sequences of a block."""

    def __init__(self, bits: int):
        self.bits = bits
        self.levels = table("trellis")[2 ** (bits + 1) - 4 : 2 ** (bits + 2) - 4]

    def codes(self, u: Floats) -> Codes:
        found = np.zeros(len(u), np.uint8)
        for first in range(min(8, len(u))):
            found[first::8] = self._path(u[first::8])
        return found

    def _path(self, u: Floats) -> list[int]:
        # A path is (cost, codes so far); the state is (b[t-1], b[t-2]).
        paths: dict[tuple[int, int], tuple[np.float32, list[int]]] = {(0, 0): (_F(0), [])}
        for value in u:
            best: dict[tuple[int, int], tuple[np.float32, list[int]]] = {}
            for b1 in (0, 1):
                for b in (0, 1):
                    for b2 in (0, 1):
                        if (b1, b2) not in paths:
                            continue
                        cost, codes = paths[b1, b2]
                        subset = self.levels[2 * (b ^ b2) + b1 :: 4]
                        m = int(np.searchsorted((subset[1:] + subset[:-1]) * _F(0.5), value))
                        off = value - subset[m]
                        new = cost + off * off
                        if (b, b1) not in best or new < best[b, b1][0]:
                            best[b, b1] = new, [*codes, 2 * m + b]
            paths = best
        # The state with the lowest number 2 b[t-1] + b[t] among those of least cost.
        ends = sorted(paths, key=lambda state: 2 * state[1] + state[0])
        return min((paths[state] for state in ends), key=lambda path: path[0])[1]

    def values(self, codes: Codes) -> Floats:
        bits = codes & 1
        b1 = np.concatenate([np.zeros(8, np.uint8), bits])[: len(codes)]
        b2 = np.concatenate([np.zeros(16, np.uint8), bits])[: len(codes)]
        return self.levels[4 * (codes >> 1) + 2 * (bits ^ b2) + b1]


def encode_block(x: Floats, state: int, quantizer: Any, unbiased: bool) -> tuple[Codes, np.float32]:
    n = len(x)
    zeros = np.zeros(n, np.uint8)
    if not np.isfinite(x).all():
        return zeros, _F(math.nan)
    largest = np.abs(x).max()
    if largest == 0:
        return zeros, _F(0)
    e = min(max(math.frexp(float(largest))[1] - 1, -126), 126)
    v = x * _F(2.0**-e) * signs(state, n)
    root = np.sqrt(total(v, v) / _F(n))
    u = forth(v) * (factor_of(stages_of(n)) / root)
    codes = quantizer.codes(u)
    c = quantizer.values(codes)
    product, square = total(u, c), total(c, c)
    if unbiased:
        most = _F(4) * np.sqrt(_F(n) / square)
        scale = min(_F(n) / product, most) if product > 0 else most
    else:
        scale = product / square
    with np.errstate(over="ignore"):
        return codes, min(scale * root * _F(2.0**e), _LARGEST)


def decode_block(codes: Codes, scale: np.float32, state: int, quantizer: Any) -> Floats:
    n = len(codes)
    if scale == 0:
        return np.zeros(n, np.float32)
    w = back(quantizer.values(codes) * factor_of(stages_of(n)))
    with np.errstate(over="ignore"):
        return np.clip(w * scale, -_LARGEST, _LARGEST) * signs(state, n)


def pack(codes: Codes, bits: int) -> bytes:
    each = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(each.ravel().astype(np.uint8), bitorder="little").tobytes()


def coded(
    family: Callable[[int], Any],
    x: Floats,
    parameters: Mapping[str, Any],
    call: Call,
) -> tuple[bytes, Floats]:
    """Payload and decoded values."""
    if len(x) == 0:
        return b"", x
    unbiased = parameters["scale"] == "unbiased"
    quantizer = family(parameters["bits"])
    state = state_of(call, parameters["seed"])
    scales, codes, values = [], [], []
    for first in range(0, len(x), parameters["block_size"]):
        block = x[first : first + parameters["block_size"]]
        at = (state + first * _STEP) & _MASK64
        q, scale = encode_block(block, at, quantizer, unbiased)
        codes.append(q)
        scales.append(scale)
        values.append(decode_block(q, scale, at, quantizer))
    # The quiet NaN of the format.
    head = np.array([_F(np.nan) if np.isnan(s) else s for s in scales], np.float32)
    payload = state.to_bytes(8, "little") + head.tobytes()
    return payload + pack(np.concatenate(codes), parameters["bits"]), np.concatenate(values)
