"""all_reduce on real processes, over shared memory and over Gloo: same bits on all ranks, and equal
to the simulation.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

COMMUNICATORS = ["SHM", "GLOO"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def data(rank: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(n, generator=generator).to(dtype)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(
        tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def reduce_sizes(rank, world_size, sizes, dtype, configs, op):
    digests = []
    for n in sizes:
        for config in configs:
            tensor = data(rank, n, dtype, seed=n)
            torch_cgx.all_reduce(tensor, op=op, config=config)
            digests.append(digest(tensor))
    wanted = "in-process" if world_size == 1 else world_communicator()
    assert torch_cgx.stats()["communicator"] == wanted
    return digests


def world_communicator() -> str:
    import os

    return {"SHM": "shm", "GLOO": "gloo"}[os.environ.get("CGX_INNER_COMMUNICATOR_TYPE", "SHM")]


def simulated(world_size, sizes, dtype, configs, op):
    digests = []
    for n in sizes:
        for config in configs:
            inputs = [data(rank, n, dtype, seed=n) for rank in range(world_size)]
            digests.append(digest(torch_cgx.simulate(inputs, config, op=op).result))
    return digests


def check(communicator, world_size, sizes, dtype, configs, op=dist.ReduceOp.SUM, timeout=120):
    env = {"CGX_INNER_COMMUNICATOR_TYPE": communicator}
    results = run_pooled(
        reduce_sizes, world_size, sizes, dtype, configs, op, env=env, timeout=timeout
    )
    assert all(r == results[0] for r in results), "ranks differ"
    assert results[0] == simulated(world_size, sizes, dtype, configs, op)


# Sizes that communicators could treat differently; tests/reduce has all, over the in-process one.
BORDERS = [*range(10), 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 399, 400]


@pytest.mark.parametrize("communicator", COMMUNICATORS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_small_size(communicator, world_size):
    configs = [{"bits": 4, "bucket_size": 64}, {"bits": 32}]
    small = [*range(401)] if world_size == 2 else BORDERS
    check(communicator, world_size, [*small, 511, 512, 513, 1025], torch.float32, configs)


@pytest.mark.parametrize("world_size", [7, 8, 9])
def test_many_ranks(world_size):
    sizes = [*BORDERS, 511, 512, 513, 4097, 30_001]
    configs = [{"bits": 4, "bucket_size": 64}, {"bits": 32}, {"bits": 3, "bucket_size": 33}]
    check("SHM", world_size, sizes, torch.float32, configs, timeout=300)
    check("SHM", world_size, [1_000_001], torch.float32, [{"bits": 4}], timeout=300)


def test_many_ranks_over_gloo():
    check(
        "GLOO",
        7,
        [0, 1, 100, 4097, 30_001],
        torch.float32,
        [{"bits": 4, "bucket_size": 64}],
        timeout=240,
    )


@pytest.mark.parametrize("communicator", COMMUNICATORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_widths_and_types(communicator, dtype):
    configs = [{"bits": bits, "bucket_size": 512} for bits in [*range(1, 9), 32]]
    check(communicator, 3, [100, 5000], dtype, configs, dist.ReduceOp.AVG)


@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_bucket_sizes_and_options(communicator):
    configs = [{"bits": 4, "bucket_size": b} for b in (1, 2, 3, 7, 33, 64, 100, 512, 1000, 4096)]
    configs += [{"bits": 4, "bucket_size": 1000, "skip_incomplete_buckets": True}]
    check(communicator, 3, [1, 999, 10_007], torch.float32, configs)


@pytest.mark.parametrize("communicator", COMMUNICATORS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_large_tensors(communicator, world_size):
    configs = [{"bits": bits} for bits in (4, 8, 32)]
    check(communicator, world_size, [1_000_001], torch.float32, configs)


HUGE = 2**26 + 3


def huge(rank: int) -> torch.Tensor:
    return torch.arange(HUGE, dtype=torch.int32).remainder_(1009).float().mul_(rank + 0.37)


def reduce_huge(rank, world_size, bits):
    tensor = huge(rank)
    torch_cgx.all_reduce(tensor, config={"bits": bits})
    return digest(tensor)


@pytest.mark.parametrize("bits", [4, 32])
def test_more_than_two_to_the_26_values(bits):
    results = run_pooled(reduce_huge, 2, bits, timeout=240)
    simulation = torch_cgx.simulate([huge(0), huge(1)], {"bits": bits})
    assert results == [digest(simulation.result)] * 2
    # A bucket of 512 values of rank r spans at most 1008 (r + 0.37): half a step each, and the
    # rounding of fp32.
    spans = 1008 * (0.37 + 1.37)
    bound = 0.0 if bits == 32 else spans / 15 / 2
    assert simulation.error["max_abs"] <= bound + spans * 2.0**-23


def sizes_of_old_defects(rank, world_size):
    """Vectors of the system we succeed: tensors of exactly 64 MiB, 65 MiB, 200 MiB, exact."""
    for mib in (64, 65, 200):
        n = mib * 2**20 // 4
        tensor = torch.full((n,), float(rank + 1))
        tensor[-1] = 100.0 * (rank + 1)
        dist.all_reduce(tensor)
        total = sum(range(1, world_size + 1))
        assert torch.all(tensor[:-1] == total) and tensor[-1] == 100 * total
    layers = [(2**20, {"bits": 8})] * 6 + [(119 * 2**18, {"bits": 8})]
    tensor = torch.full((sum(n for n, _ in layers),), float(rank + 1))
    torch_cgx.all_reduce(tensor, layers=layers)
    assert torch.all(tensor == sum(range(1, world_size + 1)))


def test_no_layer_is_dropped_and_no_large_tensor_corrupted():
    run_pooled(sizes_of_old_defects, 2, timeout=240)


def against_gloo(rank, world_size, n):
    gloo = dist.new_group(backend="gloo")
    mine = data(rank, n)
    theirs = mine.clone()
    dist.all_reduce(mine)
    dist.all_reduce(theirs, group=gloo)
    scale = data(0, n).abs()
    for r in range(1, world_size):
        scale += data(r, n).abs()
    assert torch.all((mine - theirs).abs() <= 2 * world_size * 2.0**-24 * scale)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_exact_sums_equal_gloo_within_rounding(world_size):
    run_pooled(against_gloo, world_size, 100_003)


def repeat(rank, world_size, times):
    seen = set()
    for _ in range(times):
        tensor = data(rank, 20_000)
        torch_cgx.all_reduce(tensor, config={"bits": 4})
        seen.add(digest(tensor))
    return seen


def test_same_bits_from_run_to_run():
    first = run_pooled(repeat, 3, 50)
    second = run_pooled(repeat, 3, 50)
    assert set.union(*first, *second) == first[0] and len(first[0]) == 1


def stochastic(rank, world_size):
    config = {"bits": 2, "rounding": "stochastic", "seed": 5}
    results = []
    for _ in range(3):
        tensor = data(rank, 4096)
        torch_cgx.all_reduce(tensor, config=config)
        results.append(digest(tensor))
    return results


def test_stochastic_rounding_differs_by_call_and_replays():
    results = run_pooled(stochastic, 3)
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == 3
    inputs = [data(rank, 4096) for rank in range(3)]
    config = {"bits": 2, "rounding": "stochastic", "seed": 5}
    expected = [digest(torch_cgx.simulate(inputs, config, sequence=s).result) for s in range(3)]
    assert results[0] == expected


def other_layouts(rank, world_size):
    base = data(rank, 64).reshape(8, 8)
    expected = sum(data(r, 64).reshape(8, 8).double() for r in range(world_size))
    for view in (base.t(), base[:, ::2], base[1:, 3:5]):
        exact = {id(base): None}
        copy = torch.empty_strided(view.shape, view.stride()).copy_(view)
        dist.all_reduce(copy)
        del exact
        source = (
            expected.t()
            if view.shape == (8, 8)
            else expected[:, ::2]
            if view.shape == (8, 4)
            else expected[1:, 3:5]
        )
        assert torch.allclose(copy.double(), source, rtol=1e-6, atol=1e-6)
    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(1, world_size + 1))
    leaf = torch.full((100,), 1.0, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert torch.all(leaf == world_size)
    with torch.inference_mode():
        inference = torch.full((100,), 2.0)
        dist.all_reduce(inference)
        assert torch.all(inference == 2 * world_size)
    with pytest.raises(ValueError, match="share memory"):
        dist.all_reduce(torch.ones(1).expand(5))


@pytest.mark.parametrize("communicator", COMMUNICATORS)
def test_strided_scalar_leaf_and_inference_tensors(communicator):
    run_pooled(other_layouts, 2, env={"CGX_INNER_COMMUNICATOR_TYPE": communicator})


def exact_types(rank, world_size):
    total = sum(range(1, world_size + 1))
    for dtype in (torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8):
        tensor = torch.full((1000,), rank + 1).to(dtype)
        dist.all_reduce(tensor)
        assert torch.all(tensor == torch.tensor(total).to(dtype)), dtype
    for op, value in [
        (dist.ReduceOp.MIN, 1.0),
        (dist.ReduceOp.MAX, float(world_size)),
        (dist.ReduceOp.PRODUCT, float(torch.arange(1, world_size + 1).prod())),
    ]:
        tensor = torch.full((1000,), float(rank + 1))
        dist.all_reduce(tensor, op=op)
        assert torch.all(tensor == value)
    average = torch.full((1000,), float(rank + 1), dtype=torch.float64)
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    assert torch.all(average == total / world_size)
    assert torch_cgx.stats()["calls"] == 9
    assert torch_cgx.stats()["compressed_calls"] == 0
    with pytest.raises(TypeError, match="Float8.*not supported"):
        dist.all_reduce(torch.ones(4).to(torch.float8_e5m2))


def test_other_types_and_ops_are_exact():
    run_pooled(exact_types, 3, env={"CGX_COMPRESSION_QUANTIZATION_BITS": "2"})


def refuse(rank, world_size):
    for tensor, op in [
        (torch.ones(100, dtype=torch.float64), dist.ReduceOp.SUM),
        (torch.ones(100), dist.ReduceOp.MAX),
        (torch.ones(100, dtype=torch.int32), dist.ReduceOp.SUM),
    ]:
        before = tensor.clone()
        with pytest.raises(ValueError, match="compressed all_reduce was asked for"):
            torch_cgx.all_reduce(tensor, op=op, config={"bits": 4})
        assert torch.equal(before, tensor)
    gather, scatter = torch_cgx.all_gather_single, torch_cgx.reduce_scatter_single
    for call, output, given, text in [
        (gather, torch.empty(20).half(), torch.ones(10), "input is Float, output is Half"),
        (scatter, torch.empty(10).half(), torch.ones(20), "input is Float, output is Half"),
        (gather, torch.empty(10), torch.ones(90), "input has 90 values, output has 10; the output"),
        (scatter, torch.empty(10), torch.ones(9), "input has 9 values, output has 10; the input"),
    ]:
        with pytest.raises(ValueError, match=text):
            call(output, given, config={"bits": 4})
    # A refused call breaks nothing.
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert torch.all(tensor == world_size)


def test_compression_that_is_impossible_is_an_error():
    run_pooled(refuse, 2)
