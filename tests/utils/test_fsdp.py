"""cgx_utils.fsdp in one step: exact gradients are gloo's bit for bit, compressed ones and weights
are within the codec's bound, and all ranks compute with the same weights.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard

import torch_cgx
from cgx_utils import fsdp
from tests.compat.training import Net, batch, loss_of
from tests.distributed import run_pooled
from tests.utils.sharding import (
    BF16,
    BITS,
    GRADIENTS,
    WEIGHTS,
    check_same,
    gradient_shards,
    gradients_of_rank,
    is_exact,
    sharded_net,
    whole_gradients,
    whole_parameters,
)

# ---- gradients


def _first_gradients(rank, world_size, compress, options=None):
    model = sharded_net(world_size, **(options or {}))
    if compress:
        fsdp.compress(model, GRADIENTS)
    loss_of(model, batch(rank, 0)).backward()
    return whole_gradients(model)


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_exact_or_within_the_bound(ranks):
    found = run_pooled(_first_gradients, ranks, True)
    check_same(found)
    gloo = run_pooled(_first_gradients, ranks, False, backend="gloo")[0]
    local = [gradients_of_rank(rank) for rank in range(ranks)]
    changed = 0
    for name, parameter in Net().named_parameters():
        mean = np.mean([one[name] for one in local], axis=0)
        error = np.abs(found[0][name].double().numpy() - mean)
        if is_exact(name, parameter):
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
            if not is_exact(other, p)
            and other.startswith("blocks") == bool(unit)
            and other.startswith(unit)
        ]
        bound = max(np.ptp(values) for values in inside) * 2 / (2 * (2**BITS - 1))
        assert 0 < error.max() <= bound, name
        assert np.linalg.norm(error) < 0.2 * np.linalg.norm(mean), name
    assert changed == 5


def _accumulated(rank, world_size, compress):
    model = sharded_net(world_size)
    if compress:
        fsdp.compress(model, {"bits": 32}, {"bits": 32})
    model.set_force_sum_reduction_for_comms(True)
    model.set_gradient_divide_factor(3.0)
    for part in range(3):
        model.set_requires_gradient_sync(part == 2)
        loss_of(model, batch(rank, part)).backward()
    return gradient_shards(model), torch_cgx.stats()["compressed_calls"] if compress else 0


def test_exact_accumulation_with_a_divide_factor_is_gloos():
    """32 bits are exact, whatever the group's options say."""
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "4", "CGX_COMPRESS_COLLECTIVES": "all_gather"}
    found = run_pooled(_accumulated, 2, True, env=env)
    gloo = run_pooled(_accumulated, 2, False, backend="gloo")
    for ours, theirs in zip(found, gloo, strict=True):
        check_same([ours[0], theirs[0]])
        assert ours[1] == 0


def _premultiplied(rank, world_size):
    model = sharded_net(world_size)
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
    check_same([one[0] for one in found])
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
    model = sharded_net(world_size, **options)
    before = whole_parameters(model)
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
    return before, seen, whole_parameters(model), torch_cgx.stats()["compressed_calls"]


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
    check_same([one[1] for one in found])
    check_same([before, after])
    # Two blocks and the root; the root keeps its weights for the backward pass.
    assert calls == 5 and seen.keys() == before.keys()
    for name, master in before.items():
        master = master.to(torch.bfloat16) if case == "bf16" else master
        assert seen[name].dtype == master.dtype
        if is_exact(name, master):
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


# ---- which parameters


def _filtered(rank, world_size):
    model = sharded_net(world_size)
    with pytest.warns(UserWarning, match="cgx_utils.fsdp: the pattern 'attention'"):
        found = fsdp.compress(model, GRADIENTS, layer_filter=["attention", r"blocks.*norm.weight"])
    few = fsdp.compress(model, GRADIENTS, layer_filter=r"norm|up.weight", min_size=16)
    return str(found), str(few)


def test_a_filter_replaces_the_rule_about_dimensions():
    (none, few), _ = run_pooled(_filtered, 2)
    assert "nothing is compressed, all 16 parameters" in none and "min_size=1024" in none
    assert "compressing 6 of 16 parameters" in few


def _frozen(rank, world_size):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model[0].requires_grad_(False)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    return str(fsdp.compress(model, {"bits": 4}, {"bits": 8}))


def test_frozen_parameters_have_no_gradients_to_count():
    """Their weights are gathered as all others are."""
    text, _ = run_pooled(_frozen, 2)
    assert "gradients: compressing 1 of 2 parameters" in text
    assert "weights: compressing 2 of 4 parameters" in text
