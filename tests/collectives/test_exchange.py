"""torch_cgx.broadcast and all_to_all_single over real ranks, against the codec's operators."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_cgx
from tests.calls import failure
from tests.collectives.pieces import CODECS, DTYPES, SIZES, decoded, exchanged, rows_of, values
from tests.distributed import run_pooled

DRAWS = ("rotated",)  # signs, by the number of the call


def _close(codec, got, wanted):
    if codec._text.startswith(DRAWS):
        return got.shape == wanted.shape and (
            got.numel() == 0 or (got - wanted).abs().max() <= 4 * wanted.abs().max()
        )
    return torch.equal(got, wanted)


def _broadcasts(rank, size):
    results = []
    for number, n in enumerate(SIZES):
        codec, dtype = CODECS[number % len(CODECS)], DTYPES[number % len(DTYPES)]
        root = number % size
        x = values(rank, n, dtype=dtype)
        work = torch_cgx.broadcast(x, root, config=codec, async_op=number % 2 == 1)
        if work is not None:
            work.wait()
        wanted = values(root, n, dtype=dtype)
        if size > 1:
            wanted = decoded(codec, wanted)
        assert _close(codec, x, wanted), (n, codec, dtype)
        results.append(x)
    exact = values(rank, 3, 5).double()
    torch_cgx.broadcast(exact, group_src=size - 1)
    assert torch.equal(exact, values(size - 1, 3, 5).double())
    return results


@pytest.mark.parametrize("size", [1, 2, 3])
def test_broadcast_rounds_once_and_all_ranks_get_the_same_bits(size):
    first, *others = run_pooled(_broadcasts, size)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def _exchanges(rank, size):
    for number, codec in enumerate(CODECS):
        for dtype in DTYPES:
            for unequal in (False, True):
                for width in (0, 1, 33, 300):
                    rows = rows_of(size, unequal)
                    inputs = [values(r, sum(rows[r]), width, dtype=dtype) for r in range(size)]
                    outs = [rows[r][rank] for r in range(size)]
                    output = torch.empty(sum(outs), width, dtype=dtype)
                    splits = (outs, rows[rank]) if unequal else (None, None)
                    work = torch_cgx.all_to_all_single(
                        output, inputs[rank], *splits, config=codec, async_op=number % 2 == 1
                    )
                    if work is not None:
                        work.wait()
                    wanted = exchanged(codec, inputs, rows, rank)
                    assert _close(codec, output, wanted), (codec, dtype, unequal, width)
    exact = torch.arange(2 * size) + 100 * rank
    out = torch.empty_like(exact)
    torch_cgx.all_to_all_single(out, exact)
    assert out.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_to_all_encodes_each_piece_by_itself_and_keeps_the_own_one(size):
    run_pooled(_exchanges, size)


@pytest.mark.parametrize("hosts", ["ab", "abc"])
def test_ranks_on_several_hosts_get_the_same(hosts):
    env = [{"CGX_HOST_ID": host} for host in hosts]
    first, *others = run_pooled(_broadcasts, len(hosts), env=env)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    run_pooled(_exchanges, len(hosts), env=env)
    run_pooled(_feedback, len(hosts), torch.float32, torch.float32, env=env)


def _feedback(rank, size, dtype, residual_dtype):
    codec = CODECS[0]
    root = size - 1
    owed, sent, got = torch.zeros(300, dtype=residual_dtype), torch.zeros(300), torch.zeros(300)
    for step in range(4):
        x = values(10 * step + root, 300, dtype=dtype)
        sent += x
        torch_cgx.broadcast(x, root, config=codec if step < 3 else None, residual=owed)
        got += x
    assert (owed.abs().max() == 0) == (rank != root or (dtype == torch.float32)), owed
    if rank == root:
        assert (sent - got - owed).abs().max() < (1e-5 if residual_dtype == torch.float32 else 0.1)

    owed = torch.zeros(2 * size, 50, dtype=residual_dtype)
    sent, got = torch.zeros(2 * size, 50), torch.zeros(2 * size, 50)
    for step in range(3):
        x = values(10 * step + rank, 2 * size, 50, dtype=dtype)
        sent += x
        y = torch.empty_like(x)
        torch_cgx.all_to_all_single(y, x, config=codec, residual=owed)
        got += y
    back = torch.empty_like(got)
    dist.all_to_all_single(back, got)  # what the receivers got of this rank
    assert (sent - back - owed).abs().max() < (1e-5 if residual_dtype == torch.float32 else 0.1)
    own = owed[2 * rank : 2 * rank + 2].abs().max()
    assert dtype != torch.float32 or own == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16])
def test_what_went_in_comes_out_or_is_owed(dtype, residual_dtype):
    run_pooled(_feedback, 3, dtype, residual_dtype)


def _resumed(rank, size):
    codec = torch_cgx.codecs.MaxMin(bits=2, bucket_size=64, rounding="stochastic", seed=3)
    found = []
    for steps in ((5, 5, 6), (5, 5, 6)):
        run = []
        for step in steps:
            x = values(0, 200)
            torch_cgx.broadcast(x, config=codec, step=step)
            y = torch.empty(2 * size, 64)
            torch_cgx.all_to_all_single(y, values(rank, 2 * size, 64), config=codec, step=step)
            run.append((x, y))
        found.append(run)
        torch_cgx.broadcast(torch.ones(3), config=codec, step=99)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(found[0][0][0], found[0][1][0]), "calls of a step draw other numbers"
    assert not torch.equal(found[0][0][0], found[0][2][0])


def test_a_step_repeats_the_random_numbers():
    run_pooled(_resumed, 2)


def _refused(rank, size):
    x, four = values(rank, 8), {"bits": 4}
    calls = {
        "type": lambda: torch_cgx.broadcast([1.0], config=four),
        "dtype": lambda: torch_cgx.broadcast(x.double(), config=four),
        "strides": lambda: torch_cgx.broadcast(x.view(2, 4).t(), config=four),
        "root": lambda: torch_cgx.broadcast(x, 7, config=four),
        "both roots": lambda: torch_cgx.broadcast(x, 0, group_src=0, config=four),
        "key": lambda: torch_cgx.broadcast(x, config={"bit": 4}),
        "async": lambda: torch_cgx.broadcast(x, 0, None, four),
        "residual": lambda: torch_cgx.broadcast(x, config=four, residual=torch.zeros(9)),
        "one bit": lambda: torch_cgx.broadcast(x, config={"bits": 1}, residual=torch.zeros(8)),
        "shared": lambda: torch_cgx.broadcast(x, config=four, residual=x),
        "step": lambda: torch_cgx.broadcast(x, config=four, step=-1),
        "rows": lambda: torch_cgx.all_to_all_single(torch.zeros(7), torch.zeros(7), config=four),
        "sum": lambda: torch_cgx.all_to_all_single(x.clone(), x, [4, 4], [4, 3], config=four),
        "count": lambda: torch_cgx.all_to_all_single(x.clone(), x, [8], [4, 4], config=four),
        "negative": lambda: torch_cgx.all_to_all_single(x.clone(), x, [9, -1], None, config=four),
        "split": lambda: torch_cgx.all_to_all_single(x.clone(), x, [4, 4.0], None, config=four),
        "own": lambda: torch_cgx.all_to_all_single(
            x.clone(), x, [3, 5] if rank == 0 else [5, 3], None, config=four
        ),
        "dtypes": lambda: torch_cgx.all_to_all_single(x.half(), x, config=four),
    }
    found = {name: failure(call) for name, call in calls.items()}
    torch_cgx.broadcast(y := torch.full((8,), rank + 1.0), config=four)
    assert torch.all(y == 1), "the group is as usable as before"
    return found


def test_bad_arguments_are_named_before_anything_is_sent():
    for found in run_pooled(_refused, 2):
        for name, words in {
            "type": ("TypeError", "list"),
            "dtype": ("ValueError", "float64", "float32"),
            "strides": ("ValueError", "not contiguous"),
            "root": ("ValueError", "7"),
            "both roots": ("ValueError", "allowed: one of them"),
            "key": ("ValueError", "'bit'"),
            "async": ("TypeError", "async_op", "config=..."),
            "residual": ("ValueError", "[9]", "[8]"),
            "one bit": ("ValueError", "1"),
            "shared": ("ValueError", "shares memory"),
            "step": ("ValueError", "step=-1"),
            "rows": ("ValueError", "7 rows", "multiple of 2"),
            "sum": ("ValueError", "input_split_sizes=[4, 3]", "8 in all"),
            "count": ("ValueError", "output_split_sizes=[8]"),
            "negative": ("ValueError", "output_split_sizes=[9, -1]"),
            "split": ("TypeError", "[4, 4.0]"),
            "own": ("ValueError", "to itself"),
            "dtypes": ("ValueError", "float16", "float32"),
        }.items():
            for word in words:
                assert word in found[name], (name, found[name])


def _differing(rank, size):
    x = values(0, 1000)
    return failure(lambda: torch_cgx.broadcast(x, config={"bits": 4 + 4 * rank}))


def test_ranks_with_other_configurations_get_an_error():
    for found in run_pooled(_differing, 2, group_timeout=10):
        assert found.startswith("MismatchError"), found


def _exact_on_one_host(rank, size):
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(intra_compress=False))
    x = values(0, 100)
    torch_cgx.broadcast(x, group=group, config={"bits": 2})
    return torch.equal(x, values(0, 100))


def test_intra_compress_holds_for_explicit_calls():
    assert run_pooled(_exact_on_one_host, 2) == [True, True]
