"""Collectives beside each other: in two groups at once, in parts of the ranks, coalesced, compiled,
from several threads; and what torch builds of them, objects and functional collectives.
"""

from __future__ import annotations

import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from tests.conformance import values
from tests.conformance.boxes import LAYOUTS
from tests.conformance.catalogue import MOVES, REDUCING, Case, Place, Started, start
from tests.conformance.sweeps import kinds
from tests.distributed import run_pooled

HOSTS = ["aa", "aaa", "aabb", "ab"]


def hosts_env(hosts: str) -> list[dict[str, str]]:
    return [{"CGX_HOST_ID": host} for host in hosts]


def draw(choose: random.Random, ranks: int, key: int, levels: int = 2) -> Case:
    """Any case; the same on all ranks."""
    while True:
        op, reduction, dtype, rough = choose.choice(kinds())
        n = choose.choice([0, 1, 2, 17, 64, 400, choose.randrange(5000)])
        case = Case(
            op, n, dtype, reduction, choose.randrange(ranks), choose.choice(LAYOUTS), key, rough
        )
        if not (rough and levels > 1):
            return case


def finish(some: list[tuple[Case, Started]], order: random.Random) -> None:
    """Waits in any order; then all must be right."""
    order.shuffle(some)
    for _, one in some:
        one.wait()
    for case, one in some:
        assert not one.complaint(), f"{case}: {one.complaint()}"


def at_once(rank: int, size: int) -> int:
    """Two groups of all ranks, and groups of some, with many cases in flight in each."""
    members = [list(range(size)), list(range(size)), [0, 1], [size - 1, 0], [size - 1]]
    groups = [(ranks, dist.new_group(ranks)) for ranks in members]
    choose, done = random.Random(40), 0
    keys = itertools.count()
    for _ in range(12):
        some = []
        for _ in range(16):
            ranks, group = choose.choice(groups)
            case = draw(choose, len(ranks), next(keys))
            if rank in ranks:
                some.append((case, start(case, Place.of(group))))
        done += len(some)
        finish(some, random.Random(rank))
    for ranks, group in groups:
        if rank in ranks:
            dist.destroy_process_group(group)
    return done


@pytest.mark.parametrize("hosts", HOSTS)
def test_several_groups_with_many_calls_in_flight(hosts: str) -> None:
    assert min(run_pooled(at_once, len(hosts), env=hosts_env(hosts))) > 50


def threads(rank: int, size: int) -> None:
    """A thread for each of three groups."""
    groups = [dist.new_group(list(range(size))) for _ in range(3)]
    wrong: list[str] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        try:
            for key in range(40):
                case = draw(choose, size, key)
                one = start(case, Place.of(groups[number]))
                one.wait()
                if text := one.complaint():
                    wrong.append(f"{case}: {text}")
        except Exception as error:
            wrong.append(repr(error))

    running = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, "\n".join(wrong)
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("hosts", ["aaa", "ab"])
def test_each_group_in_a_thread_of_its_own(hosts: str) -> None:
    run_pooled(threads, len(hosts), env=hosts_env(hosts))


def numbers(rank: int, n: int, key: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return values.tensor_of(values.reducible(dtype, key, rank, 0, n), dtype)


def coalesced(rank: int, size: int) -> None:
    group, cpu = dist.group.WORLD, torch.device("cpu")
    everyone = range(size)
    for key, dtype in enumerate((torch.int64, torch.float32, torch.int32, torch.uint8)):
        lengths = [0, 1, 17, 400, 5000]
        sums = [
            sum((numbers(r, n, key, dtype) for r in everyone), torch.zeros(n, dtype=dtype))
            for n in lengths
        ]
        tensors = [numbers(rank, n, key, dtype) for n in lengths]
        with dist._coalescing_manager(group, cpu, async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        for tensor, total in zip(tensors, sums, strict=True):
            assert torch.equal(tensor, total), dtype

        outputs = [torch.zeros(size * n, dtype=dtype) for n in lengths]
        with dist._coalescing_manager(group, cpu, async_ops=True) as manager:
            for output, n in zip(outputs, lengths, strict=True):
                dist.all_gather_single(output, numbers(rank, n, key, dtype))
        manager.wait()
        for output, n in zip(outputs, lengths, strict=True):
            assert torch.equal(output, torch.cat([numbers(r, n, key, dtype) for r in everyone]))

        outputs = [torch.zeros(n, dtype=dtype) for n in lengths]
        with dist._coalescing_manager(group, cpu, async_ops=True) as manager:
            for output, n in zip(outputs, lengths, strict=True):
                dist.reduce_scatter_single(output, numbers(rank, size * n, key, dtype))
        manager.wait()
        for output, n in zip(outputs, lengths, strict=True):
            total = sum(
                (numbers(r, size * n, key, dtype) for r in everyone),
                torch.zeros(size * n, dtype=dtype),
            )
            assert torch.equal(output, total[rank * n : (rank + 1) * n])


def functional(rank: int, size: int) -> None:
    group = dist.group.WORLD
    everyone = range(size)
    for key, dtype in enumerate((torch.int64, torch.float32, torch.float64)):
        n = 6 * size
        inputs = [numbers(r, n, key, dtype).view(size, 6) for r in everyone]
        x = inputs[rank]
        total = torch.stack(inputs).sum(0).to(dtype)
        for name, expected in (
            ("sum", total),
            ("min", torch.stack(inputs).amin(0)),
            ("max", torch.stack(inputs).amax(0)),
            ("product", torch.stack(inputs).prod(0).to(dtype)),
        ):
            assert torch.equal(funcol.all_reduce(x, name, group), expected), name
        for dim in (0, 1):
            gathered = funcol.all_gather_tensor(x, dim, group)
            assert torch.equal(gathered, torch.cat(inputs, dim))
        scattered = funcol.reduce_scatter_tensor(x, "sum", 0, group)
        assert torch.equal(scattered, total[rank : rank + 1])
        for root in everyone:
            assert torch.equal(funcol.broadcast(x, root, group), inputs[root])
        splits = [[(a + 2 * b) % 3 for b in everyone] for a in everyone]  # zeros, too
        long = [numbers(r, sum(splits[r]), 9, dtype) for r in everyone]
        received = funcol.all_to_all_single(
            long[rank], [splits[r][rank] for r in everyone], splits[rank], group
        )
        expected = torch.cat([long[r].split(splits[r])[rank] for r in everyone])
        assert torch.equal(received, expected)
        shifted = funcol.permute_tensor(x.view(-1), [(r + 1) % size for r in everyone], group)
        assert torch.equal(shifted, inputs[rank - 1].view(-1))
        a, b = funcol.all_reduce_coalesced([x, x + 1], "sum", group)
        assert torch.equal(a, total) and torch.equal(b, total + size)
        a, b = funcol.all_gather_into_tensor_coalesced([x, x + 1], group)
        assert torch.equal(a, torch.cat(inputs)) and torch.equal(b, torch.cat(inputs) + 1)
        a, b = funcol.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
        assert torch.equal(a, total[rank : rank + 1]) and torch.equal(b, a + size)


def objects(rank: int, size: int) -> None:
    def message(source: int, number: int = 0) -> Any:
        return {"from": source, "text": "x" * (1000 * source + number), "array": np.arange(source)}

    def same(a: Any, b: Any) -> bool:
        return a["text"] == b["text"] and a["from"] == b["from"] and len(a["array"]) == b["from"]

    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, message(rank))
    assert all(same(found, message(r)) for r, found in enumerate(everyone))
    for root in range(size):
        gathered: list[Any] | None = [None] * size if rank == root else None
        dist.gather_object(message(rank), gathered, root)
        if gathered is not None:
            assert all(same(found, message(r)) for r, found in enumerate(gathered))
        box = [message(root), message(root, 7)] if rank == root else [None, None]
        dist.broadcast_object_list(box, root)
        assert same(box[0], message(root)) and same(box[1], message(root, 7))
        out: list[Any] = [None]
        given = [message(root, r) for r in range(size)] if rank == root else None
        dist.scatter_object_list(out, given, root)
        assert same(out[0], message(root, rank))
    after, before = (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0 and rank != size - 1:
        dist.send_object_list([message(rank), None], after)
    if rank % 2 == 1:
        box = [None, None]
        dist.recv_object_list(box, before)
        assert same(box[0], message(before)) and box[1] is None
    dist.barrier()


def compiled(rank: int, size: int) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(total + rank, 0, dist.group.WORLD)
        return funcol.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD) + 1

    x = torch.arange(8, dtype=torch.int64) + rank
    assert torch.equal(torch.compile(step, backend="aot_eager")(x), step(x))


JOBS = {job.__name__: job for job in (coalesced, functional, objects)}


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("name", JOBS)
def test_what_torch_builds_of_them(name: str, hosts: str) -> None:
    run_pooled(JOBS[name], len(hosts), env=hosts_env(hosts))


def test_compiled() -> None:
    run_pooled(compiled, 2)


def test_alone() -> None:
    """A group of one rank."""
    run_pooled(every_operation, 1)


def every_operation(rank: int, size: int) -> None:
    for key, op in enumerate(MOVES + REDUCING):
        for n in (0, 1, 17, 5000):
            reduction = "SUM" if op in REDUCING else ""
            one = start(Case(op, n, torch.float32, reduction, 0, "plain", key), Place.of())
            one.wait()
            assert not one.complaint(), (op, n, one.complaint())
