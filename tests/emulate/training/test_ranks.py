"""Two ranks: DistributedDataParallel with compressed gradients, FSDP2, and who draws what."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed import run_pooled
from tests.emulate.gemm.operands import draw
from tests.emulate.training.models import equal, gradients, images, mlp, net, step
from torch_cgx import emulate
from torch_cgx.emulate import Float

RANDOM = emulate.preset("e4m3", rounding="stochastic")
ELEMENTWISE = {"gradients": "e5m2", "weights": "bf16", "optimizer_state": Float(8, 5)}


def given(rank, number=0):
    return draw(8, 24, seed=10 * number + rank, dtype=torch.float32)


def gathered(tensors):
    """Of all ranks."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, [t.detach().clone() for t in tensors])
    return found


def _of_ddp(rank, world_size, recipe, before):
    from cgx_utils import CGXState, cgx_hook

    model = net()
    emulation = emulate.apply(model, recipe=recipe) if before else None
    parallel = DistributedDataParallel(model)
    parallel.register_comm_hook(CGXState(None, config={"bits": 8}, layer_min_size=16), cgx_hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if not before:
        emulation = emulate.apply(parallel, optimizer, recipe)
    x = images() * (1 + rank)
    losses = [float(step(parallel, optimizer, x)) for _ in range(4)]
    assert losses[-1] < losses[0]
    weights = gathered(model.parameters())
    assert equal(*weights)
    moments = gathered(optimizer.state[model.head.weight].values())
    assert equal(*moments)
    emulation.remove()
    assert [type(m) for m in model.modules()] == [type(m) for m in net().modules()]
    step(parallel, optimizer, x)
    return True


@pytest.mark.parametrize("before", [True, False], ids=["before DDP", "after"])
@pytest.mark.parametrize("recipe", ["smaq68", "nvfp4"])
def test_ranks_of_ddp_keep_equal_weights(recipe, before):
    assert run_pooled(_of_ddp, 2, recipe, before) == [True, True]


def _draws(rank, world_size):
    """Each rank rounds its own activations with its own numbers, and parameters with the same."""
    x, model = given(0), mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    emulate.apply(model, optimizer, gemm={"gradient": RANDOM}, first_last="cast", weights=RANDOM)
    with torch.no_grad():
        assert equal(*gathered([model(x)]))
    assert not equal(*gathered(gradients(model, x)))
    optimizer.step()
    assert equal(*gathered(model.parameters()))
    outputs = mlp(2)
    emulate.apply(outputs, activations=RANDOM)
    assert not equal(*gathered([outputs(x)]))
    layer = emulate.QuantLinear(24, 24, inputs={"input": RANDOM})
    layer.weight.data.copy_(torch.eye(24))
    assert not equal(*gathered([layer(x) - layer.bias]))
    return True


def test_ranks_draw_numbers_of_their_own():
    assert run_pooled(_draws, 2) == [True, True]


def test_a_process_group_may_be_made_later(monkeypatch):
    """As trainers do: apply() comes before fit()."""
    found = []
    for number in (0, 1, 1):
        model = mlp(2)
        emulate.apply(model, recipe="nvfp4", first_last="cast")
        with monkeypatch.context() as patch:
            patch.setattr(dist, "is_initialized", lambda: True)
            patch.setattr(dist, "get_rank", lambda *_, number=number: number)
            found.append(gradients(model, given(0)))
    assert equal(found[1], found[2]) and not equal(found[0], found[1])


# ---- FSDP2 ----


def sharded(model, mesh, each):
    from torch.distributed.fsdp import fully_shard

    for layer in model if each else ():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def full(model):
    return [p.full_tensor() for p in model.parameters()]


def unsharded(formats, steps):
    """What the shards of two ranks must be: one process with the mean of both gradients."""
    model = mlp(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    emulate.apply(model, optimizer, **formats)
    for number in range(steps):
        parts = [gradients_of_mean(model, given(rank, number)) for rank in range(2)]
        for p, a, b in zip(model.parameters(), *parts, strict=True):
            p.grad = (a + b) / 2
        optimizer.step()
    return list(model.parameters())


def gradients_of_mean(model, x):
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad for p in model.parameters()]


def _of_fsdp(rank, world_size):
    mesh = dist.init_device_mesh("cpu", (world_size,))
    every = {
        "mxfp8": {"recipe": "mxfp8"},
        "nvfp4": {"recipe": "nvfp4"},
        "elementwise": ELEMENTWISE,
        "both": {"gemm": "mxfp8_e4m3", **ELEMENTWISE},
        "smaq": {"recipe": "smaq68"},
    }
    for name, formats in every.items():
        results = []
        for before in (True, False):
            for each in (True, False):
                model = mlp(4)
                emulation = emulate.apply(model, **formats) if before else None
                sharded(model, mesh, each)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                if not before:
                    emulation = emulate.apply(model, optimizer, **formats)
                for number in range(2):
                    optimizer.zero_grad()
                    model(given(rank, number)).square().mean().backward()
                    optimizer.step()
                results.append(full(model))
                classes_change = before and each and name not in ("elementwise", "smaq")
                if classes_change:
                    with pytest.raises(RuntimeError, match="another class, FSDPEmulatedLinear"):
                        emulation.remove()
                    continue
                emulation.remove()
                assert not any("_cgx" in key for m in model.modules() for key in m.__dict__)
        assert all(equal(results[0], one) for one in results[1:]), name
        assert equal(*gathered(results[0]))
        if name in ("nvfp4", "smaq"):
            continue
        wanted = unsharded(formats, 2)
        if name == "elementwise":
            assert equal(results[0], wanted)
        for one, other in zip(results[0], wanted, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-4, atol=1e-4 if name == "mxfp8" else 2e-2
            )
    return True


def test_fsdp2_shards_before_or_after():
    """Formats of values by themselves have the bits of a model that is not sharded."""
    assert run_pooled(_of_fsdp, 2) == [True, True]


def _of_meshes(rank, world_size):
    """Replicas of a shard draw the same numbers, shards draw others; some ranks have no rows."""
    random = emulate.preset("e2m1", rounding="stochastic")
    formats = dict.fromkeys(("weights", "optimizer_state", "gradients"), random)
    found = {}
    for shape in ((1, 2), (2, 1)):
        mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
        model = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 1))
        for p in model.parameters():
            p.data.fill_(0.3)
        sharded(model, mesh, True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        emulate.apply(model, optimizer, **formats)
        for _ in range(2):
            model(given(0)).sum().backward()
            optimizer.step()
        found[shape] = gathered([p.to_local() for p in model.parameters()])
    assert equal(*found[2, 1])
    one, other = (shards[0] for shards in found[1, 2])
    assert one.shape == other.shape == (12, 24) and not torch.equal(one, other)
    assert set(one.unique().tolist()) == {0, 0.5}
    return True


def test_shards_and_replicas_of_fsdp2():
    assert run_pooled(_of_meshes, 2) == [True, True]


def _smaq_of_shards(rank, world_size):
    mesh = dist.init_device_mesh("cpu", (world_size,))
    model = sharded(nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 1)), mesh, True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    emulation = emulate.apply(model, optimizer, "smaq68")
    emulation.measure = True
    model(torch.randn(4, 8)).sum().backward()
    with pytest.raises(ValueError, match="is emulated already"):
        emulate.apply(copy.copy(model), recipe="mxfp8")
    optimizer.step()
    ledger = emulation.ledger()
    rows = {(row.layer, row.tensor): row.values for row in ledger.rows}
    local = {name: p.to_local().numel() for name, p in model.named_parameters()}
    assert {rows[name, "weights"] for name in local} == set(local.values())
    return all(p.full_tensor().isfinite().all() for p in model.parameters())


def test_uneven_shards():
    """Three rows on two ranks, and one row, of which the other rank has none."""
    assert run_pooled(_smaq_of_shards, 2) == [True, True]
