"""Every collective and message of torch.distributed as a function of a `Case`: starts it and says
what each tensor must hold afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.conformance import values
from tests.conformance.boxes import Box, box
from tests.conformance.values import Raw

TAGS = (0, 1, 1023, 70_000, 2**30 - 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """n: values of a rank's part; root: position in the group; key: chooses the values.

    rough: floating values whose sum depends on the order (else sums are exact in any order).
    """

    op: str
    n: int
    dtype: torch.dtype
    reduction: str = ""
    root: int = 0
    layout: str = "plain"
    key: int = 0
    rough: bool = False

    def __str__(self) -> str:
        reduction = f" {self.reduction}{' rough' * self.rough}" if self.reduction else ""
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.op}{reduction} n={self.n} {kind} {self.layout} root={self.root} key={self.key}"
        )


@dataclasses.dataclass
class Place:
    """A rank's place in a group; members are global ranks."""

    group: Any
    members: Sequence[int]
    me: int

    @property
    def size(self) -> int:
        return len(self.members)

    @classmethod
    def of(cls, group: Any = None) -> Place:
        group = dist.group.WORLD if group is None else group
        members = dist.get_process_group_ranks(group)
        return cls(group, members, members.index(dist.get_rank()))


@dataclasses.dataclass
class Started:
    """Works (None: done already), tensors with their expected bytes, and inputs, which stay."""

    works: list[Any]
    outputs: list[tuple[Box, Raw]]
    inputs: list[tuple[Box, Raw]] = dataclasses.field(default_factory=list)

    def wait(self) -> None:
        for work in self.works:
            if work is not None:
                work.wait()

    def complaint(self) -> str:
        """What is wrong, now that the works are done; empty: nothing."""
        for name, pairs in (("output", self.outputs), ("input", self.inputs)):
            for number, (one, expected) in enumerate(pairs):
                found = one.found()
                if not np.array_equal(found, expected):
                    where = np.flatnonzero(found != expected)
                    return (
                        f"{name} {number}: {len(where)} of {len(found)} bytes differ, from byte "
                        f"{where[0]} on: {found[where[:8]]} in place of {expected[where[:8]]}"
                    )
                if not one.beside():
                    return f"{name} {number}: memory beside it was written"
        return ""


class _Maker:
    """The inputs and outputs of a case on one rank."""

    def __init__(self, case: Case, place: Place):
        self.case, self.place = case, place
        self.started = Started([], [])

    def bits(self, rank: int, part: int = 0, n: int | None = None) -> Raw:
        case = self.case
        n = case.n if n is None else n
        if case.reduction:
            return values.reducible(case.dtype, case.key, rank, part, n, case.rough)
        return values.moved(case.dtype, case.key, rank, part, n)

    def parts(self, rank: int, lengths: Sequence[int]) -> Raw:
        found = [self.bits(rank, part, n) for part, n in enumerate(lengths)]
        return np.concatenate(found) if found else np.empty(0, np.uint8)

    def give(self, bits: Raw, layout: str | None = None) -> torch.Tensor:
        """An input, which has to stay as it is."""
        made = self._box(len(bits) // self.case.dtype.itemsize, layout, bits)
        self.started.inputs.append((made, bits))
        return made.tensor

    def take(self, expected: Raw, layout: str | None = None) -> torch.Tensor:
        """An output."""
        made = self._box(len(expected) // self.case.dtype.itemsize, layout, None)
        self.started.outputs.append((made, expected))
        return made.tensor

    def change(self, bits: Raw, expected: Raw) -> torch.Tensor:
        """A tensor that is both."""
        made = self._box(len(bits) // self.case.dtype.itemsize, None, bits)
        self.started.outputs.append((made, expected))
        return made.tensor

    def _box(self, n: int, layout: str | None, bits: Raw | None) -> Box:
        return box(n, self.case.dtype, self.case.layout if layout is None else layout, bits)

    def total(self, part: int = 0, n: int | None = None) -> Raw:
        inputs = [self.bits(rank, part, n) for rank in range(self.place.size)]
        return values.combine(inputs, self.case.reduction, self.case.dtype)


CATALOGUE: dict[str, Callable[[_Maker], Any]] = {}
MOVES: list[str] = []
REDUCING: list[str] = []


def _op(kinds: list[str]) -> Callable[[Callable[[_Maker], Any]], Callable[[_Maker], Any]]:
    def enter(function: Callable[[_Maker], Any]) -> Callable[[_Maker], Any]:
        name = function.__name__
        CATALOGUE[name] = function
        kinds.append(name)
        return function

    return enter


def start(case: Case, place: Place) -> Started:
    """Starts it on this rank, asynchronously; all ranks of the group give the same case."""
    maker = _Maker(case, place)
    works = CATALOGUE[case.op](maker)
    maker.started.works = works if isinstance(works, list) else [works]
    return maker.started


def check(case: Case, place: Place) -> str:
    """Runs the case; what is wrong with its result (empty: nothing)."""
    started = start(case, place)
    started.wait()
    return started.complaint()


def _keywords(m: _Maker) -> dict[str, Any]:
    return {"group": m.place.group, "async_op": True}


def _root(m: _Maker) -> int:
    return m.case.root % m.place.size


def _reduction(m: _Maker) -> Any:
    return getattr(dist.ReduceOp, m.case.reduction)


def uneven(case: Case, size: int) -> list[list[int]]:
    """Lengths of the parts that each rank sends to each other one, about n; zeros among them."""
    n = case.n
    found = []
    for a in range(size):
        row = []
        for b in range(size):
            pick = (5 * a + 3 * b + case.key) % 7
            row.append([0, n, n // 2, n + a + b, 1, n, max(0, n - 2)][pick])
        found.append(row)
    return found


# ---- moves ----


@_op(MOVES)
def broadcast(m: _Maker) -> Any:
    root = _root(m)
    mine = m.bits(m.place.me)
    x = m.change(mine, m.bits(root))
    return dist.broadcast(x, group_src=root, **_keywords(m))


@_op(MOVES)
def all_gather(m: _Maker) -> Any:
    x = m.give(m.bits(m.place.me))
    outputs = [m.take(m.bits(r)) for r in range(m.place.size)]
    return dist.all_gather(outputs, x, **_keywords(m))


@_op(MOVES)
def all_gather_uneven(m: _Maker) -> Any:
    lengths = uneven(m.case, m.place.size)[0]
    flat = "plain" if m.case.layout == "columns" else m.case.layout  # for lengths of any kind
    x = m.give(m.bits(m.place.me, 0, lengths[m.place.me]), flat)
    outputs = [m.take(m.bits(r, 0, n), flat) for r, n in enumerate(lengths)]
    return dist.all_gather(outputs, x, **_keywords(m))


@_op(MOVES)
def all_gather_single(m: _Maker) -> Any:
    x = m.give(m.bits(m.place.me), _flat(m))
    y = m.take(np.concatenate([m.bits(r) for r in range(m.place.size)]), "offset")
    return dist.all_gather_single(y, x, **_keywords(m))


@_op(MOVES)
def all_gather_coalesced(m: _Maker) -> Any:
    lengths = (m.case.n, 3, m.case.n // 2)
    inputs = [m.give(m.bits(m.place.me, k, n)) for k, n in enumerate(lengths)]
    outputs = [
        [m.take(m.bits(r, k, n)) for k, n in enumerate(lengths)] for r in range(m.place.size)
    ]
    return m.place.group.allgather_coalesced(outputs, inputs)


@_op(MOVES)
def gather(m: _Maker) -> Any:
    root = _root(m)
    x = m.give(m.bits(m.place.me))
    outputs = None
    if m.place.me == root:
        outputs = [m.take(m.bits(r)) for r in range(m.place.size)]
    return dist.gather(x, outputs, group_dst=root, **_keywords(m))


@_op(MOVES)
def scatter(m: _Maker) -> Any:
    root = _root(m)
    inputs = None
    if m.place.me == root:
        inputs = [m.give(m.bits(root, part)) for part in range(m.place.size)]
    y = m.take(m.bits(root, m.place.me))
    return dist.scatter(y, inputs, group_src=root, **_keywords(m))


@_op(MOVES)
def all_to_all(m: _Maker) -> Any:
    inputs = [m.give(m.bits(m.place.me, part)) for part in range(m.place.size)]
    outputs = [m.take(m.bits(r, m.place.me)) for r in range(m.place.size)]
    return dist.all_to_all(outputs, inputs, **_keywords(m))


@_op(MOVES)
def all_to_all_uneven(m: _Maker) -> Any:
    lengths = uneven(m.case, m.place.size)
    me = m.place.me
    flat = "plain" if m.case.layout == "columns" else m.case.layout
    inputs = [m.give(m.bits(me, part, n), flat) for part, n in enumerate(lengths[me])]
    outputs = [m.take(m.bits(r, me, row[me]), flat) for r, row in enumerate(lengths)]
    return dist.all_to_all(outputs, inputs, **_keywords(m))


def _flat(m: _Maker) -> str:
    """Of tensors that are split along their first dimension."""
    return m.case.layout if m.case.layout in ("offset", "strided") else "plain"


@_op(MOVES)
def all_to_all_single(m: _Maker) -> Any:
    me, size = m.place.me, m.place.size
    x = m.give(m.parts(me, [m.case.n] * size), _flat(m))
    y = m.take(np.concatenate([m.bits(r, me) for r in range(size)]), _flat(m))
    return dist.all_to_all_single(y, x, **_keywords(m))


@_op(MOVES)
def all_to_all_splits(m: _Maker) -> Any:
    lengths = uneven(m.case, m.place.size)
    me = m.place.me
    sent = lengths[me]
    received = [row[me] for row in lengths]
    x = m.give(m.parts(me, sent), _flat(m))
    y = m.take(np.concatenate([m.bits(r, me, n) for r, n in enumerate(received)]), _flat(m))
    return dist.all_to_all_single(y, x, received, sent, **_keywords(m))


@_op(MOVES)
def barrier(m: _Maker) -> Any:
    return dist.barrier(**_keywords(m))


# ---- messages ----


@_op(MOVES)
def batch(m: _Maker) -> Any:
    """To the next rank and from the one before, as a batch."""
    place = m.place
    after, before = (place.me + 1) % place.size, (place.me - 1) % place.size
    if place.size == 1:
        return None
    x, y = m.give(m.bits(place.me)), m.take(m.bits(before))
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, place.members[after], place.group),
            dist.P2POp(dist.irecv, y, place.members[before], place.group),
        ]
    )


@_op(MOVES)
def tagged(m: _Maker) -> Any:
    """Two messages each from all to all, received in the other order: tags tell them apart."""
    place, group = m.place, m.place.group
    tags = [TAGS[m.case.key % len(TAGS)], TAGS[(m.case.key + 1) % len(TAGS)]]
    works: list[Any] = []
    others = [r for r in range(place.size) if r != place.me]
    for r in others:
        for part, tag in enumerate(tags):
            x = m.give(m.bits(place.me, 10 * r + part))
            works.append(dist.isend(x, group=group, tag=tag, group_dst=r))
    for part, tag in reversed(list(enumerate(tags))):
        for r in reversed(others):
            y = m.take(m.bits(r, 10 * place.me + part))
            works.append(dist.irecv(y, group=group, tag=tag, group_src=r))
    return works


@_op(MOVES)
def any_source(m: _Maker) -> Any:
    """All send the root a message each, which it takes in the order of their coming."""
    place, group = m.place, m.place.group
    # A tag of the case's own: a rank that has sent may send the next case's message, too.
    root, tag = _root(m), 2000 + m.case.key
    if place.size == 1:
        return None
    if place.me != root:
        return dist.isend(m.give(m.bits(place.me)), group=group, tag=tag, group_dst=root)
    boxes = [box(m.case.n, m.case.dtype, m.case.layout) for _ in range(place.size - 1)]
    works = [dist.irecv(one.tensor, group=group, tag=tag) for one in boxes]
    return [_FromAny(m, works, boxes)]


class _FromAny:
    """Sources are known when the messages have come; none comes twice."""

    def __init__(self, m: _Maker, works: list[Any], boxes: list[Box]):
        self._m, self._works, self._boxes = m, works, boxes

    def wait(self) -> None:
        seen = []
        for work, one in zip(self._works, self._boxes, strict=True):
            work.wait()
            source = work._source_rank()
            seen.append(source)
            self._m.started.outputs.append((one, self._m.bits(source)))
        expected = [r for r in range(self._m.place.size) if r != _root(self._m)]
        assert sorted(seen) == expected, (seen, expected)


# ---- reductions ----


@_op(REDUCING)
def all_reduce(m: _Maker) -> Any:
    x = m.change(m.bits(m.place.me), m.total())
    return dist.all_reduce(x, _reduction(m), **_keywords(m))


@_op(REDUCING)
def reduce(m: _Maker) -> Any:
    root, mine = _root(m), m.bits(m.place.me)
    if m.place.me == root:
        x = m.change(mine, m.total())
    else:  # torch leaves open what the others hold afterwards
        x = box(m.case.n, m.case.dtype, m.case.layout, mine).tensor
    return dist.reduce(x, op=_reduction(m), group_dst=root, **_keywords(m))


@_op(REDUCING)
def reduce_elsewhere(m: _Maker) -> Any:
    """The tensors of ranks that are not the root stay as they are."""
    root, mine = _root(m), m.bits(m.place.me)
    x = m.change(mine, m.total()) if m.place.me == root else m.give(mine)
    return dist.reduce(x, op=_reduction(m), group_dst=root, **_keywords(m))


@_op(REDUCING)
def reduce_scatter(m: _Maker) -> Any:
    inputs = [m.give(m.bits(m.place.me, part)) for part in range(m.place.size)]
    return dist.reduce_scatter(m.take(m.total(m.place.me)), inputs, _reduction(m), **_keywords(m))


@_op(REDUCING)
def reduce_scatter_uneven(m: _Maker) -> Any:
    lengths, me = uneven(m.case, m.place.size)[0], m.place.me
    flat = "plain" if m.case.layout == "columns" else m.case.layout
    inputs = [m.give(m.bits(me, part, n), flat) for part, n in enumerate(lengths)]
    y = m.take(m.total(me, lengths[me]), flat)
    return dist.reduce_scatter(y, inputs, _reduction(m), **_keywords(m))


@_op(REDUCING)
def reduce_scatter_single(m: _Maker) -> Any:
    x = m.give(m.parts(m.place.me, [m.case.n] * m.place.size), _flat(m))
    y = m.take(m.total(m.place.me), _flat(m))
    return dist.reduce_scatter_single(y, x, _reduction(m), **_keywords(m))


@_op(REDUCING)
def all_reduce_coalesced(m: _Maker) -> Any:
    lengths = (m.case.n, 3, m.case.n // 2)
    tensors = [m.change(m.bits(m.place.me, k, n), m.total(k, n)) for k, n in enumerate(lengths)]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _reduction(m)
    options.asyncOp = True
    return m.place.group.allreduce_coalesced(tensors, options)
