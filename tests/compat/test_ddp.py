"""DistributedDataParallel without a hook of ours, with every option that it has on CPU: over cgx as
over gloo. (cgx_hook: tests/utils.)
"""

from __future__ import annotations

import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.parallel.distributed import _MixedPrecision

from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import (
    Net,
    Normed,
    Sometimes,
    batch,
    gradients,
    learned,
    loss_of,
    train,
    values,
)


def _options(rank, world_size, make, options):
    options = dict(options)
    if options.pop("mesh", False):
        options["device_mesh"] = dist.init_device_mesh("cpu", (world_size,))
    dtype = options.pop("dtype", torch.float32)
    net = make().to(dtype)
    if (ignored := options.pop("ignore", None)) is not None:
        DDP._set_params_and_buffers_to_ignore_for_model(net, ignored)
    model = DDP(net, **options)
    if dtype == torch.float32:
        losses = train(model, rank)
    else:
        x, y = batch(rank, 0)
        losses = [loss_of(model, (x.to(dtype), y))]
        losses[0].backward()
        losses = [losses[0].item()]
    return losses, values(model.module.named_parameters()), gradients(model.module)


CASES = {
    "plain": (Net, {}),
    "many buckets": (Net, {"bucket_cap_mb": 0.01}),
    "gradient_as_bucket_view": (Net, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02}),
    "static_graph": (Net, {"static_graph": True}),
    "static_graph of many buckets": (Net, {"static_graph": True, "bucket_cap_mb": 0.01}),
    "find_unused_parameters": (Sometimes, {"find_unused_parameters": True}),
    "skip_all_reduce_unused_params": (
        Sometimes,
        {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    ),
    "broadcast_buffers": (Normed, {"broadcast_buffers": True}),
    "no broadcast_buffers": (Normed, {"broadcast_buffers": False}),
    "ignored parameters": (Net, {"ignore": ["first.weight", "blocks.0.norm.bias"]}),
    "init_sync=False": (Net, {"init_sync": False}),
    "device_mesh": (Net, {"mesh": True}),
    "bf16": (Net, {"dtype": torch.bfloat16}),
    "fp64": (Net, {"dtype": torch.float64}),
}


@pytest.mark.parametrize("case", CASES)
def test_options(case):
    make, options = CASES[case]
    same_as_gloo(_options, 2, make, options)


def test_three_ranks():
    found = same_as_gloo(_options, 3, Net, {"bucket_cap_mb": 0.01})
    for name, parameter in found[0][1].items():
        assert all(torch.equal(parameter, other[1][name]) for other in found), name


def _accumulation(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.01)
    local = []
    for step in range(2):
        with model.no_sync():
            loss_of(model, batch(rank, 2 * step)).backward()
            local.append(gradients(model.module)["last.weight"])
        loss_of(model, batch(rank, 2 * step + 1)).backward()
    return local, gradients(model.module)


def test_no_sync_accumulates():
    first, second = same_as_gloo(_accumulation, 2)
    assert not torch.equal(first[0][0], second[0][0]), "synchronised inside of no_sync"


def _buffers(rank, world_size):
    torch.manual_seed(rank)
    model = DDP(Normed())
    start = values(model.module.named_parameters())
    train(model, rank, 3)
    model(batch(9, 9)[0])  # rank 0's buffers before this; equal data: equal buffers after
    return start, {name: buffer.clone() for name, buffer in model.module.named_buffers()}


def test_parameters_and_buffers_come_from_rank_0():
    first, second = same_as_gloo(_buffers, 2)
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys() and mine
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def _join(rank, world_size, divide):
    model = DDP(Net(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join(divide_by_initial_world_size=divide):
        for step in range(2 + 3 * rank):
            optimizer.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            optimizer.step()
    return values(model.module.named_parameters())


@pytest.mark.parametrize("divide", [True, False])
def test_join_with_uneven_inputs(divide):
    first, second = same_as_gloo(_join, 2, divide)
    assert all(torch.equal(first[name], second[name]) for name in first)


def _delayed(rank, world_size):
    net = Net()
    model = DDP(
        net,
        delay_all_reduce_named_params=[("last.weight", net.last.weight)],
        param_to_hook_all_reduce=net.first.weight,
    )
    loss_of(model, batch(rank, 0)).backward()
    dist.barrier()
    time.sleep(1.0)  # torch launches this all-reduce and waits for it nowhere
    return gradients(net)


def test_delay_all_reduce_named_params():
    first, second = same_as_gloo(_delayed, 2)
    assert torch.equal(first["last.weight"], second["last.weight"])


def _join_that_throws(rank, world_size):
    model = DDP(Net())
    with pytest.raises(RuntimeError, match="exhausted"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with model.join(throw_on_early_termination=True):
            for step in range(2 + rank):
                loss_of(model, batch(rank, step)).backward()
    return step


def test_join_that_throws():
    assert same_as_gloo(_join_that_throws, 2) == [1, 2]


def _autocast(rank, world_size):
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, batch(rank, step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return values(model.module.named_parameters()), scaler.get_scale()


def test_autocast_and_grad_scaler():
    same_as_gloo(_autocast, 2)


def _checkpointed(rank, world_size):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = Net()
    net.blocks[1] = checkpoint_wrapper(net.blocks[1])
    model = DDP(net, static_graph=True, bucket_cap_mb=0.01)
    return train(model, rank, 3), values(model.module.named_parameters())


def test_activation_checkpointing():
    same_as_gloo(_checkpointed, 2)


def _training(rank, world_size):
    model = DDP(Net(), bucket_cap_mb=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return train(model, rank, 60, optimizer), values(model.module.named_parameters())


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_training_converges(bits):
    first, second = compressed(_training, 2, bits=bits)
    assert learned(first[0]) and learned(second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def _refused(rank, world_size):
    def mixed_precision():
        dtypes = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        DDP(Net(), mixed_precision=dtypes)(batch(rank, 0)[0])

    def sync_batch_norm():
        DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Normed()))(batch(rank, 0)[0])

    def optimizer_in_backward():
        net = Net()
        _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.05})
        model = DDP(net)
        loss_of(model, batch(rank, 0)).backward()

    for attempt, words in (
        (mixed_precision, "cpu backend doesn't support events"),
        (sync_batch_norm, "only work with GPU modules"),
        (optimizer_in_backward, "accelerator"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=words):
            attempt()
    return True


def test_options_that_torch_has_for_accelerators_only():
    for backend in ("gloo", "cgx"):
        assert all(run.value for run in over(backend, _refused, 2))
