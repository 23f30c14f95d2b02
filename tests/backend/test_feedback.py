"""`residual=` of the calls of torch_cgx, over real ranks."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.distributed import run_pooled
from torch_cgx import codecs

N = 5000
CONFIG = {"bits": 2, "bucket_size": 64}


def _gradient(rank, n=N, dtype=torch.float32):
    return torch.randn(n, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _call_of_every_kind(rank, size):
    """name -> (what went in, what came out of this rank, residual), over three calls each."""
    found = {}
    tuned = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=3, autotune=True))
    whole = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=3))
    calls = {
        "config": lambda x, r: torch_cgx.all_reduce(x, config=CONFIG, residual=r),
        "codec": lambda x, r: torch_cgx.all_reduce(x, config=codecs.Rotated(bits=1), residual=r),
        "layers": lambda x, r: torch_cgx.all_reduce(
            x, layers=[(4000, CONFIG), (500, None), (500, {"bits": 16})], residual=r
        ),
        "exact": lambda x, r: torch_cgx.all_reduce(x, config={"bits": 32}, residual=r),
        "group": lambda x, r: torch_cgx.all_reduce(x, group=whole, residual=r),
        "plain group": lambda x, r: torch_cgx.all_reduce(x, residual=r),
        "tuned group": lambda x, r: torch_cgx.all_reduce(x, group=tuned, residual=r),
        "async": lambda x, r: torch_cgx.all_reduce(
            x, config=CONFIG, residual=r, async_op=True
        ).wait(),
    }
    for name, call in calls.items():
        residual = torch.zeros(N)
        went_in, came_out = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
        for step in range(3):
            x = _gradient(rank + 10 * step)
            went_in += x
            call(x, residual)
            came_out += x
        found[name] = (went_in, came_out, residual)
    return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_went_in_comes_out_or_is_owed(size):
    ranks = run_pooled(_call_of_every_kind, size)
    for name in ranks[0]:
        went_in = sum(found[name][0] for found in ranks)
        owed = sum(found[name][2].double() for found in ranks)
        came_out = ranks[0][name][1]
        assert all(torch.equal(found[name][1], came_out) for found in ranks)
        assert (went_in - came_out - owed).abs().max() < 1e-5, name
        paid = name in ("exact", "plain group") or size == 1
        assert (owed.abs().max() == 0) == paid, name


def _shards(rank, size):
    residual, own = torch.zeros(N * size), torch.zeros(N)
    went_in, came_out = torch.zeros(N * size).double(), torch.zeros(N).double()
    gathered = torch.zeros(N * size).double()
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=3))
    for step in range(3):
        x, y = _gradient(rank + 10 * step, N * size), torch.empty(N)
        how = ({"config": CONFIG}, {"group": group}, {"config": {"bits": 32}})[step]
        went_in += x
        torch_cgx.reduce_scatter_single(y, x, residual=residual, **how)
        came_out += y
        shard = _gradient(rank)
        how = {} if step == 2 else {"config": CONFIG}
        torch_cgx.all_gather_single(out := torch.empty(N * size), shard, residual=own, **how)
        gathered += out
    return went_in, came_out, residual, gathered, own


@pytest.mark.parametrize("size", [1, 3])
def test_reduce_scatter_and_all_gather_keep_a_residual(size):
    ranks = run_pooled(_shards, size)
    left = sum(went_in - residual.double() for went_in, _, residual, _, _ in ranks)
    assert (left - torch.cat([came_out for _, came_out, _, _, _ in ranks])).abs().max() < 1e-5
    for rank, (_, _, _, gathered, own) in enumerate(ranks):
        assert torch.equal(gathered, ranks[0][3])
        mine = gathered[rank * N : (rank + 1) * N]
        assert (3 * _gradient(rank).double() - mine - own).abs().max() < 1e-5
        assert own.abs().max() == 0  # the last call was exact, and paid


def _one_rank_without(rank, size):
    x = _gradient(rank)
    residual = torch.zeros(N) if rank == 0 else None
    torch_cgx.all_reduce(x, config=CONFIG, residual=residual)
    return x


def test_each_rank_decides_for_itself():
    one, other = run_pooled(_one_rank_without, 2)
    assert torch.equal(one, other)


def _skipped_step(rank, size):
    """A step whose gradients overflow, as under a GradScaler that starts too high."""
    residual = torch.zeros(N)
    torch_cgx.all_reduce(_gradient(rank), config=CONFIG, residual=residual)
    before = residual.clone()
    x = _gradient(rank)
    if rank == 1:
        x[100] = torch.inf
    torch_cgx.all_reduce(x, config=CONFIG, residual=residual)
    return before, x, residual


def test_a_skipped_step_does_not_poison_the_residual():
    for rank, (before, x, residual) in enumerate(run_pooled(_skipped_step, 2)):
        assert x[64:128].isnan().all()
        assert x[:64].isfinite().all()
        assert residual.isfinite().all()
        if rank == 1:
            assert torch.equal(residual[64:128], before[64:128])


def _bad(rank, size):
    x = torch.ones(8)
    both = torch.ones(16)
    meta = torch.ones(8, device="meta")
    given = {
        "list": (x, [0.0] * 8),
        "shape": (x, torch.zeros(9)),
        "shape of another rank": (x.view(2, 4), torch.zeros(8)),
        "dtype": (x, torch.zeros(8, dtype=torch.float64)),
        "half": (x, torch.zeros(8).half()),
        "device": (x, meta),
        "strides": (x, torch.zeros(16)[::2]),
        "expanded": (x, torch.zeros(1).expand(8)),
        "sparse": (x, torch.zeros(8).to_sparse()),
        "same memory": (x, x),
        "part of the memory": (both[:8], both[4:12]),
        "int tensor": (torch.ones(8, dtype=torch.int32), torch.zeros(8)),
    }
    errors = {}
    for name, (tensor, residual) in given.items():
        try:
            torch_cgx.all_reduce(tensor, config={"bits": 32}, residual=residual)
        except (TypeError, ValueError) as error:
            errors[name] = str(error)
    try:
        torch_cgx.all_reduce(x, op=dist.ReduceOp.MAX, residual=torch.zeros(8))
    except ValueError as error:
        errors["op"] = str(error)
    out = torch.ones(8 * size)
    for name, call in {
        "reduce_scatter": lambda: torch_cgx.reduce_scatter_single(x, out, residual=torch.zeros(8)),
        "all_gather": lambda: torch_cgx.all_gather_single(out, x, residual=torch.zeros(16)),
    }.items():
        try:
            call()
        except ValueError as error:
            errors[name] = str(error)
    torch_cgx.all_reduce(x)  # the group works
    return errors, x


def test_bad_residuals_are_refused_before_anything_is_sent():
    wanted = {
        "list": "residual is of type list; allowed: torch.Tensor",
        "shape": "the residual has the shape [9]; allowed: the input's, [8]",
        "shape of another rank": "the residual has the shape [8]; allowed: the input's, [2, 4]",
        "dtype": "the residual is Double; allowed: float32, bfloat16",
        "half": "the residual is Half; allowed",
        "device": "the residual is on meta; allowed: the input's device, cpu",
        "strides": "not contiguous (strides [2])",
        "expanded": "not contiguous",
        "sparse": "allowed: torch.strided",
        "same memory": "shares memory with the input",
        "part of the memory": "shares memory with the input",
        "int tensor": "of a Int tensor on cpu with the op SUM; allowed: float32",
        "op": "with the op MAX; allowed",
        "reduce_scatter": "the residual has the shape [8]; allowed: the input's, [16]",
        "all_gather": "the residual has the shape [16]; allowed: the input's, [8]",
    }
    for errors, x in run_pooled(_bad, 2):
        assert errors.keys() == wanted.keys()
        for name, text in wanted.items():
            assert text in errors[name], (name, errors[name])
        assert torch.equal(x, torch.full((8,), 2.0))


def _one_bit(rank, size):
    """maxmin at 1 bit, wherever a call may get it from."""
    found = {}
    whole = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=1))
    by_env = dist.new_group(backend="cgx")
    x, y, n = torch.ones(N * size), torch.ones(N), N * size
    bits = {"bits": 1}
    stochastic = {"bits": 1, "rounding": "stochastic"}
    both = torch_cgx.Layer(N, None), torch_cgx.Layer(n - N, bits)
    calls = {
        "config": lambda r: torch_cgx.all_reduce(x, config=bits, residual=r),
        "stochastic": lambda r: torch_cgx.all_reduce(x, config=stochastic, residual=r),
        "codec": lambda r: torch_cgx.all_reduce(x, config=codecs.MaxMin(1, 64), residual=r),
        "layers": lambda r: torch_cgx.all_reduce(x, layers=both, residual=r),
        "group": lambda r: torch_cgx.all_reduce(x, group=whole, residual=r),
        "environment": lambda r: torch_cgx.all_reduce(x, group=by_env, residual=r),
        "async": lambda r: torch_cgx.all_reduce(x, config=bits, residual=r, async_op=True),
        "reduce_scatter": lambda r: torch_cgx.reduce_scatter_single(y, x, config=bits, residual=r),
        "its group": lambda r: torch_cgx.reduce_scatter_single(y, x, group=whole, residual=r),
        "all_gather": lambda r: torch_cgx.all_gather_single(x, y, config=bits, residual=r[:N]),
    }
    os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"] = "1"
    for name, call in calls.items():
        residual = torch.full((n,), 0.5)
        try:
            call(residual)
        except ValueError as error:
            found[name] = str(error)
        assert torch.equal(residual, torch.full((n,), 0.5))
    del os.environ["CGX_COMPRESSION_QUANTIZATION_BITS"]
    torch_cgx.all_reduce(x, config=bits)  # without a residual: allowed, and the group works
    return set(calls) - set(found), set(found.values())


def test_maxmin_at_one_bit_is_refused_before_anything_is_sent():
    for missing, texts in run_pooled(_one_bit, 2):
        assert missing == set()
        for text in texts:
            assert "'maxmin bits=1 bucket_size=" in text and "residuals grow without bound" in text
            assert "allowed at 1 bit: codec 'rotated' or 'trellis'" in text


def _raises(rank, size):
    os.environ["CGX_NONFINITE"] = "raise"
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(nonfinite="raise"))
    residual = torch.zeros(N)
    if rank == 1:
        residual[7] = torch.nan
    with pytest.raises(torch_cgx.NonFiniteError):
        torch_cgx.all_reduce(_gradient(rank), config=CONFIG, group=group, residual=residual)
    return True


def test_a_residual_that_is_not_finite_raises_where_values_do():
    assert run_pooled(_raises, 2) == [True, True]
