"""cgx_utils.fsdp: what is exact is gloo's bit for bit, what is compressed is within the codec's
bound, and all ranks compute with the same weights.
"""

from __future__ import annotations

import contextlib
import io
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)

import torch_cgx
from cgx_utils import fsdp
from tests.compat.training import Net, batch, loss_of, train, values
from tests.distributed import run_pooled

BITS, BUCKET = 4, 64
GRADIENTS = {"bits": BITS, "bucket_size": BUCKET}
WEIGHTS = {"bits": 8, "bucket_size": BUCKET}
BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def _net(world_size, mesh=None, net=None, **options):
    torch.manual_seed(7)
    net = Net() if net is None else net
    mesh = dist.init_device_mesh("cpu", (world_size,)) if mesh is None else mesh
    for block in getattr(net, "blocks", []):
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def _grid(world_size, **options):
    names = ("replicate", "shard")
    return dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=names, **options)


def _whole(model):
    return values((name, p.full_tensor()) for name, p in model.named_parameters())


def _shards(model):
    """This rank's parts of the parameters, without a collective."""
    return values((name, p.to_local()) for name, p in model.named_parameters())


def _gradient_shards(model):
    return values((name, p.grad.to_local()) for name, p in model.named_parameters())


def _gradients(model):
    return values((name, p.grad.full_tensor()) for name, p in model.named_parameters())


def _exact(name, parameter):
    return parameter.dim() < 2 or parameter.numel() < 1024


def _same(found):
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])


# ---- gradients


def _first_gradients(rank, world_size, compress, options=None):
    model = _net(world_size, **(options or {}))
    if compress:
        fsdp.compress(model, GRADIENTS)
    loss_of(model, batch(rank, 0)).backward()
    return _gradients(model)


def _local_gradients(rank):
    torch.manual_seed(7)
    net = Net()
    loss_of(net, batch(rank, 0)).backward()
    return {name: p.grad.double().numpy() for name, p in net.named_parameters()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_exact_or_within_the_bound(ranks):
    found = run_pooled(_first_gradients, ranks, True)
    _same(found)
    gloo = run_pooled(_first_gradients, ranks, False, backend="gloo")[0]
    local = [_local_gradients(rank) for rank in range(ranks)]
    changed = 0
    for name, parameter in Net().named_parameters():
        mean = np.mean([one[name] for one in local], axis=0)
        error = np.abs(found[0][name].double().numpy() - mean)
        if _exact(name, parameter):
            # Sums of two have one order; of three, gloo's is another one.
            if ranks == 2:
                assert torch.equal(found[0][name], gloo[name]), name
            assert error.max() <= 1e-6, name
            continue
        changed += 1
        # No bucket is wider than the unit's gradients, all of which have zeros in their padding.
        unit = name.rsplit(".", 2)[0] if name.startswith("blocks") else ""
        inside = [
            np.append(one[other].ravel(), 0.0)
            for one in local
            for other, p in Net().named_parameters()
            if not _exact(other, p)
            and other.startswith("blocks") == bool(unit)
            and other.startswith(unit)
        ]
        bound = max(np.ptp(values) for values in inside) * 2 / (2 * (2**BITS - 1))
        assert 0 < error.max() <= bound, name
        assert np.linalg.norm(error) < 0.2 * np.linalg.norm(mean), name
    assert changed == 5


def _accumulated(rank, world_size, compress):
    model = _net(world_size)
    if compress:
        fsdp.compress(model, {"bits": 32}, {"bits": 32})
    model.set_force_sum_reduction_for_comms(True)
    model.set_gradient_divide_factor(3.0)
    for part in range(3):
        model.set_requires_gradient_sync(part == 2)
        loss_of(model, batch(rank, part)).backward()
    return _gradient_shards(model), torch_cgx.stats()["compressed_calls"] if compress else 0


def test_exact_accumulation_with_a_divide_factor_is_gloos():
    """32 bits are exact, whatever the group's options say."""
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4", "CGX_COMPRESS_COLLECTIVES": "all_gather"}
    found = run_pooled(_accumulated, 2, True, env=env)
    gloo = run_pooled(_accumulated, 2, False, backend="gloo")
    for ours, theirs in zip(found, gloo, strict=True):
        _same([ours[0], theirs[0]])
        assert ours[1] == 0


def _premultiplied(rank, world_size):
    model = _net(world_size)
    fsdp.compress(model, GRADIENTS)
    model.set_gradient_divide_factor(3.0)
    with pytest.raises(ValueError, match=r"PREMUL_SUM|set_force_sum_reduction_for_comms"):
        loss_of(model, batch(rank, 0)).backward()


def test_a_divide_factor_without_sums_says_what_to_call():
    run_pooled(_premultiplied, 2)


class _Partly(nn.Module):
    """Its parameters `never` get no gradient."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(32, 64)
        self.used = nn.Linear(32, 64)
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return self.last(torch.relu(self.used(x)))


def _unused(rank, world_size, way, compress):
    torch.manual_seed(7)
    net = _Partly()
    if way == "frozen":
        net.never.requires_grad_(False)
    model = fully_shard(net, mesh=dist.init_device_mesh("cpu", (world_size,)))
    if way == "zeros":
        model.set_reduce_scatter_unused_params(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if compress:
            fsdp.compress(model, GRADIENTS)
        for _ in range(2):
            loss_of(model, batch(rank, 0)).backward()
    said = [str(w.message) for w in caught if "without gradients" in str(w.message)]
    few = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
    return few, said


@pytest.mark.parametrize("way", ["unused", "frozen", "zeros"])
def test_a_buffer_of_unknown_parameters_is_exact(way):
    """Which of them an incomplete buffer holds is not known; frozen ones are never in it."""
    if way == "zeros" and not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        pytest.skip("this torch has no set_reduce_scatter_unused_params")
    found = run_pooled(_unused, 2, way, True)
    gloo = run_pooled(_unused, 2, way, False, backend="gloo")[0][0]
    assert found[0][0].keys() == gloo.keys() and ("never.weight" in gloo) is (way == "zeros")
    _same([one[0] for one in found])
    for name, gradient in found[0][0].items():
        compressed = way != "unused" and name == "used.weight"
        assert torch.equal(gradient, gloo[name]) is not compressed, name
        assert (gradient - gloo[name]).norm() <= 0.2 * gloo[name].norm(), name
    said = found[0][1]
    assert len(said) == (way == "unused")
    assert all("set_reduce_scatter_unused_params" in text for text in said)


# ---- weights


def _seen_weights(rank, world_size, options, weights):
    """What forward computes with, and the sharded parameters before and after."""
    model = _net(world_size, **options)
    before = _whole(model)
    fsdp.compress(model, weights=weights)
    seen = {}
    for prefix, module in [(f"blocks.{i}.", b) for i, b in enumerate(model.blocks)] + [("", model)]:
        module.register_forward_pre_hook(
            lambda m, _, prefix=prefix: seen.update(
                {
                    prefix + n: p.detach().clone()
                    for n, p in m.named_parameters()
                    if prefix or not n.startswith("blocks")
                }
            )
        )
    loss_of(model, batch(rank, 0)).backward()
    return before, seen, _whole(model), torch_cgx.stats()["compressed_calls"]


CASES = {
    "fp32": ({}, 2),
    "unequal shards": ({}, 3),
    "bf16": ({"mp_policy": BF16}, 2),
    "offload": ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_compute_with_the_same_decoded_weights(case):
    options, ranks = CASES[case]
    found = run_pooled(_seen_weights, ranks, options, WEIGHTS)
    before, seen, after, calls = found[0]
    _same([one[1] for one in found])
    _same([before, after])
    # Two blocks and the root; the root keeps its weights for the backward pass.
    assert calls == 5 and seen.keys() == before.keys()
    for name, master in before.items():
        master = master.to(torch.bfloat16) if case == "bf16" else master
        assert seen[name].dtype == master.dtype
        if _exact(name, master):
            assert torch.equal(seen[name], master), name
        else:
            error = (seen[name].double() - master.double()).abs().max().item()
            # Weights of nn.Linear lie in +-1/sqrt(inputs); the unit's widest are those of 32 or 64.
            rounding = 2**-8 * master.abs().max().item() if case == "bf16" else 0.0
            widest = 2 * 32**-0.5 if "first" in name else 2 * 64**-0.5
            assert 0 < error <= 1.01 * widest / (2 * 255) + rounding, name


def _gathered_again(rank, world_size):
    torch.manual_seed(7)
    linear = nn.Linear(64, 64)
    model = fully_shard(linear, mesh=dist.init_device_mesh("cpu", (world_size,)))
    fsdp.compress(model, weights=WEIGHTS)
    handle = model.unshard(async_op=True)
    handle.wait()
    first = model.weight.detach().clone()
    model.reshard()
    model.unshard()
    return first, model.weight.detach().clone(), model.bias.detach().clone()


def test_asynchronous_and_repeated_gathers_agree():
    found = run_pooled(_gathered_again, 2)
    torch.manual_seed(7)
    linear = nn.Linear(64, 64)
    for first, second, bias in found:
        assert torch.equal(first, second) and torch.equal(first, found[0][0])
        assert not torch.equal(first, linear.weight) and torch.equal(bias, linear.bias)


def _columns(rank, world_size):
    torch.manual_seed(7)
    model = nn.Linear(64, 64)
    whole = model.weight.detach().clone()
    mesh = dist.init_device_mesh("cpu", (world_size,))
    from torch.distributed.tensor import Shard

    fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(p.dim() - 1))
    fsdp.compress(model, GRADIENTS, WEIGHTS)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    model(x).square().sum().backward()
    model.unshard()
    error = (model.weight - whole).abs().max().item()
    model.reshard()
    return error, model.weight.grad.full_tensor()


def test_parameters_sharded_by_columns():
    found = run_pooled(_columns, 2)
    assert all(0 < error <= 1.01 * 2 * 64**-0.5 / (2 * 255) for error, _ in found)
    assert torch.equal(found[0][1], found[1][1])


# ---- training


def _trained(rank, world_size, options, steps, compress=True):
    model = _net(world_size, **options)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        if compress:
            fsdp.compress(model, GRADIENTS, WEIGHTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    return losses, _whole(model), said.getvalue()


TRAINED = {
    "bf16": ({"mp_policy": BF16}, 2),
    "fp16 sums": ({"mp_policy": MixedPrecisionPolicy(None, torch.float16)}, 2),
    "no reshard": ({"reshard_after_forward": False}, 2),
    "reshard to fewer": ({"reshard_after_forward": 2}, 4),
}
STEPS = 24


@pytest.mark.parametrize("case", TRAINED)
def test_training_converges_with_equal_parameters(case):
    options, ranks = TRAINED[case]
    found = run_pooled(_trained, ranks, options, STEPS)
    assert all(losses[-1] < 0.7 * losses[0] for losses, *_ in found)
    _same([one[1] for one in found])
    first, *others = [said for *_, said in found]
    assert "gradients: compressing 5 of 16 parameters" in first and "maxmin 4 bits" in first
    assert "weights: compressing 5 of 16" in first and "maxmin 8 bits" in first
    assert others == [""] * (ranks - 1)


def test_one_rank_sends_nothing_and_is_exact():
    ((_, found, _),) = run_pooled(_trained, 1, {}, 3)
    ((_, gloo, _),) = run_pooled(_trained, 1, {}, 3, False, backend="gloo")
    _same([found, gloo])


def _bytes(rank, world_size, gradients, weights):
    model = _net(world_size)
    fsdp.compress(model, gradients, weights)
    loss_of(model, batch(rank, 0)).backward()
    torch_cgx.reset_stats()
    loss_of(model, batch(rank, 1)).backward()
    counters = torch_cgx.stats()
    return counters["bytes_sent"], counters["messages_sent"]


def test_bytes_of_a_step():
    """Of two ranks each sends its half of every buffer, encoded; blocks are gathered twice. The
    exact parts are gloo's, which counts nothing.
    """
    ((sent, messages), _) = run_pooled(_bytes, 2, GRADIENTS, WEIGHTS)
    block, root = 2 * 64 * 128, 32 * 64
    expected = 0
    for unit, gathers in ((block, 2), (block, 2), (root, 1)):
        half = unit // 2
        expected += half * BITS // 8 + 8 * half // BUCKET
        expected += gathers * (half + 8 * half // BUCKET)
    assert messages == 3 + 5
    assert 0 <= sent - expected <= 64 * messages, (sent, expected)


# ---- replicas


def _hybrid(rank, world_size, steps, way):
    if way == "options":
        options = torch_cgx.Options(bits=BITS, bucket_size=BUCKET)
        mesh = _grid(world_size, backend_override={"replicate": ("cgx", options)})
    else:
        mesh = _grid(world_size)
    replicas = mesh.get_group("replicate")
    if way == "hook":
        model = _net(world_size, mesh["shard"])
        fsdp.compress(model, GRADIENTS, replicas=replicas)
    else:
        model = _net(world_size, mesh)
        fsdp.compress(model, GRADIENTS, replicas="exact" if way == "exact" else None)
    loss_of(model, batch(rank, 0)).backward()
    first = _gradient_shards(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    counters = torch_cgx.stats(replicas)
    return losses, _shards(model), first, counters["compressed_calls"], counters["calls"]


@pytest.mark.parametrize("way", ["hook", "options", "exact"])
def test_replicas(way):
    found = run_pooled(_hybrid, 4, STEPS, way)
    assert all(losses[-1] < 0.7 * losses[0] for losses, *_ in found)
    for rank in (0, 1):  # and its replica
        _same([found[rank][1], found[rank + 2][1]])
        _same([found[rank][2], found[rank + 2][2]])
    calls = (0 if way == "exact" else 3 * (STEPS + 1), 3 * (STEPS + 1))
    assert all(one[3:] == calls for one in found)
    local = [_local_gradients(rank) for rank in range(4)]
    for name, parameter in Net().named_parameters():
        mean = np.mean([one[name] for one in local], axis=0)
        ours = torch.cat([found[0][2][name], found[1][2][name]]).double().numpy()
        if way != "options" and _exact(name, parameter):
            assert np.abs(ours - mean).max() < 1e-6, name
        else:
            assert 1e-4 < np.linalg.norm(ours - mean) / np.linalg.norm(mean) < 0.3, name


# ---- bad input


def _refused(rank, world_size):
    from cgx_utils import fsdp_layout

    model = _net(world_size)
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
            "layer_min_size=-1; allowed",
            lambda: fsdp.compress(model, GRADIENTS, layer_min_size=-1),
        ),
        (
            TypeError,
            "layer_min_size=True; allowed",
            lambda: fsdp.compress(model, GRADIENTS, layer_min_size=True),
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


def _filtered(rank, world_size):
    model = _net(world_size)
    with pytest.warns(UserWarning, match="cgx_utils.fsdp: the pattern 'attention'"):
        found = fsdp.compress(model, GRADIENTS, layer_filter=["attention", r"blocks.*norm.weight"])
    few = fsdp.compress(model, GRADIENTS, layer_filter=r"norm|up.weight", layer_min_size=16)
    return str(found), str(few)


def test_a_filter_replaces_the_rule_about_dimensions():
    (none, few), _ = run_pooled(_filtered, 2)
    assert "nothing is compressed, all 16 parameters" in none and "layer_min_size=1024" in none
    assert "compressing 6 of 16 parameters" in few


def test_bad_input_is_named_before_anything_is_sent():
    assert run_pooled(_refused, 2) == [0, 0]


def _unequal(rank, world_size, gradients, weights):
    model = _net(world_size)
    fsdp.compress(model, gradients and {"bits": 4 + rank}, weights and {"bits": 7 + rank})
    loss_of(model, batch(rank, 0)).backward()


@pytest.mark.parametrize("gradients, weights", [(True, None), (None, True)])
def test_ranks_with_other_codecs_are_named(gradients, weights):
    for outcome in run_pooled(_unequal, 2, gradients, weights, check=False):
        assert isinstance(outcome.exception, torch_cgx.MismatchError), outcome.error


def _refused_groups(rank, world_size):
    model = _net(world_size, _grid(world_size))
    with pytest.raises(ValueError, match="does not compress: .*replicas=mesh.get_group"):
        fsdp.compress(model, GRADIENTS)
    with pytest.raises(ValueError, match="whose replicas torch averages itself"):
        fsdp.compress(model, GRADIENTS, replicas=dist.group.WORLD)
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="replicas: .*'gloo'"):
        fsdp.compress(_net(world_size), GRADIENTS, replicas=gloo)
    mesh = dist.DeviceMesh.from_group(gloo, "cpu")
    with pytest.raises(ValueError, match="needs a cgx group: .*'gloo'"):
        fsdp.compress(_net(world_size, mesh), GRADIENTS)


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
