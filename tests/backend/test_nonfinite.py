"""NaN and Inf on every way through the engine: they reach every rank, in their bucket and nowhere
else, or raise on every rank.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled

N, BUCKET = 640, 64
VALUES = (-float("nan"), float("inf"), -float("inf"))
# The NaN of each type that is written, whatever came in (csrc/base/nan.h).
NAN = {torch.float32: 0x7FC00000, torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CONFIGS = [
    *({"bits": bits, "bucket_size": BUCKET} for bits in (1, 4, 8)),
    {"bits": 4, "bucket_size": BUCKET, "rounding": "stochastic"},
    {"bits": 4, "bucket_size": BUCKET * 3, "skip_incomplete_buckets": True},
    {"bits": 16},
    {"bits": 16, "half": "fp16"},
    {"bits": 32},
]


def hit_by(position: int, config: dict) -> slice:
    """The values that one at `position` may take along."""
    bucket = config.get("bucket_size", 1)
    if config.get("skip_incomplete_buckets") and position >= N - N % bucket:
        bucket = 1
    start = position // bucket * bucket
    return slice(start, start + bucket)


def check(result: torch.Tensor, hit: slice, position: int, exact: bool, where: tuple) -> None:
    bad = ~result.isfinite()
    assert bad[position], (where, "the value is lost")
    bad[hit] = False
    assert not bad.any(), (where, "other buckets are touched")
    if exact or hit.stop - hit.start == 1:
        return
    assert (~result[hit].isfinite()).all(), (where, "only a part of the bucket")


def check_nan(result: torch.Tensor, where: tuple) -> None:
    bits = result.view(torch.int32 if result.itemsize == 4 else torch.int16)
    assert (bits[result.isnan()] == NAN[result.dtype]).all(), (where, "another NaN")


def propagate(rank: int, size: int, reduction: str) -> str:
    options = torch_cgx.Options(cross_reduction=reduction)
    if len(set(torch_cgx._backend.backend_of().hosts())) == 1:
        options = torch_cgx.Options(inner_reduction=reduction)
    group = dist.new_group(pg_options=options)
    texts = []
    cases = itertools.product(VALUES, DTYPES, CONFIGS, range(size))
    for number, (value, dtype, config, source) in enumerate(cases):
        where = (value, dtype, config, source, reduction)
        position = (number * 97) % N
        clean = torch.randn(N, generator=torch.Generator().manual_seed(number + rank)).to(dtype)
        dirty = clean.clone()
        if rank == source:
            dirty[position] = value
        exact = config["bits"] == 32
        hit = hit_by(position, config)

        x = dirty.clone()
        torch_cgx.all_reduce(x, group=group, config=config)
        check(x, hit, position, exact, ("all_reduce", *where))
        check_nan(x, ("all_reduce", *where))
        if exact:
            assert torch.equal(x[hit].isnan(), torch.tensor([value]).isnan()), where
        texts.append(x.view(torch.uint8).sum().item())

        whole = torch.empty(N * size, dtype=dtype)
        torch_cgx.all_gather_single(whole, dirty, group=group, config=config)
        parts = whole.view(size, N)
        check(parts[source], hit, position, exact, ("all_gather", *where))
        if not exact:  # exact ones are not the engine's
            check_nan(parts[source], ("all_gather", *where))
        assert all(parts[r].isfinite().all() for r in range(size) if r != source), where

        shard = torch.empty(N, dtype=dtype)
        torch_cgx.reduce_scatter_single(shard, dirty.repeat(size), group=group, config=config)
        # The owner takes its own values, and those of its host, unrounded.
        assert not shard[position].isfinite(), ("reduce_scatter", *where)
        if not exact:
            check_nan(shard, ("reduce_scatter", *where))
        rest = ~shard.isfinite()
        rest[hit] = False
        assert not rest.any(), ("reduce_scatter", *where)
    return str(texts)


@pytest.mark.parametrize(
    ("hosts", "reduction"),
    [("aaa", "ONESHOT"), ("aaa", "SRA"), ("aaa", "RING"), ("aab", "AUTO"), ("abc", "RING")],
)
def test_they_reach_every_rank_in_their_bucket_and_no_other(hosts, reduction):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    results = run_pooled(propagate, len(hosts), reduction, env=env, timeout=90)
    assert len(set(results)) == 1


def refuse(rank: int, size: int) -> int:
    group = dist.new_group(pg_options=torch_cgx.Options(nonfinite="raise"))
    raised = 0
    cases = itertools.product(VALUES, DTYPES, CONFIGS, range(size))
    for number, (value, dtype, config, source) in enumerate(cases):
        dirty = torch.ones(N, dtype=dtype)
        if rank == source:
            dirty[(number * 97) % N] = value
        before = dirty.clone()
        whole, shard = torch.empty(N * size, dtype=dtype), torch.empty(N, dtype=dtype)
        kw = {"group": group, "config": config}
        calls = [
            lambda d=dirty, kw=kw: torch_cgx.all_reduce(d.clone(), **kw),
            lambda w=whole, d=dirty, kw=kw: torch_cgx.all_gather_single(w, d, **kw),
            lambda s=shard, d=dirty, kw=kw: torch_cgx.reduce_scatter_single(
                s, d.repeat(size), **kw
            ),
        ]
        # What the inner backend carries is not looked through.
        for call in calls if config["bits"] < 32 else calls[:1]:
            with pytest.raises(torch_cgx.NonFiniteError):
                call()
            raised += 1
        assert torch.equal(dirty.nan_to_num(), before.nan_to_num()), "inputs stay"
    x = torch.ones(N)
    torch_cgx.all_reduce(x, group=group, config=CONFIGS[1])
    assert torch.all(x == size), "the group goes on"
    return raised


@pytest.mark.parametrize("hosts", ["aa", "aab"])
def test_they_raise_on_every_rank(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    results = run_pooled(refuse, len(hosts), env=env, timeout=90)
    assert set(results) == {len(VALUES) * len(DTYPES) * len(hosts) * (7 * 3 + 1)}


def moves(rank: int, size: int) -> None:
    """Encoded moves look at what they encode; exact ones move any bits."""
    group = dist.new_group(pg_options=torch_cgx.Options(nonfinite="raise"))
    for value, source, n in itertools.product(VALUES, range(size), (N, 200_000)):
        bad = torch.ones(n // size * size)
        if rank == source:
            bad[-1] = value
        kw = {"group": group, "config": {"bits": 4, "bucket_size": BUCKET}}
        residual = torch.zeros(len(bad))
        if rank == source:
            residual[-1] = value
        for call in (
            lambda x=bad, s=source, kw=kw: torch_cgx.broadcast(x.clone(), s, **kw),
            lambda x=bad, kw=kw: torch_cgx.all_to_all_single(torch.empty_like(x), x, **kw),
            lambda x=bad, r=residual, kw=kw: torch_cgx.all_to_all_single(
                torch.empty_like(x), torch.ones_like(x), residual=r, **kw
            ),
        ):
            with pytest.raises(torch_cgx.NonFiniteError):
                call()
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex64):
        x = torch.full((N,), VALUES[1]).to(dtype)
        parts = [torch.zeros_like(x) for _ in range(size)]
        whole = torch.zeros(N * size, dtype=dtype)
        dist.broadcast(x.clone(), 0, group=group)
        dist.all_gather(parts, x, group=group)
        dist.all_gather_single(whole, x, group=group)
        dist.all_to_all(parts, [x] * size, group=group)
        dist.gather(x, parts if rank == 0 else None, 0, group=group)
        dist.scatter(parts[0], [x] * size if rank == 0 else None, 0, group=group)
        assert whole.isinf().all() and all(part.isinf().all() for part in parts)
    x = torch.ones(N)
    dist.all_reduce(x, group=group)
    assert torch.all(x == size), "the group goes on"


@pytest.mark.parametrize("hosts", ["aaa", "ab", "aab"])
def test_encoded_moves_raise_on_every_rank_and_exact_ones_never(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    run_pooled(moves, len(hosts), env=env)
