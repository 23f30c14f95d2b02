"""The error bounds of docs/numerics.md, in float64, on data made to break them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests import _machinery
from tests.distributed import run_pooled, run_ranks
from tests.docs.bounds import DTYPES, ROUNDING, U, codec_bound
from torch_cgx import _C

N_VALUES = 700
CAPACITY = 1 << 20  # of the simulated communicator


def gamma(k):
    return k * U / (1 - k * U)


def owners(n, config, dtype, ranks):
    """The owner of each value under scatter-reduce-all-gather, as the plan says."""
    layers = [(n, _C.Codec(**config))]
    owner = np.full(n, -1)
    plan = {"ranks": ranks, "algorithm": "sra", "slot_bytes": CAPACITY}
    for (chunks,) in _machinery.describe_plan(layers, DTYPES[dtype], **plan):
        for rank, pieces in enumerate(chunks):
            for offset, count, *_ in pieces:
                owner[offset : offset + count] = rank
    return owner


def reducer_bound(inputs, config, algorithm, dtype, average):
    """|result - exact sum or mean| may not exceed this; inputs: float64 [ranks, n]."""
    ranks, n = inputs.shape
    bits, bucket = config["bits"], config["bucket_size"]
    stochastic = config["rounding"] == "stochastic"
    errors = np.stack([codec_bound(x, bits, bucket, stochastic) for x in inputs])
    if algorithm == "sra":
        errors[owners(n, config, dtype, ranks), np.arange(n)] = 0
    exact = inputs.sum(axis=0)
    limit = errors.sum(axis=0) + gamma(ranks - 1) * (np.abs(inputs) + errors).sum(axis=0)
    if average:
        exact, limit = exact / ranks, limit / ranks
        limit = limit + U * (np.abs(exact) + limit) + 2.0**-150
    if algorithm == "sra":
        limit = limit + codec_bound(exact, bits, bucket, stochastic, extra=limit)
    relative, absolute = ROUNDING[dtype]
    return exact, limit + relative * (np.abs(exact) + limit) + absolute


def midpoints(generator, n, bits, bucket):
    """Every value half way between two levels, all on the same side: no encoder can do worse."""
    levels = 2**bits - 1
    x = generator.integers(0, levels, n) + 0.5 - 1e-4
    x[::bucket], x[1::bucket] = 0, levels
    return x


def make(kind, generator, ranks, n, bits, bucket):
    if kind == "midpoints":
        return np.tile(midpoints(generator, n, bits, bucket), (ranks, 1))
    x = generator.standard_normal((ranks, n))
    if kind == "heavy":
        x = generator.standard_t(1, (ranks, n)).clip(-2000, 2000)  # float16 holds the sums
    elif kind == "tiny":
        x *= 2.0**-146
    elif kind == "borderline":
        x *= 2.0**-126
    elif kind == "huge":
        x *= 2.0**124 / np.abs(x).max()
    elif kind == "wide":  # max - min of a bucket overflows float32; the sum of the ranks does not
        x = np.where(generator.random((ranks, n)) < 0.5, -1.0, 1.0) * 2.0**127 * 1.9
        x[1:] = generator.standard_normal((ranks - 1, n)) * 2.0**90
    elif kind == "cancelling":
        x[-1] = -x[:-1].sum(axis=0)
    elif kind == "offset":
        x = 1e3 + x
    elif kind == "sparse":
        x[generator.random(x.shape) < 0.99] = 0
    elif kind == "scales":
        x *= 10.0 ** generator.uniform(-20, 20, x.shape)
    return x


def ratio(kind, ranks, bits, bucket, rounding, algorithm, dtype, average, seed):
    """Largest error over bound; at most 1 where the document is right."""
    generator = np.random.default_rng(seed)
    x = make(kind, generator, ranks, N_VALUES, bits, bucket).astype(np.float32)
    tensors = list(torch.from_numpy(x).to(dtype))
    config = {"bits": bits, "bucket_size": bucket, "rounding": rounding, "seed": seed}
    op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
    found = torch_cgx.simulate(tensors, config, algorithm, op=op, sequence=seed)
    inputs = np.stack([t.double().numpy() for t in tensors])
    exact, limit = reducer_bound(inputs, config, algorithm, dtype, average)
    assert found.result.isfinite().all()
    assert all(torch.equal(found.result, other) for other in found.outputs)
    return float((np.abs(found.result.double().numpy() - exact) / limit).max())


KINDS = ["gauss", "heavy", "midpoints", "cancelling", "offset", "sparse"]
FP32_KINDS = ["tiny", "borderline", "huge", "wide", "scales"]


@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
@pytest.mark.parametrize("kind", [*KINDS, *FP32_KINDS])
def test_reducers_keep_the_bound(kind, algorithm):
    dtypes = [torch.float32] if kind in FP32_KINDS else list(DTYPES)
    cases = itertools.product((2, 3, 8), (1, 4, 8), (7, 512), dtypes, (False, True))
    for seed, (ranks, bits, bucket, dtype, average) in enumerate(cases):
        for rounding in ("nearest", "stochastic"):
            case = (kind, ranks, bits, bucket, rounding, algorithm, dtype, average, seed)
            worst = ratio(*case)
            assert worst <= 1, f"{case}: {worst} times the bound"


def test_the_bound_is_not_loose():
    # The same worst data on every rank: one-shot errors add up without any luck.
    case = ("midpoints", 8, 4, 512, "nearest", "oneshot", torch.float32, False, 1)
    assert 0.99 < ratio(*case) <= 1
    assert ratio(*case[:5], "sra", *case[6:]) > 0.5


@pytest.mark.parametrize("ranks", [1, 2, 9])
@pytest.mark.parametrize("algorithm", ["oneshot", "sra"])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_exact_sums_keep_their_bound(ranks, algorithm, dtype):
    generator = np.random.default_rng(ranks)
    x = make("scales" if dtype is torch.float32 else "gauss", generator, ranks, N_VALUES, 8, 512)
    tensors = list(torch.from_numpy(x.astype(np.float32)).to(dtype))
    found = torch_cgx.simulate(tensors, {"bits": 32}, algorithm)
    inputs = np.stack([t.double().numpy() for t in tensors])
    limit = gamma(ranks - 1) * np.abs(inputs).sum(axis=0)
    relative, absolute = ROUNDING[dtype] if ranks > 1 else (0, 0)
    limit += relative * (np.abs(inputs.sum(axis=0)) + limit) + absolute
    error = np.abs(found.result.double().numpy() - inputs.sum(axis=0))
    assert (error <= limit + 2.0**-50 * np.abs(inputs).sum(axis=0)).all()


def test_a_bucket_that_is_not_finite_touches_no_other():
    x = torch.randn(4, 640, generator=torch.Generator().manual_seed(0))
    x[2, 70] = float("inf")
    x[3, 200] = float("nan")
    for algorithm in ("oneshot", "sra"):
        found = torch_cgx.simulate(list(x), {"bits": 4, "bucket_size": 64}, algorithm).result
        bad = torch.zeros(10, dtype=torch.bool)
        bad[[1, 3]] = True
        assert torch.equal(found.view(10, 64).isnan().all(1), bad)
        assert torch.equal(found.view(10, 64).isfinite().all(1), ~bad)


def _shard(rank, world_size, x):
    output = torch.zeros(x.shape[1] // world_size)
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(nonfinite="raise"))
    raised = False
    try:
        torch_cgx.reduce_scatter_single(output, x[rank], config={"bits": 4}, group=group)
    except torch_cgx.NonFiniteError:
        raised = True
    torch_cgx.all_reduce(torch.ones(8), group=group)  # the group stays usable
    return raised, output


def test_nonfinite_in_reduce_scatter():
    x = torch.ones(2, 2048)
    x[0, 3] = float("inf")  # on its owner
    (first, kept), (second, _) = run_pooled(_shard, 2, x)
    assert first and second
    assert kept[3].isinf() and kept.isinf().sum() == 1
    x = torch.ones(2, 2048)
    x[:, 5] = 3e38  # finite, but their sum is not
    assert [raised for raised, _ in run_pooled(_shard, 2, x)] == [True, False]


def _flushing(rank, world_size, x):
    torch.set_flush_denormal(rank == 1)
    try:
        mine = x[rank].clone()
        torch_cgx.all_reduce(mine, config={"bits": 4, "bucket_size": 64})
    finally:
        torch.set_flush_denormal(False)
    return mine.view(torch.int32)


def test_flushing_of_subnormals_changes_nothing():
    x = torch.randn(2, 500, generator=torch.Generator().manual_seed(0)) * 2.0**-130
    found = run_pooled(_flushing, 2, x)
    expected = torch_cgx.simulate(list(x), {"bits": 4, "bucket_size": 64}).result
    assert all(torch.equal(one, expected.view(torch.int32)) for one in found)
    assert expected.count_nonzero() > 400


def _flushing_pool(rank, world_size, x):
    """The threads that torch starts for this one's loops inherit its mode, and keep it."""
    torch.set_num_threads(2)
    torch.set_flush_denormal(rank == 1)
    torch.ones(1 << 20).add_(1)
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(inner_reduction="SRA"))
    mine = x[rank].clone()
    dist.all_reduce(mine, group=group)
    return mine.view(torch.int16)


def test_flushing_of_subnormals_on_threads_of_torch_changes_nothing():
    x = torch.randint(1, 60, (2, 1 << 19), generator=torch.Generator().manual_seed(0))
    found = run_ranks(_flushing_pool, 2, x.to(torch.int16).view(torch.bfloat16))
    assert all(torch.equal(one, x.sum(0).to(torch.int16)) for one in found)
