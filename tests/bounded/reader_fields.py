"""Fields of docs/bounded_format.md, of the second reader. All arithmetic is that of one type, in
the page's order, so that every bit is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.bounded.reader_bytes import Bits, Cursor
from tests.bounded.reader_symbols import Model, Stream, windowed

GRID, EXACT, WORDS = range(3)
CONTEXTS, ESCAPE = 64, 255
A, B, C = range(3)


@dataclass
class Shape:
    """Rows of `width` values, planes of `height` rows; the block begins `begin` values behind the
    first plane's begin.
    """

    width: int
    height: int
    begin: int

    def levels(self) -> int:
        return min(max((max(self.width, self.height) - 1).bit_length() - 1, 1), 8)


def _runs(data: Cursor, n: int) -> np.ndarray:
    """n bits, from the lengths of their runs."""
    count = data.number()
    assert count <= n + 4
    lengths = Cursor(windowed(data.take(data.number()), count, 0).tobytes())
    bits = np.zeros(n, bool)
    at, value = 0, False
    while lengths.left():
        length = lengths.byte()
        if length == 255:
            length = int.from_bytes(lengths.take(3), "little")
        assert at + length <= n
        bits[at : at + length] = value
        at, value = at + length, not value
    assert at == n
    return bits


def _holes(data: Cursor, n: int, shape: Shape, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which values are holes, and what is there: of all places, read where it is a hole."""
    way = data.byte()
    assert way <= 3
    fills = np.zeros(n, dtype)
    if way == 0:
        return np.zeros(n, bool), fills
    count = data.number()
    assert 1 <= count <= 16
    values = data.array(dtype, count)
    bits = _runs(data, n)
    distance = {1: n, 2: shape.width, 3: shape.width * shape.height}[way]
    for i in range(distance, n, distance):  # a row, or a plane, at a time
        some = bits[i : i + distance]
        some ^= bits[i - distance : i - distance + len(some)]
    which = np.zeros(int(bits.sum()), np.uint8)
    if count > 1:
        which = windowed(data.take(data.number()), len(which), 0)
        assert (which < count).all()
    fills[bits] = values[which]
    return bits, fills


def _continued(x: np.ndarray, axis: int) -> np.ndarray:
    """By lines: one value before the first, and two behind the last."""
    x = np.moveaxis(x, axis, -1)
    if x.shape[-1] == 1:
        out = np.repeat(x, 4, -1)
    else:
        first = x[..., :1] - (x[..., 1:2] - x[..., :1])
        slope = x[..., -1:] - x[..., -2:-1]
        last = x[..., -1:] + slope
        out = np.concatenate([first, x, last, last + slope], -1)
    return np.moveaxis(out, -1, axis)


def _middles(x: np.ndarray, count: int, axis: int, number: Any) -> np.ndarray:
    """The first `count` middles between values along an axis."""
    p, q, r, s = (np.take(_continued(x, axis), np.arange(count) + k, axis) for k in range(4))
    return (number(9) * (q + r) - (p + s)) / number(16)


def _beside(sizes: np.ndarray, count: int, axis: int) -> np.ndarray:
    """The sums of the sizes before and behind each of the first `count` middles."""
    some = np.arange(count)
    behind = np.minimum(some + 1, sizes.shape[axis] - 1)
    return np.take(sizes, some, axis) + np.take(sizes, behind, axis)


def _upper(x: Any) -> Any:
    return (np.asarray(x, np.float32).view(np.uint32) >> np.uint32(22)).astype(np.int64)


class _Plane:
    """What is known of the values of one plane."""

    def __init__(self, shape: Shape, number: Any) -> None:
        size = shape.height, shape.width
        self.values, self.errors = np.zeros(size, number), np.zeros(size, number)
        self.sizes = np.zeros(size, np.float32)


class Field:
    """numbers: of all n values, where they are neither holes nor escapes."""

    def __init__(self, data: Cursor, n: int, number: Any, dtype: Any) -> None:
        """number: the type of the arithmetic; dtype: of the bits of the block's values."""
        self.number, self.n = number, n
        self.wide = number is np.float64
        self.kind = data.byte()
        assert self.kind <= WORDS
        self.shape = Shape(data.number(), data.number(), data.number())
        area = self.shape.width * self.shape.height
        assert 8 <= self.shape.width <= 2 * n and 1 <= self.shape.height <= 2 * n
        assert area <= 4 * n and self.shape.begin < area
        self.step = data.one("d") if self.kind == GRID else 0.0
        with np.errstate(over="ignore"):
            self.unit = number(self.step)
        self.middle = number(data.one("d" if self.wide else "f"))
        assert np.isfinite(self.middle)
        self.weights = [[number(0)] * 6]
        one_row = self.shape.begin % self.shape.width + n <= self.shape.width
        for _ in range(9):
            given = 0 if one_row else data.byte()
            assert given < 64
            found = [data.one("b") if given >> k & 1 else 0 for k in range(6)]
            self.weights.append([number(w) / number(64) for w in found])
        scales = int.from_bytes(data.take(5), "little")
        self.scales = [(scales >> 4 * group & 15) - 8 for group in range(10)]
        self.holes, self.fills = _holes(data, n, self.shape, dtype)
        self.escaped = data.array(dtype, data.number())
        self.escapes: list[int] = []  # their places
        self.numbers = np.zeros(n, number)
        if not self.holes.all():
            self.states = data.byte()
            self.model = Model(data, CONTEXTS)
            self.stream = Stream(self.states, data.take(data.number()))
            self.bits = Bits(data.take(data.left()))
            with np.errstate(all="ignore"):
                self._read()
            self.stream.end()
            assert self.bits.bytes_read() * 8 == self.bits.count
        assert len(self.escapes) == len(self.escaped) and data.left() == 0

    def _read(self) -> None:
        area = self.shape.width * self.shape.height
        before2 = before = None
        for first in range(-self.shape.begin, self.n, area):
            plane = _Plane(self.shape, self.number)
            places = np.arange(first, first + area).reshape(plane.values.shape)
            self.places = places
            inside = (places >= 0) & (places < self.n)
            self.present = inside.copy()
            self.present[inside] &= ~self.holes[places[inside]]
            self._anchors(plane, before)
            for k in range(self.shape.levels() - 1, -1, -1):
                for which in (A, B, C):
                    self._class(plane, before, before2, k, which)
            self.numbers[places[inside]] = plane.values[inside]
            before2, before = before, plane

    # ---- values

    def _anchors(self, plane: _Plane, before: _Plane | None) -> None:
        apart = 2 ** self.shape.levels()
        six = np.float32(6)
        for r in range(0, self.shape.height, apart):
            for c in range(0, self.shape.width, apart):
                prediction, size = self.middle, np.float32(0)
                if before is not None:
                    prediction, size = before.values[r, c], before.sizes[r, c]
                elif c or r:
                    at = (r, c - apart) if c else (r - apart, c)
                    prediction, size = plane.values[at], plane.sizes[at]
                places = (slice(r, r + 1), slice(c, c + 1))
                self._row(
                    plane,
                    places,
                    0,
                    np.array([prediction], self.number),
                    np.array([six * size], np.float32),
                )

    def _class(
        self, plane: _Plane, before: _Plane | None, before2: _Plane | None, k: int, which: int
    ) -> None:
        a, number = 2**k, self.number
        rows = slice(0 if which == A else a, None, 2 * a)
        columns = slice(0 if which == B else a, None, 2 * a)
        h, w = plane.values[rows, columns].shape
        if h == 0 or w == 0:
            return
        known = (slice(0, None, 2 * a), slice(0, None, 2 * a))
        of_rows = known if which == A else (slice(a, None, 2 * a), known[1])
        of_columns = known if which == B else (known[0], slice(a, None, 2 * a))
        u = v = sums = None
        if which != B:
            u = _middles(plane.values[of_rows], w, 1, number)
            sums = _beside(plane.sizes[of_rows], w, 1)
        if which != A:
            v = _middles(plane.values[of_columns], h, 0, number)
            down = _beside(plane.sizes[of_columns], h, 0)
            sums = down if sums is None else (sums + down) / np.float32(2)
        group = 1 + 3 * min(k, 2) + which
        weights = self.weights[group]
        more = None
        if which == C:
            base = (u + v) / number(2)
            corners = _continued(_continued(plane.values[known], 1), 0)[1:, 1:]
            p, q = corners[:h, :w], corners[:h, 1 : w + 1]
            r, s = corners[1 : h + 1, :w], corners[1 : h + 1, 1 : w + 1]
            c = ((p + q) + (r + s)) / number(4)
            more = weights[4] * ((u - v) / number(2)) + weights[5] * (c - base)
        else:
            base = u if which == A else v
        none, no_size = np.zeros(w, number), np.zeros(w, np.float32)
        two, three = np.float32(2), np.float32(3)
        for i in range(h):
            row = range(self.shape.height)[rows][i]
            above = row - 2 * a if i else None

            def of(what: str, one: _Plane | None, r: int | None, nothing: np.ndarray) -> Any:
                return nothing if one is None or r is None else getattr(one, what)[r, columns]

            up, there = of("errors", plane, above, none), of("errors", before, row, none)
            before_up = of("errors", before, above, none)
            older = of("errors", before2, row, none)
            e = (weights[0] * up + weights[1] * there) + (
                weights[2] * before_up + weights[3] * older
            )
            if more is not None:
                e = e + more[i]
            others = of("sizes", plane, above, no_size) + of("sizes", before, row, no_size)
            both = above is not None and before is not None
            if both:
                size = sums[i] + two * others
            elif above is not None or before is not None:
                size = two * (sums[i] + others)
            else:
                size = three * sums[i]
            places = (slice(row, row + 1), columns)
            prediction = base[i] + e
            self._row(plane, places, group, prediction, size)
            plane.errors[places] = plane.values[places] - base[i]

    def _row(
        self, plane: _Plane, places: Any, group: int, prediction: np.ndarray, size: np.ndarray
    ) -> None:
        """Values and sizes of a row of a class, by their predictions and neighbourhoods."""
        prediction = np.where(np.isfinite(prediction), prediction, self.number(0))
        present = self.present[places][0]
        found = [0] * len(present)
        escapes = np.zeros(len(present), bool)
        contexts = self._contexts(prediction, size, group).tolist()
        for turn, i in enumerate(np.flatnonzero(present).tolist()):
            token = self.stream.take(turn % self.states, self.model.tables[contexts[i]])
            if token == ESCAPE:
                escapes[i] = True
                self.escapes.append(int(self.places[places][0][i]))
            else:
                found[i] = self._residual(token)
        residuals = np.array(found, np.int64)
        assert self.kind == EXACT or (np.abs(residuals) <= 2 ** (51 if self.wide else 22)).all()
        values = self._values(prediction, residuals)
        missing = escapes | ~present
        values = np.where(missing, prediction, values)
        if self.kind == EXACT:
            sizes = np.abs(values - prediction).astype(np.float32)
        else:
            sizes = np.abs(residuals).astype(np.float32)
        sizes[~present] = (size * np.float32(1 / 6))[~present]
        sizes[escapes] = 0
        plane.values[places], plane.sizes[places] = values, sizes

    def _contexts(self, prediction: np.ndarray, size: np.ndarray, group: int) -> np.ndarray:
        bins = _upper(size)
        if self.kind != EXACT:
            bins = bins - 252
        elif self.wide:
            bins = (bins >> 1) - (_upper(np.abs(prediction).astype(np.float32)) >> 1) + 52
        else:
            bins = bins - 2 * (_upper(np.abs(prediction)) >> 1) + 46
        bins = np.clip(bins, 1, 63)
        return np.where(size == 0, 0, np.clip(bins + self.scales[group], 1, 63))

    def _residual(self, token: int) -> int:
        t, c, d = (15, 1, 3) if self.wide else (31, 2, 4)
        assert self.wide or token < 247
        if token < t:
            return -(token + 1) // 2 if token % 2 else token // 2
        q = (token - t) // 2
        place = d + (q >> c)
        magnitude = (1 << c | q & (1 << c) - 1) << (place - c) | self.bits.take(place - c)
        return -magnitude if (token - t) % 2 else magnitude

    def _values(self, prediction: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        number = self.number
        if self.kind == GRID:
            return prediction + residuals.astype(number) * self.unit
        if self.kind == WORDS:
            most = number(2.0**51 if self.wide else 2.0**22)
            near = np.where(np.abs(prediction) >= most, number(0), np.rint(prediction))
            return near + residuals.astype(number)
        signed = np.int64 if self.wide else np.int32
        magnitude = np.iinfo(signed).max

        def turned(bits: np.ndarray) -> np.ndarray:
            return np.where(bits < 0, bits ^ magnitude, bits)

        place = turned(prediction.view(signed))
        moved = place + residuals.astype(signed)
        return turned(moved).view(number)
