"""The communication hooks and the local SGD that torch brings for DDP: over cgx as over gloo."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as default
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import Net, batch, learned, loss_of, train, values


def _named(rank, world_size, name, options):
    model = DDP(Net(), bucket_cap_mb=options.pop("bucket_cap_mb", 25))
    DDPCommHookType[name].value(model=model, state=None, **options)
    return train(model, rank, 6), values(model.module.named_parameters())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ALLREDUCE", {"bucket_cap_mb": 0.02}),
        ("FP16_COMPRESS", {"bucket_cap_mb": 0.02}),
        # In one bucket: PowerSGD's callbacks launch more all-reduces, and with several buckets
        # under way nothing on a CPU makes ranks do that in the same order (docs/compatibility.md).
        ("POWER_SGD", {"start_powerSGD_iter": 3}),
        ("POWER_SGD_RANK2", {"start_powerSGD_iter": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hooks_by_name(name, options):
    first, second = same_as_gloo(_named, 2, name, options)
    assert all(torch.equal(first[1][p], second[1][p]) for p in first[1])


def test_the_hook_that_does_nothing():
    first, second = same_as_gloo(_named, 2, "NOOP", {}, engine=False)
    assert not torch.equal(first[1]["last.weight"], second[1]["last.weight"])


def _broken(rank, world_size):
    errors = {}
    for name in ("BF16_COMPRESS", "QUANTIZE_PER_TENSOR", "QUANTIZE_PER_CHANNEL"):
        with pytest.raises((TypeError, RuntimeError)) as caught:
            _named(rank, world_size, name, {})
        errors[name] = str(caught.value).splitlines()[0]
    with pytest.raises(AssertionError):
        _named(rank, world_size, "BATCHED_POWER_SGD", {"start_powerSGD_iter": 3})
    return errors


def test_hooks_that_torch_refuses_or_breaks_on_cpu_fail_alike():
    (errors, _), (same, _) = ([run.value for run in over(b, _broken, 2)] for b in ("gloo", "cgx"))
    assert errors == same
    assert "NCCL" in errors["BF16_COMPRESS"] and "IndexError" in errors["QUANTIZE_PER_TENSOR"]


def test_powersgd_of_several_buckets_is_told_apart():
    """Its callbacks all-reduce in an order that is up to the threads of each rank. Gloo may hang;
    here the ranks that meet with different tensors say so.
    """
    options = {"start_powerSGD_iter": 3, "bucket_cap_mb": 0.02}
    outcomes = over("cgx", _named, 2, "POWER_SGD", options, check=False, timeout=60)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert not any("no answer" in error or "the process ended" in error for error in errors)
    assert not errors or any("ranks disagree" in error for error in errors), errors


def _fused_optimizer(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.02)
    model._register_fused_optim(torch.optim.SGD, lr=0.05)
    for step in range(4):
        loss_of(model, batch(rank, step)).backward()
    return values(model.module.named_parameters())


def test_optimizer_steps_inside_of_the_hook():
    same_as_gloo(_fused_optimizer, 2)


def _wrapped(rank, world_size):
    """torch's fp16 wrapper around cgx_hook: values are cast, then compressed."""
    model = DDP(Net())
    state = CGXState(None, min_size=1024, config={"bits": 8, "bucket_size": 64})
    model.register_comm_hook(state, default.fp16_compress_wrapper(cgx_hook))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, 60, optimizer)
    counters = torch_cgx.stats()
    ratio = counters["bytes_sent"] / counters["numel"]
    return learned(losses), ratio, values(model.module.named_parameters())


def test_fp16_wrapper_around_cgx_hook():
    first, second = (run.value for run in over("cgx", _wrapped, 2))
    assert first[0] and second[0]
    assert first[1] < 1.3, "bytes per value"
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


def _post_local_sgd(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.02)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    state = local_sgd.PostLocalSGDState(None, groups[rank // 2], start_localSGD_iter=2)
    model.register_comm_hook(state, local_sgd.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        averagers.PeriodicModelAverager(period=3, warmup_steps=2),
    )
    losses = train(model, rank, 6, optimizer)  # the last average is at step 5
    return losses, values(model.module.named_parameters())


def _subgroups_agree(found):
    names = found[0][1]
    for a, b in ((0, 1), (2, 3)):
        assert all(torch.equal(found[a][1][name], found[b][1][name]) for name in names)


def test_post_local_sgd():
    _subgroups_agree(same_as_gloo(_post_local_sgd, 4))


def test_post_local_sgd_compressed():
    _subgroups_agree(compressed(_post_local_sgd, 4))


def _hierarchical(rank, world_size):
    torch.manual_seed(rank)  # every rank trains a model of its own between the averages
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        averager = hierarchical_model_averager.HierarchicalModelAverager(
            period_group_size_dict={2: 2, 4: 4}, warmup_steps=0
        )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    after = []
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, batch(rank, step)).backward()
        optimizer.step()
        averager.average_parameters(net.parameters())
        after.append(net.last.weight.detach().clone())
    return after


def test_hierarchical_model_averaging():
    found = same_as_gloo(_hierarchical, 4)
    for step in range(4):
        assert torch.equal(found[0][step], found[1][step]) is (step in (0, 2))
        assert torch.equal(found[0][step], found[3][step]) is (step == 0)
