"""Arguments, groups and modules that cgx_utils.fsdp refuses, and what the errors say."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

import torch_cgx
from cgx_utils import fsdp
from tests.compat.training import batch, loss_of
from tests.distributed import run_pooled
from tests.utils.sharding import GRADIENTS, WEIGHTS, make_grid, sharded_net


def _refused(rank, world_size):
    from cgx_utils import fsdp_layout

    model = sharded_net(world_size)
    plain = nn.Linear(4, 4)
    cases = [
        (ValueError, "no module that fully_shard", lambda: fsdp.compress(plain, GRADIENTS)),
        (TypeError, "model is of type int", lambda: fsdp.compress(3, GRADIENTS)),
        (ValueError, "neither gradients nor weights", lambda: fsdp.compress(model)),
        (
            ValueError,
            "gradients: bits='0' is not allowed",
            lambda: fsdp.compress(model, {"bits": 0}),
        ),
        (
            ValueError,
            "weights has the unknown key 'bit'",
            lambda: fsdp.compress(model, weights={"bit": 8}),
        ),
        (TypeError, "gradients: config='4'", lambda: fsdp.compress(model, "4")),
        (
            ValueError,
            "backward would get other weights",
            lambda: fsdp.compress(model, weights={"rounding": "stochastic"}),
        ),
        (
            ValueError,
            "allowed: 'maxmin' with rounding='nearest', 16 bits",
            lambda: fsdp.compress(model, weights={"codec": "rotated"}),
        ),
        (
            ValueError,
            "min_size=-1; allowed",
            lambda: fsdp.compress(model, GRADIENTS, min_size=-1),
        ),
        (
            TypeError,
            "min_size=True; allowed",
            lambda: fsdp.compress(model, GRADIENTS, min_size=True),
        ),
        (
            ValueError,
            "replicas='all'; allowed",
            lambda: fsdp.compress(model, GRADIENTS, replicas="all"),
        ),
        (ValueError, "has no replicas", lambda: fsdp.compress(model, GRADIENTS, replicas="exact")),
        (
            TypeError,
            "replicas=3 is of type int",
            lambda: fsdp.compress(model, GRADIENTS, replicas=3),
        ),
        (
            ValueError,
            "without gradients",
            lambda: fsdp.compress(model, None, WEIGHTS, replicas="exact"),
        ),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
    double = fully_shard(nn.Linear(64, 64).double(), mesh=dist.init_device_mesh("cpu", (2,)))
    with pytest.raises(TypeError, match=r"'weight' is gathered or reduced as torch.float64"):
        fsdp.compress(double, GRADIENTS)
    unit = fsdp_layout.units_of(model)[0]
    with pytest.raises(RuntimeError, match="does not hold 'first.weight' at value 0"):
        unit.check(torch.zeros(sum(unit.numels())))
    unit.group.fsdp_params[0] = object()
    with pytest.raises(RuntimeError, match=r"does not know how torch .* lays out the shards"):
        fsdp.compress(model, GRADIENTS)
    return torch_cgx.stats()["calls"]


def test_bad_input_is_named_before_anything_is_sent():
    assert run_pooled(_refused, 2) == [0, 0]


def _unequal(rank, world_size, gradients, weights):
    model = sharded_net(world_size)
    fsdp.compress(model, gradients and {"bits": 4 + rank}, weights and {"bits": 7 + rank})
    loss_of(model, batch(rank, 0)).backward()


@pytest.mark.parametrize("gradients, weights", [(True, None), (None, True)])
def test_ranks_with_other_codecs_are_named(gradients, weights):
    for outcome in run_pooled(_unequal, 2, gradients, weights, check=False):
        assert isinstance(outcome.exception, torch_cgx.MismatchError), outcome.error


def _refused_groups(rank, world_size):
    model = sharded_net(world_size, make_grid(world_size))
    with pytest.raises(ValueError, match="does not compress: .*replicas=mesh.get_group"):
        fsdp.compress(model, GRADIENTS)
    with pytest.raises(ValueError, match="whose replicas torch averages itself"):
        fsdp.compress(model, GRADIENTS, replicas=dist.group.WORLD)
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="replicas: .*'gloo'"):
        fsdp.compress(sharded_net(world_size), GRADIENTS, replicas=gloo)
    mesh = dist.DeviceMesh.from_group(gloo, "cpu")
    with pytest.raises(ValueError, match="needs a cgx group: .*'gloo'"):
        fsdp.compress(sharded_net(world_size, mesh), GRADIENTS)


def test_groups_that_do_not_fit_are_refused():
    run_pooled(_refused_groups, 4)


def _mixed(rank, world_size):
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64).requires_grad_(False).bfloat16())
    net.forward = lambda x: net[1](net[0](x).bfloat16()).float()
    model = fully_shard(net, mesh=dist.init_device_mesh("cpu", (world_size,)))
    fsdp.compress(model, weights=WEIGHTS)
    with pytest.raises(TypeError, match=r"dtypes torch.bfloat16, torch.float32.*param_dtype"):
        model(torch.ones(2, 64))


def test_weights_of_several_dtypes_are_refused():
    run_pooled(_mixed, 2)


def test_a_torch_without_the_hooks_is_named(monkeypatch):
    monkeypatch.delattr(FSDPModule, "set_custom_all_gather")
    with pytest.raises(RuntimeError, match=r"has no FSDPModule.set_custom_all_gather; needed"):
        fsdp._check_methods("set_custom_reduce_scatter", "set_custom_all_gather")
