"""Every other collective of torch.distributed, all types, against what it must be."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import torch_cgx
from tests.distributed import run_pooled

ALL_TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def pattern(rank: int, dtype: torch.dtype, shape=(5, 3)) -> torch.Tensor:
    """Bytes that differ by rank and position (0/1 for bool)."""
    n = torch.empty(shape, dtype=dtype).numel() * torch.empty((), dtype=dtype).element_size()
    raw = (torch.arange(n) * 7 + 13 * rank + 1).remainder(100).to(torch.uint8)
    if dtype == torch.bool:
        raw = raw.remainder(2)
    return raw.view(dtype).reshape(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(
            a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
        )
    )


def movements(rank, world_size):
    for dtype in ALL_TYPES:
        everyone = [pattern(r, dtype) for r in range(world_size)]
        mine = everyone[rank]
        for root in range(world_size):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            assert same(tensor, everyone[root]), ("broadcast", dtype)

            gathered = [torch.zeros_like(mine) for _ in everyone] if rank == root else None
            dist.gather(mine, gathered, dst=root)
            if gathered is not None:
                assert all(same(a, b) for a, b in zip(gathered, everyone, strict=True)), (
                    "gather",
                    dtype,
                )

            target = torch.zeros_like(mine)
            dist.scatter(target, everyone if rank == root else None, src=root)
            assert same(target, mine), ("scatter", dtype)
        listed = [torch.zeros_like(mine) for _ in everyone]
        dist.all_gather(listed, mine)
        assert all(same(a, b) for a, b in zip(listed, everyone, strict=True)), ("all_gather", dtype)

        whole = torch.zeros((world_size * 5, 3), dtype=torch.uint8).to(dtype)
        dist.all_gather_single(whole, mine)
        assert same(whole, torch.cat([x.view(torch.uint8) for x in everyone]).view(dtype)), (
            "into_tensor",
            dtype,
        )

        received = [torch.zeros_like(mine) for _ in everyone]
        dist.all_to_all(received, [pattern(10 * rank + r, dtype) for r in range(world_size)])
        assert all(same(received[r], pattern(10 * r + rank, dtype)) for r in range(world_size)), (
            "all_to_all",
            dtype,
        )

        single = torch.zeros((world_size * 2, 3), dtype=torch.uint8).to(dtype)
        dist.all_to_all_single(single, pattern(rank, dtype, (world_size * 2, 3)))
        for r in range(world_size):
            sent = pattern(r, dtype, (world_size * 2, 3))[2 * rank : 2 * rank + 2]
            assert same(single[2 * r : 2 * r + 2].clone(), sent.clone()), (
                "all_to_all_single",
                dtype,
            )

        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        box = torch.zeros_like(mine)
        requests = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, box, left)]
        )
        for request in requests:
            request.wait()
        assert same(box, everyone[left]), ("p2p", dtype)
        if rank == 0:
            for _ in range(world_size - 1):
                box.zero_()
                source = dist.recv(box)
                assert same(box, everyone[source]), ("recv any source", dtype)
        else:
            dist.send(mine, 0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_data_movement_of_every_type(world_size):
    run_pooled(movements, world_size, timeout=120)


def uneven(rank, world_size):
    sizes = [r + 1 for r in range(world_size)]
    listed = [torch.zeros(s) for s in sizes]
    works = [dist.broadcast(t, r, async_op=True) for r, t in enumerate(listed)]
    for work in works:
        work.wait()
    splits_in = [r + 1 for r in range(world_size)]
    splits_out = [rank + 1] * world_size
    for dtype in (torch.float32, torch.int16):
        output = torch.zeros(sum(splits_out), dtype=dtype)
        dist.all_to_all_single(
            output, torch.full((sum(splits_in),), rank + 1, dtype=dtype), splits_out, splits_in
        )
        expected = torch.cat(
            [torch.full((rank + 1,), r + 1, dtype=dtype) for r in range(world_size)]
        )
        assert torch.equal(output, expected)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank * 100)})
    assert [o["rank"] for o in objects] == list(range(world_size))
    box = [{"from": 0}, "text"] if rank == 0 else [None, None]
    dist.broadcast_object_list(box, 0)
    assert box == [{"from": 0}, "text"]
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(world_size)] if rank == 0 else None, 0)
    assert out == [f"for {rank}"]
    dist.barrier()


def test_uneven_splits_and_objects():
    run_pooled(uneven, 3)


def reductions(rank, world_size):
    total = sum(range(1, world_size + 1))
    for dtype in (torch.float32, torch.float64, torch.int64):
        tensor = torch.full((6,), rank + 1).to(dtype)
        dist.reduce(tensor, 0)
        if rank == 0:
            assert torch.all(tensor == total)
        output = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter(
            output, [torch.full((2,), (rank + 1) * (r + 1)).to(dtype) for r in range(world_size)]
        )
        assert torch.all(output == total * (rank + 1))
        dist.reduce_scatter_single(output, torch.arange(2 * world_size).to(dtype))
        assert torch.equal(output, world_size * torch.arange(2 * rank, 2 * rank + 2).to(dtype))
    output = torch.zeros(4)
    dist.reduce_scatter_single(
        output, torch.full((4 * world_size,), float(rank + 1)), op=dist.ReduceOp.AVG
    )
    assert torch.allclose(output, torch.full((4,), total / world_size))


def test_reductions():
    run_pooled(reductions, 3)


def functional(rank, world_size):
    group = dist.group.WORLD
    total = sum(range(1, world_size + 1))
    x = torch.full((8 * world_size,), float(rank + 1))
    assert torch.all(funcol.all_reduce(x, "sum", group) == total)
    assert torch.allclose(funcol.all_reduce(x, "avg", group), torch.tensor(total / world_size))
    gathered = funcol.all_gather_tensor(x, 0, group)
    assert torch.equal(
        gathered, torch.arange(1, world_size + 1).float().repeat_interleave(8 * world_size)
    )
    assert torch.all(funcol.reduce_scatter_tensor(x, "sum", 0, group) == total)
    a, b = funcol.all_reduce_coalesced([x, x.double()], "sum", group)
    assert torch.all(a == total) and torch.all(b == total) and b.dtype == torch.float64
    lists = funcol.all_gather_into_tensor_coalesced([x, 2 * x], group)
    assert torch.equal(lists[1], 2 * lists[0])
    parts = funcol.reduce_scatter_tensor_coalesced([x, 2 * x], "sum", [0, 0], group)
    assert torch.all(parts[1] == 2 * total)
    compiled = torch.compile(
        lambda t: funcol.all_reduce(t * 2, "sum", group) + 1, backend="aot_eager"
    )
    assert torch.all(compiled(x) == 2 * total + 1)


def test_functional_collectives():
    run_pooled(functional, 2, timeout=120)


def coalescing(rank, world_size):
    total = sum(range(1, world_size + 1))
    group = dist.group.WORLD
    tensors = [torch.full((n,), float(rank + 1)) for n in (3, 100, 1000)]
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(torch.all(t == total) for t in tensors)
    outputs = [torch.zeros(2 * world_size), torch.zeros(5 * world_size)]
    inputs = [torch.full((2,), float(rank)), torch.full((5,), float(rank))]
    with dist._coalescing_manager(group):
        for output, value in zip(outputs, inputs, strict=True):
            dist.all_gather_single(output, value)
    for output, value in zip(outputs, inputs, strict=True):
        assert torch.equal(
            output, torch.arange(world_size).float().repeat_interleave(value.numel())
        )


def test_coalescing_manager():
    run_pooled(coalescing, 3)


def shards(rank, world_size, dtype, bits):
    n = 5000
    inputs = [
        torch.randn(n * world_size, generator=torch.Generator().manual_seed(r)).to(dtype)
        for r in range(world_size)
    ]
    exact = sum(x.double() for x in inputs)
    mine = exact[rank * n : (rank + 1) * n]
    output = torch.zeros(n, dtype=dtype)
    dist.reduce_scatter_single(output, inputs[rank])
    error = ((output.double() - mine).norm() / mine.norm()).item()
    single = {4: 0.117, 8: 0.0069}[bits] * ((world_size - 1) / world_size) ** 0.5
    assert error == pytest.approx(single, rel=0.2)
    explicit = torch.zeros(n, dtype=dtype)
    torch_cgx.reduce_scatter_single(explicit, inputs[rank], config={"bits": bits})
    assert torch.equal(explicit, output)
    average = torch.zeros(n, dtype=dtype)
    dist.reduce_scatter_single(average, inputs[rank], op=dist.ReduceOp.AVG)
    assert torch.allclose(average.float() * world_size, output.float(), rtol=2e-2, atol=1e-2)
    functional_one = funcol.reduce_scatter_tensor(inputs[rank], "sum", 0, dist.group.WORLD)
    assert torch.equal(functional_one, output)

    whole = torch.zeros(n * world_size, dtype=dtype)
    dist.all_gather_single(whole, output)  # not asked for: exact
    assert torch.equal(whole[rank * n : (rank + 1) * n], output)
    torch_cgx.all_gather_single(whole, output, config={"bits": bits})
    error = (whole[rank * n : (rank + 1) * n] - output).float().norm() / output.float().norm()
    assert 0 < error < 0.2
    assert torch_cgx.stats()["compressed_calls"] == 5
    return whole.float().sum().item(), whole.view(torch.uint8).sum().item()


@pytest.mark.parametrize("communicator", ["SHM", "GLOO"])
@pytest.mark.parametrize(
    "dtype, bits", [(torch.float32, 4), (torch.float32, 8), (torch.bfloat16, 4), (torch.float16, 4)]
)
def test_reduce_scatter_and_all_gather_compressed(communicator, dtype, bits):
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator}
    env["CGX_COMPRESSION_QUANTIZATION_BITS"] = str(bits)
    results = run_pooled(shards, 3, dtype, bits, env=env)
    assert results[0] == results[1] == results[2]


def gathers_when_asked(rank, world_size):
    whole = torch.zeros(1000 * world_size)
    dist.all_gather_single(whole, torch.randn(1000))
    return torch_cgx.stats()["compressed_calls"]


def test_all_gather_is_compressed_only_when_asked():
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4"}
    assert run_pooled(gathers_when_asked, 2, env=env) == [0, 0]
    env["CGX_COMPRESS_COLLECTIVES"] = "all_gather"
    assert run_pooled(gathers_when_asked, 2, env=env) == [1, 1]


def uneven_lists(rank, world_size):
    for dtype in (torch.float32, torch.int16, torch.bool):
        inputs = [pattern(10 * rank + r, dtype, (r + 1, 2)) for r in range(world_size)]
        outputs = [torch.zeros((rank + 1, 2), dtype=torch.uint8).to(dtype) for _ in inputs]
        dist.all_to_all(outputs, inputs)
        for r, output in enumerate(outputs):
            assert same(output, pattern(10 * r + rank, dtype, (rank + 1, 2))), (dtype, r)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_to_all_of_lists_of_uneven_tensors(world_size):
    run_pooled(uneven_lists, world_size)


def held_backends(rank, world_size):
    for _ in range(10):
        group = dist.new_group(list(range(world_size)))
        backend = torch_cgx._backend.backend_of(group)
        dist.all_reduce(torch.ones(100, dtype=torch.int64), group=group)
        dist.destroy_process_group(group)
        del backend, group  # the last reference goes in Python, with its lock held


def test_the_last_reference_may_go_in_python():
    run_pooled(held_backends, 2)
