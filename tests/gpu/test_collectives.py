"""Collectives of 2 and 4 processes on one GPU: every communicator gives the bits of the simulation.

The simulation (on the CPU) is held by tests of its own; float64 sums check the exact ones again.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.backend.test_all_reduce import data, digest
from tests.gpu import ranks

# Settings, the communicator's name, and the options with which a simulation cuts messages alike:
# messages of CUDA tensors are four times as large through shared memory, and NCCL's are Gloo's.
WAYS = {
    "SHM": (
        {"CGX_INNER_COMMUNICATOR_TYPE": "SHM"},
        "cuda-ipc",
        torch_cgx.Options(shm_segment_kb=4096),
    ),
    "GLOO": ({"CGX_INNER_COMMUNICATOR_TYPE": "GLOO"}, "gloo(pinned)", None),
    "NCCL": (
        {"CGX_INNER_COMMUNICATOR_TYPE": "NCCL"},
        "nccl",
        torch_cgx.Options(inner_communicator="GLOO"),
    ),
}
EVERY_WAY = list(WAYS)
SIZES = [0, 1, 15, 400, 65_537, 2**18 + 5 if ranks.FAKE else 2**22 + 5]
CONFIGS = [
    {"bits": 4},
    {"bits": 32},
    {"bits": 3, "bucket_size": 33},
    {"bits": 8, "bucket_size": 64, "rounding": "stochastic", "seed": 7},
    {"bits": 16},
    {"bits": 2, "bucket_size": 5000, "skip_incomplete_buckets": True},
    {"codec": "rotated", "bits": 4},
    {"codec": "trellis", "bits": 3},
    {"codec": "float", "bits": 8, "exponent": 4, "mantissa": 3},
    {
        "codec": "float",
        "bits": 8,
        "exponent": 3,
        "mantissa": 2,
        "rounding": "stochastic",
        "seed": 7,
    },
    {"codec": "block", "bits": 4, "format": "mxfp4"},
    {"codec": "block", "bits": 8, "format": "fp8_block128"},
]


def _reduce(rank, world_size, communicator, sizes, dtype, op, configs):
    digests = []
    for n in sizes:
        for config in configs:
            x = data(rank, n, dtype, seed=n).to("cuda")
            torch_cgx.all_reduce(x, op=op, config=config)
            number = torch_cgx.stats()["sequence"] - 1  # keys stochastic rounding
            digests.append((number, digest(x.cpu())))
    assert torch_cgx.stats()["cuda_communicator"] == communicator
    return digests


def _check(way, world_size, sizes, dtype, op=dist.ReduceOp.SUM, configs=CONFIGS):
    env, communicator, options = WAYS[way]
    results = ranks.run(_reduce, world_size, communicator, sizes, dtype, op, configs, env=env)
    assert all(result == results[0] for result in results), "ranks differ"
    cases = [(n, config) for n in sizes for config in configs]
    wrong = []
    for (n, config), (number, found) in zip(cases, results[0], strict=True):
        inputs = [data(rank, n, dtype, seed=n) for rank in range(world_size)]
        simulation = torch_cgx.simulate(
            inputs, config, op=op, options=options, sequence=max(number, 0)
        )
        if digest(simulation.result) != found:
            wrong.append((n, config))
    assert not wrong


@pytest.mark.parametrize("way", EVERY_WAY)
def test_all_reduce_of_two(way):
    _check(way, 2, SIZES, torch.float32)


@pytest.mark.parametrize("way", ["SHM", "GLOO"])
def test_all_reduce_of_four(way):
    _check(way, 4, SIZES, torch.float32)


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bit_tensors(way, dtype):
    _check(way, 2, [15, 400, 65_537], dtype, dist.ReduceOp.AVG)


def test_all_reduce_of_four_over_nccl():
    _check("NCCL", 4, [15, 65_537], torch.float32, configs=CONFIGS[:2])


def _exact(rank, world_size, n):
    x = data(rank, n).to("cuda")
    dist.all_reduce(x)
    return x.cpu()


@pytest.mark.parametrize("way", EVERY_WAY)
def test_exact_sums_against_float64(way):
    for n in SIZES:
        results = ranks.run(_exact, 2, n, env=WAYS[way][0])
        exact = (data(0, n).double() + data(1, n).double()).float()  # one rounding: the same bits
        assert all(torch.equal(result, exact) for result in results)
    if way == "NCCL":
        return
    n = SIZES[-1]
    results = ranks.run(_exact, 4, n, env=WAYS[way][0])
    inputs = [data(rank, n).double() for rank in range(4)]
    bound = 4 * 2.0**-24 * sum(x.abs() for x in inputs)
    assert ((results[0].double() - sum(inputs)).abs() <= bound).all()
    assert all(torch.equal(result, results[0]) for result in results)


def _shards(rank, world_size, n, config):
    """On the GPU and, by the same group's other engine, on the CPU."""
    found = []
    for device in ("cuda", "cpu"):
        whole = data(rank, n * world_size).to(device)
        part = torch.empty(n, device=device)
        torch_cgx.reduce_scatter_single(part, whole, config=config)
        gathered = torch.empty(n * world_size, device=device)
        torch_cgx.all_gather_single(gathered, part, config=config)
        found.append((part.cpu(), gathered.cpu()))
    if config["bits"] == 32:  # `cuda_backend` adds in an order of its own, the CPU in rank order
        values = [data(r, n * world_size)[rank * n : (rank + 1) * n] for r in range(world_size)]
        bound = world_size * 2.0**-23 * sum(x.double().abs() for x in values)
        assert ((found[0][0].double() - found[1][0]).abs() <= bound).all(), (n, config)
    else:
        assert all(torch.equal(*pair) for pair in zip(*found, strict=True)), (n, config)
    return digest(found[0][1])


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("way", ["SHM", "GLOO"])
def test_reduce_scatter_and_all_gather(way, world_size):
    for n in (1, 15, 400, 65_537):
        for config in ({"bits": 4, "bucket_size": 64}, {"bits": 32}):
            found = ranks.run(_shards, world_size, n, config, env=WAYS[way][0])
            assert len(set(found)) == 1, "ranks differ"


def test_reduce_scatter_and_all_gather_over_nccl():
    # Gloo serves the CPU's tensors there.
    env = WAYS["NCCL"][0]
    found = ranks.run(_shards, 2, 65_537, {"bits": 4, "bucket_size": 64}, env=env)
    assert len(set(found)) == 1, "ranks differ"


def _several(rank, world_size):
    """Layers of their own configuration in one call, on a view off alignment."""
    x = torch.empty(20_003, device="cuda")[3:]
    x.copy_(data(rank, 20_000))
    layers = [(5000, {"bits": 4}), (10_000, None), (5000, {"bits": 8, "bucket_size": 64})]
    torch_cgx.all_reduce(x, layers=layers)
    inputs = [data(r, 20_000) for r in range(world_size)]
    wanted = torch_cgx.simulate(inputs, layers=layers).result
    return torch.equal(x.cpu(), wanted)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_layers_of_one_call(way):
    assert all(ranks.run(_several, 2, env=WAYS[way][0]))


def _nonfinite(rank, world_size):
    x = torch.ones(5000)
    x[77] = float("nan") if rank == 1 else 1.0
    x = x.to("cuda")
    with pytest.raises(torch_cgx.NonFiniteError):
        torch_cgx.all_reduce(x, config={"bits": 4})
    again = torch.ones(5000, device="cuda")
    torch_cgx.all_reduce(again, config={"bits": 4})
    return again.cpu().unique().tolist()


@pytest.mark.parametrize("way", ["SHM", "GLOO"])
def test_a_nan_raises_on_both_ranks_where_asked_for(way):
    env = WAYS[way][0] | {"CGX_NONFINITE": "raise"}
    assert ranks.run(_nonfinite, 2, env=env) == [[2.0]] * 2


def _mismatch(rank, world_size):
    with pytest.raises(torch_cgx.MismatchError, match="disagree"):
        torch_cgx.all_reduce(torch.ones(1000 + rank, device="cuda"), config={"bits": 4})


@pytest.mark.parametrize("way", ["SHM", "GLOO"])
def test_a_mismatch_is_told_to_both_ranks(way):
    ranks.run(_mismatch, 2, env=WAYS[way][0])


def _passed_on(rank, world_size):
    x = torch.full((7,), float(rank), device="cuda")
    dist.broadcast(x, 1)
    y = torch.full((7,), float(rank), device="cuda")
    dist.all_reduce(y, dist.ReduceOp.MAX)
    dist.barrier()
    return x.cpu().unique().tolist(), y.cpu().unique().tolist()


def test_what_the_engine_does_not_reduce_goes_over_gloo():
    assert ranks.run(_passed_on, 2) == [([1.0], [1.0])] * 2
