"""Functional collectives, with and without autograd, and torch.distributed.nn: over cgx as over
gloo. (Their first acquaintance is in tests/backend/test_collectives.py.)
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn

from tests.compat.compare import compressed, over, same_as_gloo


def _data(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def _all(rank, world_size):
    n, group = world_size, dist.group.WORLD
    x = _data(rank, 6 * n, 4)
    found = {}
    for op in ("sum", "avg", "max", "min", "product"):
        found[f"all_reduce {op}"] = funcol.all_reduce(x, op, group)
    for op in ("band", "bor", "bxor"):
        found[f"all_reduce {op}"] = funcol.all_reduce((x * 100).long(), op, group)
    for dim in (0, 1):
        found[f"all_gather {dim}"] = funcol.all_gather_tensor(x, dim, group)
        for op in ("sum", "avg"):
            found[f"reduce_scatter {op} {dim}"] = funcol.reduce_scatter_tensor(
                x.reshape(-1, 2 * n), op, dim, group
            )
    found["broadcast"] = funcol.broadcast(x, 1, group)
    found["coalesced all_reduce"] = funcol.all_reduce_coalesced([x, 2 * x], "sum", group)
    found["coalesced all_gather"] = funcol.all_gather_into_tensor_coalesced([x, 2 * x], group)
    found["coalesced reduce_scatter"] = funcol.reduce_scatter_tensor_coalesced(
        [x, 2 * x], "sum", [0, 0], group
    )
    found["all_to_all"] = funcol.all_to_all_single(x, None, None, group)
    sent, received = [r + 1 for r in range(n)], [rank + 1] * n
    found["uneven all_to_all"] = funcol.all_to_all_single(x[: sum(sent)], received, sent, group)
    found["permute"] = funcol.permute_tensor(x.view(-1), [(r + 1) % n for r in range(n)], group)
    listed = funcol.all_reduce(x, "sum", list(range(n)))  # ranks in place of a group
    mesh = dist.init_device_mesh("cpu", (n,))
    found["by mesh"] = funcol.all_reduce(listed, "sum", (mesh, 0))
    in_place = x.clone()
    funcol.all_reduce_inplace(in_place, "sum", group)
    found["in place"] = in_place
    out = torch.empty(n * x.shape[0], 4)
    found["gather in place"] = funcol.all_gather_tensor_inplace(out, x, group)
    return {key: _plain(value) for key, value in found.items()}


def _plain(value):
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.wait() if isinstance(value, funcol.AsyncCollectiveTensor) else value


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_functional_collectives(world_size):
    assert len(same_as_gloo(_all, world_size)[0]) == 24


def _gradients(rank, world_size):
    # Named: the default is the group that was there when torch.distributed.nn was imported.
    n, group = world_size, dist.group.WORLD
    weights = _data(10, 6 * n * n, 4)
    found = {}
    for name, call in {
        "all_gather": lambda x: funcol.all_gather_tensor_autograd(x, 0, group),
        "reduce_scatter": lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        "all_to_all": lambda x: funcol.all_to_all_single_autograd(x, None, None, group),
        "nn all_reduce": lambda x: dist_nn.all_reduce(x.clone(), group=group),
        "nn broadcast": lambda x: dist_nn.broadcast(x.clone(), 0, group),
        # Only the root has a result.
        "nn reduce": lambda x: dist_nn.reduce(x.clone(), 0, group=group) * float(rank == 0),
        "nn all_gather": lambda x: torch.cat(dist_nn.all_gather(x, group)),
        "nn gather": lambda x: torch.cat(dist_nn.gather(x, 0, group)),
        "nn scatter": lambda x: dist_nn.scatter([x * r for r in range(n)], 0, group),
        "nn reduce_scatter": lambda x: dist_nn.reduce_scatter(
            torch.empty(6, 4), [p.contiguous() for p in x.chunk(n)], group=group
        ),
        "nn all_to_all": lambda x: torch.cat(
            dist_nn.all_to_all([torch.empty(6, 4) for _ in range(n)], list(x.chunk(n)), group)
        ),
        "nn all_to_all_single": lambda x: dist_nn.all_to_all_single(
            torch.empty_like(x), x, group=group
        ),
    }.items():
        x = _data(rank, 6 * n, 4).requires_grad_(True)
        y = call(x)
        y = y.wait() if isinstance(y, funcol.AsyncCollectiveTensor) else y
        (y * weights[: y.shape[0]] * (rank + 1)).sum().backward()
        found[name] = (y.detach(), x.grad)
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_gradients_through_collectives(world_size):
    for values in same_as_gloo(_gradients, world_size):
        assert all(gradient is not None for _, gradient in values.values())


def _rough(rank, world_size):
    x = _data(rank, 64, 8)
    reduced = funcol.all_reduce(x, "sum", dist.group.WORLD)
    scattered = funcol.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD)
    largest = funcol.all_reduce(x, "max", dist.group.WORLD)
    return [_plain(t).clone() for t in (reduced, scattered, largest)]


def test_compressed():
    exact = over("gloo", _rough, 2)
    found = compressed(_rough, 2, bits=8)
    assert torch.equal(found[0][0], found[1][0])
    for ours, theirs in zip(found, exact, strict=True):
        for i, values in enumerate(ours):
            # 8 bits of a range of about 6 per rank and bucket: half a step each, two ranks.
            assert (values - theirs.value[i]).abs().max() <= (0.0 if i == 2 else 2 * 8 / 255 / 2)
        assert not torch.equal(ours[0], theirs.value[0])
