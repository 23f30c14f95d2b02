"""torch.compile around collectives, DDP and FSDP2: over cgx as over gloo.

Most with the backend "aot_eager", which traces as inductor does and compiles nothing.
"""

from __future__ import annotations

import contextlib
import shutil
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._dynamo import compiled_autograd
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from cgx_utils import AdaptiveBits, CGXState, Monitor, cgx_hook
from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import Net, learned, train, values


def _functional(x, y):
    group = dist.group.WORLD
    total = funcol.all_reduce(x * 2, "sum", group)
    parts = funcol.reduce_scatter_tensor(x + y, "avg", 0, group)
    gathered = funcol.all_gather_tensor(parts.relu(), 0, group)
    moved = funcol.all_to_all_single(total - 1, None, None, group)
    first, second = funcol.all_reduce_coalesced([x, y], "sum", group)
    return (total * gathered + moved, first - second)


def _in_place(x):
    y = x * 3
    dist.all_reduce(y)
    out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(out, y + 1)
    mine = torch.empty_like(x)
    dist.reduce_scatter_tensor(mine, out)
    return y, out * 2, mine


def _traced(rank, world_size, backend):
    torch._dynamo.reset()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
    y = torch.arange(32.0).reshape(8, 4)
    found = []
    for function, args in ((_functional, (x, y)), (_in_place, (x,))):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        found.append([t.clone() for t in compiled(*args)])
        for ours, eager in zip(found[-1], function(*args), strict=True):
            torch.testing.assert_close(ours, eager + 0)
    return found


def test_collectives_in_one_graph():
    same_as_gloo(_traced, 2, "aot_eager")


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_collectives_in_one_graph_under_inductor():
    # Floats may be fused differently from one compilation to the next, but this code is the same.
    same_as_gloo(_traced, 2, "inductor", timeout=300)


def _ddp(rank, world_size, options, steps=3):
    torch._dynamo.reset()
    options = dict(options)
    mode = options.pop("optimize_ddp", True)
    hook = options.pop("hook", None)
    # Small first buckets: dynamo refuses a bucket_cap_mb below the first one's 1 MiB, and splits
    # the graph at buckets.
    small = mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 10_000)
    with small, torch._dynamo.config.patch(optimize_ddp=mode):
        model = DDP(Net(), bucket_cap_mb=0.05, **options)
        if hook:
            model.register_comm_hook(CGXState(config=hook), cgx_hook)
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = train(compiled, rank, steps, optimizer)
    return losses, values(model.module.named_parameters())


def _ranks_agree(found):
    first, second = found
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


@pytest.mark.parametrize(
    "options",
    [{}, {"static_graph": True}, {"optimize_ddp": False}, {"optimize_ddp": "python_reducer"}],
    ids=["split at buckets", "static_graph", "whole", "python_reducer"],
)
def test_ddp(options):
    _ranks_agree(same_as_gloo(_ddp, 2, options))


def test_ddp_with_cgx_hook_converges():
    found = [run.value for run in over("cgx", _ddp, 2, {"hook": {"bits": 4}}, 60, timeout=120)]
    assert all(learned(losses) for losses, _ in found)
    _ranks_agree(found)


def _fsdp2(rank, world_size, steps=3):
    torch._dynamo.reset()
    net = Net()
    mesh = dist.init_device_mesh("cpu", (world_size,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
        block.compile(backend="aot_eager")
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    losses = train(net, rank, steps, optimizer)
    return losses, values((name, p.full_tensor()) for name, p in net.named_parameters())


def test_fully_shard():
    _ranks_agree(same_as_gloo(_fsdp2, 2))


def test_fully_shard_compressed_converges():
    found = compressed(_fsdp2, 2, 60, bits=8)
    assert all(learned(losses) for losses, _ in found)
    _ranks_agree(found)


def _python_reducer(rank, world_size, compiled_backward, steps):
    """All that the hook offers, without buckets."""
    torch._dynamo.reset()
    state = CGXState(
        config={"bits": 4},
        error_feedback=True,
        adaptive=AdaptiveBits(average_bits=6, candidates=(4, 8), every=1),
    )
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DDP(Net())
        model.register_comm_hook(state, cgx_hook)
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        records = []
        backward = contextlib.nullcontext()
        if compiled_backward:
            backward = compiled_autograd._enable(torch.compile(backend="aot_eager"))
        with Monitor(model, 2, records.append), backward:
            losses = train(compiled, rank, steps, optimizer)
    rows = {row["name"]: (row["bits"], row["why"]) for row in state.report().rows}
    decided = state.state_dict()["adaptive"]
    return losses, values(model.module.named_parameters()), rows, decided, records


@pytest.mark.parametrize("compiled_backward", [False, True], ids=["eager", "compiled autograd"])
def test_python_reducer_with_cgx_hook_converges(compiled_backward):
    steps = 40
    found = [
        run.value for run in over("cgx", _python_reducer, 2, compiled_backward, steps, timeout=240)
    ]
    _ranks_agree(found)
    for losses, parameters, rows, decided, _ in found:
        assert learned(losses)
        assert set(rows) == set(parameters)
        assert decided["step"] == steps + 1 and decided == found[0][3]
        compressed = {name for name, (_, why) in rows.items() if not why}
        assert compressed == set(decided["bits"]) and compressed
        assert all(rows[name][0] in (4, 8) for name in compressed)
    assert [record["step"] for record in found[0][4]] == list(range(2, steps + 1, 2))
    assert compressed <= set(found[0][4][-1]["errors"])
