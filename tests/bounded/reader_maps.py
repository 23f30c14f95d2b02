"""What words of docs/bounded_format.md stand for: a part of the second reader."""

from __future__ import annotations

import numpy as np

POINTWISE = 3


def from_order(words, element, shift, origin, dtype):
    bits = 8 * dtype.itemsize
    if element > 4:
        # As signed numbers, or as numbers of 8 or 16 bits without a sign.
        least = 0 if element in (5, 8, 13) else -(2 ** (bits - 1))
        assert all(least <= w << shift < least + 2**bits for w in words.tolist())
        return (words.astype(np.int64).view(np.uint64) << np.uint64(shift)).astype(dtype)
    top = (2 ** (bits - 1) - 1) >> shift
    assert all(-1 - top <= w <= top for w in words.tolist())
    out = []
    for w in words.tolist():
        place = ~w if w < 0 else w
        magnitude = place and (place + origin - 1) % top + 1
        out.append(magnitude << shift | (2 ** (bits - 1) if w < 0 else 0))
    return np.array(out, dtype=dtype)


def curve(four):
    """256 values of the cubic through four nodes, in steps."""
    places = (32, 96, 160, 224)
    i = np.arange(256, dtype=np.float64)
    parts = []
    for k, place in enumerate(places):
        above, below = np.ones(256), 1.0
        for other in places[:k] + places[k + 1 :]:
            above, below = above * (i - other), below * (place - other)
        parts.append(above / below / 64 * float(four[k]))
    return ((parts[0] + parts[1]) + parts[2]) + parts[3]


def half_values(element):
    bits = np.arange(0x8000, dtype=np.uint16)
    if element == 3:
        return bits, bits.view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def lattice(element, bound, absolute, version):
    """Bits of the value that stands for each group of float16 or bfloat16, from 0 on."""
    bits, values = half_values(element)
    taken = np.isfinite(values)
    if version == 1:
        taken &= (values == 0) | (bits >= {3: 0x400, 4: 0x80}[element])
    bits, values = bits[taken], values[taken]
    allowed = np.full(len(values), bound) if absolute else bound * values
    groups, first = [0], int(np.sum(values <= allowed))
    while first < len(values):
        stop = first + 1
        while stop < len(values) and values[stop] - values[first] <= allowed[first]:
            stop += 1
        chosen = stop - 1
        stop = chosen + 1
        while stop < len(values) and values[stop] - values[chosen] <= allowed[stop]:
            stop += 1
        groups.append(int(bits[chosen]))
        first = stop
    return groups


def codes(pointwise):
    """Of each segment of a binade."""
    best = None
    for power in range(5):
        segments = 2**power
        counts = [
            int(np.ceil((1 / segments) / (2 * pointwise * (1 + s / segments))))
            for s in range(segments)
        ]
        if best is None or sum(counts) < sum(best):
            best = counts
    return best


def log_grid(words, pointwise, origin):
    best = codes(pointwise)
    segments, total = len(best), sum(best)
    firsts = np.concatenate([[0], np.cumsum(best)])
    places = np.abs(words) - 1
    within = places % total
    s = np.searchsorted(firsts, within, side="right") - 1
    width = (1 / segments) / np.array(best, np.float64)
    mantissas = (1 + s / segments) + (within - firsts[s] + 0.5) * width[s]
    magnitudes = np.ldexp(mantissas, places // total + origin)
    return np.where(words == 0, 0.0, np.where(words < 0, -magnitudes, magnitudes))
