"""Which cases are run: each size, each border and long tensors, of each operation and type."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.conformance.boxes import LAYOUTS
from tests.conformance.catalogue import MOVES, REDUCING, Case
from tests.conformance.values import FLOATS, MOVED, REDUCTIONS, reduced

SMALL = range(401)
BORDERS = (0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 400)
LONG = (4 << 10, 64 << 10, 512 << 10, 1 << 20)  # bytes, a value more, and a value less
SIZELESS = ("barrier",)

Kind = tuple[str, str, torch.dtype, bool]


def kinds() -> list[Kind]:
    """Every operation, reduction and type; then floats whose sum depends on the order."""
    found = [(op, "", dtype, False) for op in MOVES if op not in SIZELESS for dtype in MOVED]
    for op, reduction in itertools.product(REDUCING, REDUCTIONS):
        found += [(op, reduction, dtype, False) for dtype in reduced(reduction)]
    for op, reduction in itertools.product(REDUCING, ("SUM", "AVG")):
        found += [(op, reduction, dtype, True) for dtype in FLOATS]
    return found


class _Builder:
    """Varies layout, root and values from case to case."""

    def __init__(self, turn: int, ranks: int, levels: int):
        self._numbers = itertools.count()
        self._turn, self._ranks, self._levels = turn, ranks, levels

    def case(self, kind: Kind, n: int) -> Iterator[Case]:
        """One case, or none where it is left out."""
        op, reduction, dtype, rough = kind
        number = next(self._numbers)
        layout = LAYOUTS[(number + self._turn) % len(LAYOUTS)]
        if layout == "scalar" and n != 1:
            layout = "plain"
        root = (number // 3 + self._turn) % self._ranks
        found = Case(op, n, dtype, reduction, root, layout, number, rough)
        # Hosts with several ranks add up their ranks first.
        if not (rough and self._levels > 1):
            yield found


def _of_op(build: _Builder) -> dict[str, list[Kind]]:
    found: dict[str, list[Kind]] = {}
    for kind in kinds():
        if any(True for _ in build.case(kind, 1)):
            found.setdefault(kind[0], []).append(kind)
    return found


def small(turn: int, ranks: int, levels: int, every: int = 1) -> Iterator[Case]:
    """All sizes from 0 to 400, `every` in turn, of each operation; types and reductions change."""
    build = _Builder(turn, ranks, levels)
    of_op = _of_op(build)
    for n in SMALL[turn % every :: every]:
        yield Case("barrier", n, torch.uint8)
        for place, found in enumerate(of_op.values()):
            yield from build.case(found[(7 * n + place) % len(found)], n)


def borders(turn: int, ranks: int, levels: int, chosen: range) -> Iterator[Case]:
    """Some borders of each operation and type: `chosen`, counted from another one for each kind."""
    build = _Builder(turn, ranks, levels)
    for number, kind in enumerate(kinds()):
        for k in chosen:
            yield from build.case(kind, BORDERS[(number + k) % len(BORDERS)])


def long(turn: int, ranks: int, levels: int) -> Iterator[Case]:
    """Each of the long sizes of each operation; its types change from turn to turn."""
    build = _Builder(turn, ranks, levels)
    for place, found in enumerate(_of_op(build).values()):
        for number, nbytes in enumerate(LONG):
            kind = found[(len(LONG) * 5 * turn + 11 * number + place) % len(found)]
            yield from build.case(
                kind, nbytes // kind[2].itemsize + (turn + number + place) % 3 - 1
            )
