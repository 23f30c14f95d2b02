"""Writes the levels of the codec `rotated`: csrc/codec/families/rotated/levels.h.

    python tools/quantizer_levels.py && make format

The levels are the Lloyd-Max quantizer of N(0, 1) for 1 to 8 bits (Lloyd, Least squares quantization
in PCM, 1982; Max, Quantizing for minimum distortion, 1960): each level is the mean of its interval,
and intervals meet half-way between levels. Newton's method solves these equations in float64.
Needs NumPy.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

TARGET = Path(__file__).resolve().parent.parent / "csrc/codec/families/rotated/levels.h"
BITS = range(1, 9)

HEAD = """// The Lloyd-Max quantizer of N(0, 1). Made by tools/quantizer_levels.py.
#pragma once

#include "base/host_device.h"

namespace cgx::rotated {

/// The positive levels, rising: 2^(bits-1) of them from number 2^(bits-1) - 1 on, for 1 to 8 bits.
"""


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _above(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(v / math.sqrt(2)) for v in x])


def means(levels: np.ndarray) -> np.ndarray:
    """Mean of N(0, 1) over the interval of each of these positive levels."""
    borders = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [40.0]])
    return (_density(borders[:-1]) - _density(borders[1:])) / (
        _above(borders[:-1]) - _above(borders[1:])
    )


def lloyd_max(bits: int) -> np.ndarray:
    """The 2^(bits - 1) positive levels, rising."""
    count = 2 ** (bits - 1)
    # Panter and Dite: the density of the best levels is that of N(0, 3).
    quantiles = (np.arange(count) + 0.5) / count
    grid = np.linspace(0, 12, 200_001)
    share = np.array([math.erf(v / math.sqrt(6)) for v in grid])
    levels = np.interp(quantiles, share, grid)
    for _ in range(100):
        off = means(levels) - levels
        if np.abs(off).max() < 1e-15:
            break
        # Only the two neighbours move a level's interval: a tridiagonal Jacobian, by differences.
        jacobian = -np.eye(count)
        for k in range(count):
            step = np.zeros(count)
            step[k] = 1e-6
            jacobian[:, k] += (means(levels + step) - means(levels - step)) / 2e-6
        change = np.linalg.solve(jacobian, -off)
        factor = 1.0
        while np.any(np.diff(np.concatenate([[0.0], levels + factor * change])) <= 0):
            factor /= 2
        levels = levels + factor * change
    return levels


def table(levels: list[float]) -> str:
    """The levels as a table in C++, rounded to float32."""
    lines, line = [], "   "
    for level in levels:
        word = f" {np.float32(level):.9g}f,"
        if len(line) + len(word) > 100:
            lines.append(line)
            line = "   "
        line += word
    lines.append(line)
    body = "\n".join(lines)
    return f"CGX_TABLE float kLevels[{len(levels)}] = {{\n{body}\n}};\n"


def text() -> str:
    levels = table([level for bits in BITS for level in lloyd_max(bits)])
    return f"{HEAD}{levels}\n}}  // namespace cgx::rotated\n"


if __name__ == "__main__":
    TARGET.write_text(text())
