"""Coded symbols of docs/bounded_format.md (models, streams, windows), of the second reader."""

from __future__ import annotations

import numpy as np

from tests.bounded.reader_bytes import Bits, Cursor

TOTAL, LEAST = 4096, 2**15
WINDOW_CONTEXTS = 30


def frequencies(numbers: list[int]) -> list[int]:
    """They sum up to 4096."""
    total = sum(numbers)
    found = [max(1, TOTAL * v // total) if v else 0 for v in numbers]
    excess = sum(found) - TOTAL
    while excess > 0:
        greatest = found.index(max(found))
        given = min(excess, (found[greatest] + 1) // 2)
        found[greatest] -= given
        excess -= given
    found[found.index(max(found))] -= excess
    return found


class Table:
    """What each of the 4096 places of a state stands for."""

    def __init__(self, bits: Bits) -> None:
        first, last = bits.take(8), bits.take(8)
        assert first <= last
        numbers, length = [], 6
        for _ in range(first, last + 1):
            zeros = 0
            while not bits.take(1):
                zeros += 1
            length += -(zeros + 1) // 2 if zeros % 2 else zeros // 2
            assert 0 <= length <= 13
            number = 0
            if length:
                more = min(length - 1, 2)
                number = (1 << more | bits.take(more)) << (length - 1 - more)
            numbers.append(number)
        assert any(numbers)
        found = frequencies(numbers)
        begins = np.cumsum([0, *found])
        self.symbol = np.repeat(np.arange(first, last + 1), found).tolist()
        self.frequency = np.repeat(found, found).tolist()
        self.within = (np.arange(TOTAL) - np.repeat(begins[:-1], found)).tolist()


class Model:
    """The table of each context."""

    def __init__(self, data: Cursor, contexts: int) -> None:
        assert data.byte() == contexts
        tables = data.byte()
        assert 1 <= tables <= 8
        bits = Bits(data.data[data.at : data.at + 4096])
        of_context = np.cumsum([0] + [bits.take(1) for _ in range(1, contexts)])
        assert of_context[-1] == tables - 1
        made = [Table(bits) for _ in range(tables)]
        data.take(bits.bytes_read())
        self.tables = [made[t] for t in of_context]


class Stream:
    """States, and words of 16 bits that fill them up."""

    def __init__(self, states: int, data: bytes) -> None:
        assert states in (1, 2, 4, 8, 16, 32)
        cursor = Cursor(data)
        self.states = cursor.array(np.uint32, states).tolist()
        assert all(LEAST <= x < 2**31 for x in self.states)
        assert cursor.left() % 2 == 0
        self.words, self.at = cursor.array(np.uint16, cursor.left() // 2).tolist(), 0

    def take(self, state: int, table: Table) -> int:
        x = self.states[state]
        j = x % TOTAL
        x = table.frequency[j] * (x >> 12) + table.within[j]
        if x < LEAST:
            assert self.at < len(self.words), "cut"
            x = x << 16 | self.words[self.at]
            self.at += 1
        self.states[state] = x
        return table.symbol[j]

    def end(self) -> None:
        assert self.at == len(self.words) and all(x == LEAST for x in self.states)


def windowed(data: bytes, n: int, center: int) -> np.ndarray:
    """n symbols whose contexts are means of those before."""
    cursor = Cursor(data)
    w, count = cursor.byte(), cursor.byte()
    assert 1 <= w <= 6
    model = Model(cursor, WINDOW_CONTEXTS)
    stream = Stream(count, cursor.take(cursor.left()))
    each = n // count
    out = np.zeros(n, np.uint8)
    means = [0] * count
    for place in range(each):
        for state in range(count):
            mean = means[state]
            top = (mean + 2).bit_length() - 1
            context = 2 * top - 2 + (mean + 2 >> top - 1 & 1)
            symbol = stream.take(state, model.tables[context])
            out[state * each + place] = symbol
            means[state] = mean - (mean >> w) + (abs(symbol - center) << 8 - w)
    for state in range(n - each * count):
        out[count * each + state] = stream.take(state, model.tables[0])
    stream.end()
    return out
