"""Writes the levels of the codec `trellis`: csrc/codec/families/trellis/levels.h.

    python tools/trellis_levels.py && make format

A generalized Lloyd iteration (Marcellin and Fischer, Trellis coded quantization of memoryless and
Gauss-Markov sources, 1990): code Gaussian values with the best path, move each level to the mean of
the values that use it, repeat. The values and so the levels come from a fixed seed. Needs NumPy;
takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from quantizer_levels import lloyd_max, table

TARGET = Path(__file__).resolve().parent.parent / "csrc/codec/families/trellis/levels.h"
STEPS, LANES, ROUNDS = 128, 8192, 60
HEAD = """// The levels of trellis-coded quantization of N(0, 1). Made by tools/trellis_levels.py.
#pragma once

#include "base/host_device.h"

namespace cgx::trellis {

/// Rising: 2^(bits+1) of them from number 2^(bits+1) - 4 on, for 1 to 4 bits.
"""


def nearest(u: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each value's nearest level, and its squared distance."""
    m = np.searchsorted((levels[1:] + levels[:-1]) / 2, u)
    return m, (u - levels[m]) ** 2


def best_path(u: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The number of the level of each value on the best path; u: [steps, trellises]."""
    steps, lanes = u.shape
    cost = np.full((4, lanes), 1e30, np.float32)
    cost[0] = 0
    before = np.empty((steps, 4, lanes), np.int8)
    choice = np.empty((steps, 4, lanes), np.int8)
    for t in range(steps):
        distance = []
        for j in range(4):
            m, d = nearest(u[t], levels[j::4])
            choice[t, j] = 4 * m + j
            distance.append(d)
        new = np.empty_like(cost)
        for state in range(4):
            b, b1 = state & 1, state >> 1
            zero = cost[b1] + distance[2 * b + b1]
            one = cost[b1 + 2] + distance[2 * (b ^ 1) + b1]
            before[t, state] = one < zero
            new[state] = np.minimum(zero, one)
        cost = new
    state = cost.argmin(0)
    every = np.arange(lanes)
    found = np.empty((steps, lanes), np.int64)
    for t in range(steps - 1, -1, -1):
        older = before[t, state, every]
        found[t] = choice[t, 2 * ((state & 1) ^ older) + (state >> 1), every]
        state = (state >> 1) | (older << 1)
    return found


def train(bits: int) -> np.ndarray:
    random = np.random.default_rng(bits)
    upper = lloyd_max(bits + 1)
    levels = np.concatenate([-upper[::-1], upper])
    for turn in range(ROUNDS):
        u = random.standard_normal((STEPS, LANES)).astype(np.float32)
        path = best_path(u, levels)
        sums = np.bincount(path.ravel(), u.ravel(), len(levels))
        uses = np.bincount(path.ravel(), minlength=len(levels))
        # Late rounds are averaged, which takes the noise of a round's values out.
        weight = 1.0 if turn < ROUNDS // 2 else 2.0 / (turn - ROUNDS // 2 + 2)
        levels = levels + weight * (sums / np.maximum(uses, 1) - levels)
        levels = np.sort(levels)
    return levels


def text() -> str:
    levels = table([level for bits in range(1, 5) for level in train(bits)])
    return f"{HEAD}{levels}\n}}  // namespace cgx::trellis\n"


if __name__ == "__main__":
    TARGET.write_text(text())
