"""Every collective over tensors of every layout, against values that are computed here: outputs get
their values, the memory between them stays, inputs are only read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

SHAPE = (4, 2, 3, 2)
KEPT = 3  # what lies around a tensor
REDUCED = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.int16)
MOVED = (*REDUCED, torch.bool, torch.complex64, torch.float8_e4m3fn)

# From flat memory of as many elements as `room` says to a view of `shape`.
View = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]


def transposed(base: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return base.view(shape[::-1]).permute(*reversed(range(len(shape))))


def sliced(base: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return base.view(*shape, 2)[..., 1]


def expanded(base: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return base.view(*shape[:-1], 1).expand(shape)


def channels_last(base: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    n, c, h, w = shape
    return base.view(n, h, w, c).permute(0, 3, 1, 2)


LAYOUTS: dict[str, tuple[Callable[[int], int], View]] = {
    "contiguous": (lambda n: n, lambda base, shape: base.view(shape)),
    "offset": (lambda n: n + 3, lambda base, shape: base[3:].view(shape)),
    "transposed": (lambda n: n, transposed),
    "sliced": (lambda n: 2 * n, sliced),
    "channels last": (lambda n: n, channels_last),
    "expanded": (lambda n: n // 2, expanded),
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


class Case:
    """Tensors of one layout and type for one call, and what must be in them afterwards."""

    def __init__(self, layout: str, dtype: torch.dtype, rank: int, size: int, asynchronous: bool):
        self.room, self.view = LAYOUTS[layout]
        self.outputs_room, self.outputs_view = LAYOUTS[
            "contiguous" if layout == "expanded" else layout
        ]
        self.dtype, self.rank, self.size = dtype, rank, size
        self.sync: dict[str, Any] = {"async_op": asynchronous}
        self.known: list[tuple[torch.Tensor, torch.Tensor]] = []

    def values(self, rank: int, number: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
        """What input `number` of `rank` holds."""
        base = torch.arange(self.room(math.prod(shape))).remainder(5) + 3 * rank + 2 * number
        return self.view(base, shape).to(self.dtype).contiguous()

    def total(self, number: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
        return sum(
            (self.values(rank, number, shape) for rank in range(1, self.size)),
            start=self.values(0, number, shape),
        )

    def input(self, number: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
        base = torch.arange(self.room(math.prod(shape))).remainder(5) + 3 * self.rank + 2 * number
        base = base.to(self.dtype)
        self.known.append((base, base.clone()))
        return self.view(base, shape)

    def output(self, wanted: torch.Tensor | None, holds: torch.Tensor | None = None) -> Any:
        """A result; `holds`: before the call. `wanted` None: any values, inside of the view."""
        like = wanted if wanted is not None else holds
        assert like is not None
        base = torch.full((self.outputs_room(like.numel()),), KEPT).to(self.dtype)
        after = base.clone()
        view = self.outputs_view(base, tuple(like.shape))
        if holds is not None:
            view.copy_(holds)
        if wanted is not None:
            self.outputs_view(after, tuple(like.shape)).copy_(wanted)
            self.known.append((base, after))
        return view

    def wait(self, work: Any) -> None:
        if self.sync["async_op"]:
            work.wait()

    def check(self, name: str) -> list[str]:
        return [
            f"{name}: {base.tolist()} instead of {after.tolist()}"
            for base, after in self.known
            if not same(base, after)
        ]


def all_reduce(c: Case) -> None:
    c.wait(dist.all_reduce(c.output(c.total(0), c.values(c.rank, 0)), **c.sync))


def all_reduce_coalesced(c: Case) -> None:
    tensors = [c.output(c.total(k), c.values(c.rank, k)) for k in range(2)]
    c.wait(dist.all_reduce_coalesced(tensors, **c.sync))


def reduce(c: Case) -> None:
    wanted = c.total(0) if c.rank == 1 else None
    c.wait(dist.reduce(c.output(wanted, c.values(c.rank, 0)), 1, **c.sync))


def broadcast(c: Case) -> None:
    c.wait(dist.broadcast(c.output(c.values(1, 0), c.values(c.rank, 0)), 1, **c.sync))


def gather(c: Case) -> None:
    parts = [c.output(c.values(r, 0)) for r in range(c.size)] if c.rank == 0 else None
    c.wait(dist.gather(c.input(0), parts, 0, **c.sync))


def scatter(c: Case) -> None:
    parts = [c.input(k) for k in range(c.size)] if c.rank == 1 else None
    c.wait(dist.scatter(c.output(c.values(1, c.rank)), parts, 1, **c.sync))


def all_gather(c: Case) -> None:
    parts = [c.output(c.values(r, 0)) for r in range(c.size)]
    c.wait(dist.all_gather(parts, c.input(0), **c.sync))


def all_gather_coalesced(c: Case) -> None:
    lists = [[c.output(c.values(r, k)) for k in range(2)] for r in range(c.size)]
    c.wait(dist.all_gather_coalesced(lists, [c.input(0), c.input(1)], **c.sync))


def all_gather_into_tensor(c: Case) -> None:
    whole = c.output(torch.cat([c.values(r, 0) for r in range(c.size)]))
    c.wait(dist.all_gather_single(whole, c.input(0), **c.sync))


def all_gather_of_several(c: Case) -> None:
    wholes = [c.output(torch.cat([c.values(r, k) for r in range(c.size)])) for k in range(2)]
    with dist._coalescing_manager(dist.group.WORLD, async_ops=c.sync["async_op"]) as manager:
        for k, whole in enumerate(wholes):
            dist.all_gather_single(whole, c.input(k))
    c.wait(manager)


def reduce_scatter(c: Case) -> None:
    parts = [c.input(k) for k in range(c.size)]
    c.wait(dist.reduce_scatter(c.output(c.total(c.rank)), parts, **c.sync))


def long(c: Case) -> tuple[int, ...]:
    return (c.size * SHAPE[0], *SHAPE[1:])


def own_part(c: Case, whole: torch.Tensor) -> torch.Tensor:
    return whole[c.rank * SHAPE[0] : (c.rank + 1) * SHAPE[0]]


def reduce_scatter_tensor(c: Case) -> None:
    part = c.output(own_part(c, c.total(0, long(c))))
    c.wait(dist.reduce_scatter_single(part, c.input(0, long(c)), **c.sync))


def reduce_scatter_of_several(c: Case) -> None:
    parts = [c.output(own_part(c, c.total(k, long(c)))) for k in range(2)]
    with dist._coalescing_manager(dist.group.WORLD, async_ops=c.sync["async_op"]) as manager:
        for k, part in enumerate(parts):
            dist.reduce_scatter_single(part, c.input(k, long(c)))
    c.wait(manager)


def all_to_all(c: Case) -> None:
    parts = [c.output(c.values(r, c.rank)) for r in range(c.size)]
    c.wait(dist.all_to_all(parts, [c.input(k) for k in range(c.size)], **c.sync))


def all_to_all_single(c: Case) -> None:
    wanted = torch.cat([own_part(c, c.values(r, 0, long(c))) for r in range(c.size)])
    c.wait(dist.all_to_all_single(c.output(wanted), c.input(0, long(c)), **c.sync))


def all_to_all_uneven(c: Case) -> None:
    """Rank r sends one row to the first ranks, and the rest to the last."""
    splits = [1] * (c.size - 1) + [SHAPE[0] - c.size + 1]
    first = sum(splits[: c.rank])
    wanted = torch.cat([c.values(r, 0)[first : first + splits[c.rank]] for r in range(c.size)])
    c.wait(
        dist.all_to_all_single(
            c.output(wanted), c.input(0), [splits[c.rank]] * c.size, splits, **c.sync
        )
    )


def send_and_recv(c: Case) -> None:
    if c.rank == 0:
        dist.send(c.input(0), 1)
    elif c.rank == 1:
        dist.recv(c.output(c.values(0, 0)), 0)


def batch(c: Case) -> None:
    after, before = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    operations = [
        dist.P2POp(dist.irecv, c.output(c.values(before, 0)), before),
        dist.P2POp(dist.isend, c.input(0), after),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def recv_from_any(c: Case) -> None:
    if c.rank == 0:
        dist.send(c.input(0), 1)
    elif c.rank == 1:
        assert dist.recv(c.output(c.values(0, 0))) == 0


CALLS = (
    all_reduce, all_reduce_coalesced, reduce, broadcast, gather, scatter, all_gather,
    all_gather_coalesced, all_gather_into_tensor, all_gather_of_several, reduce_scatter,
    reduce_scatter_tensor, reduce_scatter_of_several, all_to_all, all_to_all_single,
    all_to_all_uneven, send_and_recv, batch, recv_from_any,
)  # fmt: skip
SUMS = (
    all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor,
    reduce_scatter_of_several,
)  # fmt: skip


def table(rank: int, size: int) -> list[str]:
    wrong = []
    for call in CALLS:
        for dtype in REDUCED if call in SUMS else MOVED:
            for layout in LAYOUTS:
                for asynchronous in (False, True):
                    name = f"{call.__name__} of {layout} {dtype}, async {asynchronous}"
                    print(name, flush=True)  # what a crash leaves in the log
                    case = Case(layout, dtype, rank, size, asynchronous)
                    call(case)
                    wrong += case.check(name)
    return wrong


@pytest.mark.parametrize("size", [2, 3])
def test_every_layout_of_every_type_in_every_collective(size):
    for wrong in run_pooled(table, size, timeout=120):
        assert not wrong, "\n".join(wrong[:10])


def refusals(rank: int, size: int) -> list[str]:
    """Outputs whose elements share memory; inputs and other ranks are as they should be."""
    wrong = []
    for dtype in (torch.float32, torch.int64, torch.int16):
        x = torch.ones(SHAPE, dtype=dtype)
        shared = torch.zeros(SHAPE[:-1] + (1,), dtype=dtype).expand(SHAPE)
        wide = torch.zeros(long_shape(size)[:-1] + (1,), dtype=dtype).expand(long_shape(size))
        whole, ones = torch.ones(long_shape(size), dtype=dtype), [x] * size
        calls: dict[str, Callable[[], Any]] = {
            "broadcast": lambda shared=shared: dist.broadcast(shared, 0),
            "scatter": lambda shared=shared, ones=ones: dist.scatter(
                shared, ones if rank == 0 else None, 0
            ),
            "all_gather": lambda shared=shared, x=x: dist.all_gather(
                [x.clone()] * (size - 1) + [shared], x
            ),
            "all_gather_into_tensor": lambda wide=wide, x=x: dist.all_gather_single(wide, x),
            "all_to_all": lambda shared=shared, ones=ones: dist.all_to_all(
                [x.clone() for x in ones[1:]] + [shared], ones
            ),
            "all_to_all_single": lambda wide=wide, whole=whole: dist.all_to_all_single(wide, whole),
            "recv": lambda shared=shared: dist.recv(shared, (rank + 1) % size),
            "recv from any": lambda shared=shared: dist.recv(shared),
            "all_reduce": lambda shared=shared: dist.all_reduce(shared),
            "reduce": lambda shared=shared: dist.reduce(shared, 0),
            "reduce_scatter": lambda shared=shared, ones=ones: dist.reduce_scatter(shared, ones),
            "reduce_scatter_tensor": lambda shared=shared, whole=whole: dist.reduce_scatter_single(
                shared, whole
            ),
        }
        if rank == 0:  # only the destination has outputs
            calls["gather"] = lambda shared=shared, x=x: dist.gather(
                x, [x.clone()] * (size - 1) + [shared], 0
            )
        for name, call in calls.items():
            try:
                call()
                wrong.append(f"{name} of {dtype}: no error")
            except ValueError as error:
                if "share memory" not in str(error) or "clone()" not in str(error):
                    wrong.append(f"{name} of {dtype}: {error}")
    tensor = torch.ones(5)
    dist.all_reduce(tensor)  # nothing was sent
    assert torch.all(tensor == size)
    return wrong


def long_shape(size: int) -> tuple[int, ...]:
    return (size * SHAPE[0], *SHAPE[1:])


def test_outputs_whose_elements_share_memory_are_an_error_everywhere():
    for wrong in run_pooled(refusals, 2):
        assert not wrong, "\n".join(wrong)


def types(rank: int, size: int) -> None:
    """Types that differ between inputs and outputs would be taken for each other as bytes."""
    x, y = torch.ones(4, dtype=torch.int16), torch.zeros(4, dtype=torch.uint16)
    for call in (
        lambda: dist.all_to_all_single(y, x),
        lambda: dist.all_to_all(list(y.view(size, -1)), list(x.view(size, -1))),
        lambda: dist.all_gather_single(torch.zeros(4 * size, dtype=torch.uint16), x),
        lambda: dist.reduce_scatter(torch.zeros(2), [torch.ones(2, dtype=torch.int64)] * size),
    ):
        with pytest.raises(ValueError, match="alike|dtype"):
            call()


def test_types_of_inputs_and_outputs_must_agree():
    run_pooled(types, 2)


def averages(rank: int, size: int) -> list[str]:
    """AVG of integers is the sum, divided towards zero, as NCCL has it."""
    wrong = []
    average = {"op": dist.ReduceOp.AVG}
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        signs = 1 if dtype == torch.uint8 else -1
        inputs = [signs * (torch.arange(6).view(3, 2) * 3 + 5 * r) for r in range(size)]
        total = sum(inputs[1:], start=inputs[0])
        wanted = torch.div(total, size, rounding_mode="trunc").to(dtype)
        assert (wanted * size != total).any()
        x = inputs[rank].to(dtype)
        found = {}
        for name, call in {
            "all_reduce": lambda t: dist.all_reduce(t, **average),
            "async all_reduce": lambda t: dist.all_reduce(t, async_op=True, **average).wait(),
            "coalesced": lambda t: dist.all_reduce_coalesced([t], **average),
            "exact": lambda t: torch_cgx.all_reduce(t, **average),
            "reduce": lambda t: dist.reduce(t, 1, **average),
        }.items():
            found[name] = x.clone()
            call(found[name])
        found["strided"] = torch.stack([x, x], -1)[..., 0]
        dist.all_reduce(found["strided"], **average)
        if rank != 1:
            del found["reduce"]
        whole = torch.cat([x] * size)
        for name, call in {
            "reduce_scatter_tensor": lambda t, w: dist.reduce_scatter_single(t, w, **average),
            "reduce_scatter": lambda t, w: dist.reduce_scatter(t, list(w.chunk(size)), **average),
            "exact shards": lambda t, w: torch_cgx.reduce_scatter_single(t, w, **average),
        }.items():
            found[name] = torch.zeros_like(x)
            call(found[name], whole)
        wrong += [
            f"{name} of {dtype}: {got.tolist()}, not {wanted.tolist()}"
            for name, got in found.items()
            if not torch.equal(got, wanted)
        ]
    flags = torch.tensor([True])
    for call in (
        lambda: dist.all_reduce(flags, **average),
        lambda: dist.reduce(flags, 0, **average),
        lambda: dist.reduce_scatter(torch.zeros_like(flags), [flags] * size, **average),
    ):
        with pytest.raises(TypeError, match="AVG of a bool tensor"):
            call()
    return wrong


def test_averages_of_integers_are_divided_towards_zero():
    for wrong in run_pooled(averages, 2):
        assert not wrong, "\n".join(wrong)
