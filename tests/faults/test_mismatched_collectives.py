"""Every collective with other lengths, types, roots, reductions or splits on one rank: an error on
all ranks that names both sides, and no hang.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from tests.faults.texts import check_disagreement, head_of

AT_ONCE, STUCK = 2.0, 12.0  # seconds, of a busy machine; on one host, and between hosts
ODD = 1  # the rank that does something else
Call = Callable[[Any, bool, int, int], None]  # group, whether this rank is the odd one, rank, size


def ones(n: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.ones(n, dtype=dtype)


def several(n: int, size: int, dtype: torch.dtype = torch.int32) -> list[torch.Tensor]:
    return [ones(n, dtype) for _ in range(size)]


def broadcast(n: int, dtype: torch.dtype, root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.broadcast(
        ones(n, dtype), group_src=root, group=group
    )


def all_gather(n: int, dtype: torch.dtype, _root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.all_gather(
        several(n, size, dtype), ones(n, dtype), group
    )


def all_gather_single(n: int, dtype: torch.dtype, _root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.all_gather_single(
        ones(n * size, dtype), ones(n, dtype), group
    )


def gather(n: int, dtype: torch.dtype, root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.gather(
        ones(n, dtype),
        several(n, size, dtype) if rank == root else None,
        group_dst=root,
        group=group,
    )


def scatter(n: int, dtype: torch.dtype, root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.scatter(
        ones(n, dtype),
        several(n, size, dtype) if rank == root else None,
        group_src=root,
        group=group,
    )


def reduce(n: int, dtype: torch.dtype, root: int, op: Any) -> Call:
    return lambda group, odd, rank, size: dist.reduce(
        ones(n, dtype), op=op, group_dst=root, group=group
    )


def all_reduce(n: int, dtype: torch.dtype, _root: int, op: Any) -> Call:
    return lambda group, odd, rank, size: dist.all_reduce(ones(n, dtype), op, group)


def reduce_scatter_single(n: int, dtype: torch.dtype, _root: int, op: Any) -> Call:
    return lambda group, odd, rank, size: dist.reduce_scatter_single(
        ones(n, dtype), ones(n * size, dtype), op, group
    )


def reduce_scatter(n: int, dtype: torch.dtype, _root: int, op: Any) -> Call:
    return lambda group, odd, rank, size: dist.reduce_scatter(
        ones(n, dtype), several(n, size, dtype), op, group
    )


def all_to_all(n: int, dtype: torch.dtype, _root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.all_to_all(
        several(n, size, dtype), several(n, size, dtype), group
    )


def all_to_all_single(n: int, dtype: torch.dtype, _root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.all_to_all_single(
        ones(n * size, dtype), ones(n * size, dtype), group=group
    )


def barrier(_n: int, _dtype: torch.dtype, _root: int, _op: Any) -> Call:
    return lambda group, odd, rank, size: dist.barrier(group)


ROOTED = (broadcast, gather, scatter, reduce)
REDUCING = (reduce, all_reduce, reduce_scatter_single, reduce_scatter)
MOVING = (all_gather, all_gather_single, all_to_all, all_to_all_single)
UNEVEN = ("all_to_all", "reduce_scatter,")
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX
PLAIN = (100, torch.int32, 0, SUM)


def splits(group: Any, odd: bool, rank: int, size: int) -> None:
    """The odd rank sends one value more than its peer expects, and one less to itself."""
    sent = [50] * size
    if odd:
        sent[0], sent[rank] = 51, 49
    received = [50] * size
    if odd:
        received[rank] = 49
    dist.all_to_all_single(ones(sum(received)), ones(sum(sent)), received, sent, group)


def cases() -> dict[str, tuple[Call, Call]]:
    """What the others do, and what the odd rank does."""
    found: dict[str, tuple[Call, Call]] = {}
    for make in (*ROOTED, *MOVING, all_reduce, reduce_scatter, reduce_scatter_single):
        name, usual = make.__name__, make(*PLAIN)
        found[f"{name}, one value more"] = usual, make(101, *PLAIN[1:])
        found[f"{name}, many more"] = usual, make(200_000, *PLAIN[1:])
        found[f"{name}, nothing"] = usual, make(0, *PLAIN[1:])
        found[f"{name}, other type"] = usual, make(100, torch.float32, *PLAIN[2:])
        found[f"{name}, type of other width"] = usual, make(100, torch.int64, *PLAIN[2:])
        found[f"{name}, another operation"] = usual, barrier(*PLAIN)
        if make in ROOTED:
            found[f"{name}, other root"] = usual, make(100, torch.int32, ODD, SUM)
        if make in REDUCING:
            found[f"{name}, other reduction"] = usual, make(100, torch.int32, 0, MAX)
    found["all_to_all_single, other splits"] = splits, splits
    found["broadcast, not a gather"] = broadcast(*PLAIN), gather(*PLAIN)
    return found


CASES = cases()


def attempt(name: str, group: Any, rank: int, size: int) -> tuple[str, str]:
    """Kind and text of the error."""
    try:
        CASES[name][rank == ODD](group, rank == ODD, rank, size)
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error", ""


def disagree(rank: int, size: int, layout: str) -> list[tuple[str, str, float, str]]:
    seen = []
    for name in CASES:
        print(name, flush=True)
        group = dist.new_group(list(range(size)), timeout=datetime.timedelta(seconds=STUCK + 3))
        begin = time.monotonic()
        kind, text = attempt(name, group, rank, size)
        seconds = time.monotonic() - begin
        dist.barrier()
        if not text:  # its part was done before the others had found out: it gets the error now
            kind, text = attempt(name, group, rank, size)
        seen.append((name, kind, seconds, text))
        dist.barrier()
        dist.destroy_process_group(group)
    return seen


LAYOUTS = {"shm": ("aaa", "SHM"), "gloo": ("aaa", "GLOO"), "hosts": ("abb", "SHM")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_gets_both_sides(layout: str) -> None:
    hosts, communicator = LAYOUTS[layout]
    env = [{"CGX_HOST_ID": host, "CGX_INNER_COMMUNICATOR_TYPE": communicator} for host in hosts]
    limit = AT_ONCE if layout == "shm" else STUCK
    wrong = []
    for rank, seen in enumerate(run_pooled(disagree, 3, layout, env=env, timeout=170)):
        for name, kind, seconds, text in seen:
            where = f"rank {rank}: {name}, after {seconds:.1f} s: {kind}: {text}"
            if kind != torch_cgx.MismatchError.__name__ or seconds > limit:
                wrong.append(where)
                continue
            if name.startswith(UNEVEN):  # lengths are of messages between two ranks
                assert head_of(text)["rank"] == str(rank), where
                wrong += [] if f"rank {ODD} " in text else [where]
                continue
            try:
                check_disagreement(text, rank, 3)
                assert f"rank {ODD} runs" in text
            except AssertionError:
                wrong.append(where)
    assert not wrong, "\n".join(wrong)
