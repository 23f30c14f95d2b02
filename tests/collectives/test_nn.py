"""torch_cgx.nn: values and gradients of first and second order, against torch's own over Gloo."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as torchs

import torch_cgx
from tests.calls import failure
from tests.collectives.pieces import decoded, exchanged, rows_of, values
from tests.distributed import run_pooled
from torch_cgx import codecs, nn

AVG = dist.ReduceOp.AVG


def _to_all(x, outs, ins, group):
    return torchs.all_to_all_single(x.new_empty(sum(outs), *x.shape[1:]), x, outs, ins, group)


def _scatter(x, size, group):
    shares = list(x.chunk(size))
    return torchs.reduce_scatter(torch.empty_like(shares[0]), shares, group=group)


def _derivatives(call, x):
    """The result, a gradient, and a gradient of that."""
    x = x.clone().requires_grad_()
    y = call(x)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    (first,) = torch.autograd.grad((y**3 * weights).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), x)
    return y.detach(), first.detach(), second


def _exact(rank, size, dtype):
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of names that it has replaced
    gloo = dist.new_group(backend="gloo")
    bits = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=2))  # of no account
    x = values(rank, 4 * size, 3, dtype=dtype)
    rows = rows_of(size, True)
    outs, ins = [rows[r][rank] for r in range(size)], rows[rank]
    uneven = values(rank, sum(ins), 3, dtype=dtype)
    pairs = {
        "all_reduce": (x, lambda a: nn.all_reduce(a, group=bits),
                       lambda a: torchs.all_reduce(a, group=gloo)),
        "average": (x, lambda a: nn.all_reduce(a, AVG, bits),
                    lambda a: torchs.all_reduce(a, group=gloo) / size),
        "all_gather": (x, lambda a: nn.all_gather_single(a, bits),
                       lambda a: torch.cat(torchs.all_gather(a, gloo))),
        "reduce_scatter": (x, lambda a: nn.reduce_scatter_single(a, group=bits),
                           lambda a: _scatter(a, size, gloo)),
        "average of shares": (x, lambda a: nn.reduce_scatter_single(a, AVG, bits),
                              lambda a: _scatter(a, size, gloo) / size),
        "all_to_all": (uneven, lambda a: nn.all_to_all_single(a, outs, ins, bits),
                       lambda a: _to_all(a, outs, ins, gloo)),
        "equal pieces": (x.t().contiguous().view(-1, 2),
                         lambda a: nn.all_to_all_single(a[: 2 * size], group=bits),
                         lambda a: _to_all(a[: 2 * size].contiguous(), [2] * size, [2] * size,
                                           gloo)),
    }  # fmt: skip
    bound = 1e-12 if dtype == torch.float64 else 1e-3
    for name, (tensor, mine, its) in pairs.items():
        for got, wanted in zip(_derivatives(mine, tensor), _derivatives(its, tensor), strict=True):
            assert got.shape == wanted.shape, name
            error = (got - wanted).abs().max() if got.numel() else 0
            assert error <= bound * (1 + wanted.abs().max() if got.numel() else 1), name
    strided = values(rank, 6, 4 * size, dtype=dtype).t()
    assert torch.equal(nn.all_reduce(strided), nn.all_reduce(strided.contiguous()))
    assert not strided.requires_grad and torch.equal(
        strided.t(), values(rank, 6, 4 * size).to(dtype)
    )


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_ones_equal_torchs(size, dtype):
    run_pooled(_exact, size, dtype)


def _compressed(rank, size):
    """Each direction has its own configuration."""
    there, back = codecs.MaxMin(bits=8, bucket_size=32), codecs.MaxMin(bits=2, bucket_size=32)
    rows = rows_of(size, True)
    outs, ins = [rows[r][rank] for r in range(size)], rows[rank]
    inputs = [values(r, sum(rows[r]), 40) for r in range(size)]
    x = inputs[rank].clone().requires_grad_()
    for forward, backward in ((there, back), (None, back), (there, None)):
        y = nn.all_to_all_single(x, outs, ins, forward=forward, backward=backward)
        assert torch.equal(y.detach(), exchanged(forward, inputs, rows, rank))
        weights = [values(10 + r, sum(rows[p][r] for p in range(size)), 40) for r in range(size)]
        (gradient,) = torch.autograd.grad((y * weights[rank]).sum(), x)
        home = [[rows[p][r] for p in range(size)] for r in range(size)]
        assert torch.equal(gradient, exchanged(backward, weights, home, rank))

    x = values(rank, 128).requires_grad_()
    y = nn.all_gather_single(x, forward=there, backward={"bits": 2, "bucket_size": 32})
    assert torch.equal(y.detach(), torch.cat([decoded(there, values(r, 128)) for r in range(size)]))
    (gradient,) = torch.autograd.grad(y.sum() * (rank + 1), x)
    assert torch.equal(gradient, torch.full((128,), sum(range(1, size + 1)) * 1.0))

    y = nn.all_reduce(x, forward=there, backward=back)
    z = values(rank, 128)
    torch_cgx.all_reduce(z, config=there)
    assert torch.equal(y.detach(), z)
    (gradient,) = torch.autograd.grad((y * values(20 + rank, 128)).sum(), x)
    w = values(20 + rank, 128)
    torch_cgx.all_reduce(w, config=back)
    assert torch.equal(gradient, w)

    x = values(rank, 64 * size).requires_grad_()
    y = nn.reduce_scatter_single(x, AVG, forward=there, backward=back)
    z = torch.empty(64)
    torch_cgx.reduce_scatter_single(z, x.detach(), AVG, config=there)
    assert torch.equal(y.detach(), z)
    (gradient,) = torch.autograd.grad((y * values(20 + rank, 64)).sum(), x)
    wanted = torch.empty(64 * size)
    torch_cgx.all_gather_single(wanted, values(20 + rank, 64), config=back)
    assert torch.equal(gradient, wanted / size)


@pytest.mark.parametrize("size", [2, 3])
def test_each_direction_has_its_configuration(size):
    run_pooled(_compressed, size)


def _compiled(rank, size):
    """One graph, without a break, and the values of the same function without a compiler."""
    eight, three = codecs.MaxMin(bits=8), torch_cgx.Options(bits=3)

    def function(x, weight):
        y = nn.all_to_all_single(x @ weight, forward={"bits": 8}, backward={"bits": 4})
        y = nn.all_reduce(y.relu(), forward=eight)
        y = nn.all_gather_single(y, dist.group.WORLD)
        y = nn.reduce_scatter_single(y, AVG, dist.group.WORLD, backward=three)
        return y.square().sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = []
    for call in (function, compiled, compiled):
        x, weight = values(rank, 4 * size, 4).requires_grad_(), values(9, 4, 4).requires_grad_()
        loss = call(x, weight)
        loss.backward()
        found.append((loss.detach(), x.grad, weight.grad))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_they_compile_into_one_graph():
    run_pooled(_compiled, 2, timeout=120)


def _refused(rank, size):
    x = values(rank, 4, 2)
    gloo = dist.new_group(backend="gloo")
    calls = {
        "op": lambda: nn.all_reduce(x, dist.ReduceOp.MAX),
        "forward": lambda: nn.all_reduce(x, forward={"bit": 4}),
        "backward": lambda: nn.all_gather_single(x, backward="4 bits"),
        "group": lambda: nn.all_reduce(x, group="world"),
        "gloo": lambda: nn.all_reduce(x, group=gloo, forward={"bits": 4}),
        "shares": lambda: nn.reduce_scatter_single(x[:3]),
        "rows": lambda: nn.all_to_all_single(x[:3]),
        "one": lambda: nn.all_to_all_single(x, [2, 2]),
        "count": lambda: nn.all_to_all_single(x, [4], [4]),
        "kind": lambda: nn.all_to_all_single(x, 2, 2),
        "sum": lambda: nn.all_to_all_single(x, [2, 2], [3, 2], forward={"bits": 4}),
        "scalar": lambda: nn.all_to_all_single(torch.tensor(1.0)),
    }
    return {name: failure(call) for name, call in calls.items()}


def test_bad_arguments_are_named():
    for found in run_pooled(_refused, 2):
        for name, words in {
            "op": ("ValueError", "MAX", "SUM, AVG"),
            "forward": ("ValueError", "forward: ", "'bit'"),
            "backward": ("TypeError", "backward: ", "'4 bits'"),
            "group": ("TypeError", "'world'"),
            "gloo": ("ValueError", "'gloo'"),
            "shares": ("ValueError", "(3, 2)", "multiple of 2"),
            "rows": ("ValueError", "3 rows", "multiple of 2"),
            "one": ("ValueError", "both, or neither"),
            "count": ("ValueError", "1 numbers", "2"),
            "kind": ("TypeError", "output_split_sizes=2", "a list"),
            "sum": ("ValueError", "input_split_sizes=[3, 2]", "4 in all"),
            "scalar": ("ValueError", "no dimension"),
        }.items():
            for word in words:
                assert word in found[name], (name, found[name])
