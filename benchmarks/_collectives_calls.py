"""The calls that benchmarks/collectives.py measures: each on tensors of its own, which all groups
share, so that one group's memory is as warm as another's.

Sizes: the bytes of the tensor that one rank contributes; of broadcast, scatter and sends, of the
tensor that one rank receives; of all_to_all and reduce_scatter, of all parts together (at least one
value per rank). all_gather, gather and scatter hold such a tensor for each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import torch_cgx

MAX, SUM = dist.ReduceOp.MAX, dist.ReduceOp.SUM
COMPRESSED = "all_to_all_single, 4 bits"
Run = Callable[[Any], object]


@dataclass
class Call:
    """run: one call, on a group. inputs: filled before a comparison; results: of this rank
    afterwards, tensors. within: how far two groups' results may differ. on_cgx: what runs instead
    on a cgx group. moved: bytes of the tensor that each receiving rank gets in a call.
    """

    run: Run
    inputs: list[torch.Tensor] = field(default_factory=list)
    results: Callable[[], list[torch.Tensor]] = list
    within: float = 0.0
    on_cgx: Run | None = None
    moved: int = 0


Make = Callable[[int, int, int], Call]  # of rank, ranks, bytes


def _tensor(numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros that are written, so that no page is the kernel's page of zeros."""
    return torch.empty(numel, dtype=dtype).fill_(0)


def _list(ranks: int, numel: int) -> list[torch.Tensor]:
    return [_tensor(numel) for _ in range(ranks)]


def _broadcast(rank: int, ranks: int, nbytes: int) -> Call:
    x = _tensor(nbytes // 4)
    return Call(lambda group: dist.broadcast(x, 0, group=group), [x], lambda: [x], moved=nbytes)


def _all_gather_list(rank: int, ranks: int, nbytes: int) -> Call:
    x, out = _tensor(nbytes // 4), _list(ranks, nbytes // 4)
    return Call(lambda group: dist.all_gather(out, x, group=group), [x], lambda: out)


def _all_gather_single(rank: int, ranks: int, nbytes: int) -> Call:
    x, out = _tensor(nbytes // 4), _tensor(ranks * (nbytes // 4))
    return Call(lambda group: dist.all_gather_single(out, x, group=group), [x], lambda: [out])


def _gather(rank: int, ranks: int, nbytes: int) -> Call:
    x, out = _tensor(nbytes // 4), _list(ranks, nbytes // 4) if rank == 0 else None
    return Call(lambda group: dist.gather(x, out, 0, group=group), [x], lambda: out or [])


def _scatter(rank: int, ranks: int, nbytes: int) -> Call:
    x, parts = _tensor(nbytes // 4), _list(ranks, nbytes // 4) if rank == 0 else None
    return Call(
        lambda group: dist.scatter(x, parts, 0, group=group),
        parts or [],
        lambda: [x],
        moved=nbytes,
    )


def _reduce(op: Any, dtype: torch.dtype) -> Make:
    def make(rank: int, ranks: int, nbytes: int) -> Call:
        x = _tensor(nbytes // 4, dtype)
        return Call(
            lambda group: dist.reduce(x, 0, op=op, group=group),
            [x],
            lambda: [x] if rank == 0 else [],  # the others' tensors hold anything afterwards
        )

    return make


def _all_reduce(op: Any, dtype: torch.dtype) -> Make:
    def make(rank: int, ranks: int, nbytes: int) -> Call:
        x = _tensor(max(nbytes // dtype.itemsize, 1), dtype)
        return Call(lambda group: dist.all_reduce(x, op=op, group=group), [x], lambda: [x])

    return make


def _reduce_scatter_single(rank: int, ranks: int, nbytes: int) -> Call:
    numel = max(nbytes // 4 // ranks, 1)
    x, out = _tensor(ranks * numel), _tensor(numel)
    return Call(lambda group: dist.reduce_scatter_single(out, x, group=group), [x], lambda: [out])


def _reduce_scatter_list(rank: int, ranks: int, nbytes: int) -> Call:
    numel = max(nbytes // 4 // ranks, 1)
    parts, out = _list(ranks, numel), _tensor(numel)
    return Call(lambda group: dist.reduce_scatter(out, parts, group=group), parts, lambda: [out])


def _all_to_all_single(rank: int, ranks: int, nbytes: int) -> Call:
    numel = max(nbytes // 4 // ranks, 1) * ranks
    x, out = _tensor(numel), _tensor(numel)
    return Call(
        lambda group: dist.all_to_all_single(out, x, group=group),
        [x],
        lambda: [out],
        moved=4 * numel,
    )


def _all_to_all_list(rank: int, ranks: int, nbytes: int) -> Call:
    numel = max(nbytes // 4 // ranks, 1)
    parts, out = _list(ranks, numel), _list(ranks, numel)
    return Call(lambda group: dist.all_to_all(out, parts, group=group), parts, lambda: out)


def _all_to_all_compressed(rank: int, ranks: int, nbytes: int) -> Call:
    """Exact over gloo, at 4 bits over cgx."""
    numel = max(nbytes // 4 // ranks, 1) * ranks
    x, out = _tensor(numel), _tensor(numel)
    return Call(
        lambda group: dist.all_to_all_single(out, x, group=group),
        [x],
        lambda: [out],
        within=_PERIOD / 15,  # twice what rounding to 15 steps explains
        on_cgx=lambda group: torch_cgx.all_to_all_single(out, x, group=group, config={"bits": 4}),
    )


def _barrier(rank: int, ranks: int, nbytes: int) -> Call:
    return Call(lambda group: dist.barrier(group=group))


def _peer(rank: int, ranks: int) -> int | None:
    """Half of the ranks away, so on another host where there are several; None: the last of an odd
    number.
    """
    half = ranks // 2
    return (rank + half) % (2 * half) if rank < 2 * half else None


def _send_recv(rank: int, ranks: int, nbytes: int) -> Call:
    """There and back."""
    x, out, peer = _tensor(nbytes // 4), _tensor(nbytes // 4), _peer(rank, ranks)

    def run(group: Any) -> None:
        if peer is None:
            return
        if rank < peer:
            dist.send(x, peer, group=group)
            dist.recv(out, peer, group=group)
        else:
            dist.recv(out, peer, group=group)
            dist.send(x, peer, group=group)

    return Call(run, [x], lambda: [out], moved=2 * nbytes)


def _isend_irecv(rank: int, ranks: int, nbytes: int) -> Call:
    """Both ways at once."""
    x, out, peer = _tensor(nbytes // 4), _tensor(nbytes // 4), _peer(rank, ranks)

    def run(group: Any) -> None:
        if peer is None:
            return
        works = [dist.irecv(out, peer, group=group), dist.isend(x, peer, group=group)]
        for work in works:
            work.wait()

    return Call(run, [x], lambda: [out], moved=nbytes)


def _bytes(objects: list[bytes]) -> list[torch.Tensor]:
    return [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in objects]


def _broadcast_object_list(rank: int, ranks: int, nbytes: int) -> Call:
    sent, got = bytes(nbytes), [b""]

    def run(group: Any) -> None:
        got[0] = sent if rank == 0 else b""
        dist.broadcast_object_list(got, 0, group=group)

    return Call(run, [], lambda: _bytes(got))


def _all_gather_object(rank: int, ranks: int, nbytes: int) -> Call:
    sent, got = bytes([rank]) * nbytes, [b""] * ranks

    def run(group: Any) -> None:
        dist.all_gather_object(got, sent, group=group)

    return Call(run, [], lambda: _bytes(got))


OPERATIONS: dict[str, Make] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather_list,
    "all_gather_single": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "reduce SUM": _reduce(SUM, torch.float32),
    "reduce MAX int32": _reduce(MAX, torch.int32),
    "all_reduce MAX": _all_reduce(MAX, torch.float32),
    "all_reduce SUM int64": _all_reduce(SUM, torch.int64),
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter": _reduce_scatter_list,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all_list,
    "send and recv": _send_recv,
    "isend and irecv": _isend_irecv,
    "broadcast_object_list": _broadcast_object_list,
    "all_gather_object": _all_gather_object,
    "barrier": _barrier,
    COMPRESSED: _all_to_all_compressed,
}
OBJECTS = ("broadcast_object_list", "all_gather_object")
MOST_OBJECT_BYTES = 1 << 20  # above, pickling alone is measured
COMPRESSED_BYTES = 16 << 20
COPIED = ("broadcast", "all_to_all_single", "scatter", "send and recv", "isend and irecv")


def sizes_of(operation: str, sizes: list[int]) -> list[int]:
    """The sizes at which an operation is measured; [0] where it has no tensor."""
    if operation == "barrier":
        return [0]
    if operation in OBJECTS:
        return [nbytes for nbytes in sizes if nbytes <= MOST_OBJECT_BYTES]
    if operation == COMPRESSED:
        return [nbytes for nbytes in sizes if nbytes == COMPRESSED_BYTES]
    return sizes


# ---- the same results on all groups

_PERIOD = 251  # of the values: they and their sums are exact in every dtype


def fill(call: Call, rank: int) -> None:
    """Gives the inputs values that differ by rank, tensor and place."""
    for number, x in enumerate(call.inputs):
        start = 17 * rank + 5 * number
        torch.remainder(torch.arange(start, start + x.numel(), dtype=x.dtype), _PERIOD, out=x)


def differing(call: Call, groups: dict[str, Any], rank: int) -> list[str]:
    """The groups whose results on this rank are not the first one's. Collective; leaves zeros."""
    wanted: list[torch.Tensor] = []
    wrong = []
    for name, group in groups.items():
        fill(call, rank)
        run_of(call, name)(group)
        results = call.results()
        if not wanted:
            wanted = [x.clone() for x in results]
        elif not all(map(_near(call.within), results, wanted)):
            wrong.append(name)
    for x in call.inputs:
        x.zero_()
    return wrong


def _near(within: float) -> Callable[[torch.Tensor, torch.Tensor], bool]:
    if not within:
        return torch.equal
    return lambda x, y: bool((x - y).abs().max() <= within)


def run_of(call: Call, name: str) -> Run:
    """What is called on the group of that name."""
    return call.on_cgx if name == "cgx" and call.on_cgx else call.run
