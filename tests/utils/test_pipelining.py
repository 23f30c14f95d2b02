"""cgx_utils.pipelining: stages whose activations and gradients travel encoded, under schedules."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from cgx_utils import pipelining
from tests.calls import failure
from tests.distributed import run_pooled
from torch_cgx import codecs

EIGHT = codecs.MaxMin(bits=8, bucket_size=64)
FOUR = codecs.MaxMin(bits=4, bucket_size=64)
ROWS, WIDTH, PARTS = 32, 64, 4


def _modules(count):
    torch.manual_seed(3)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)
    ]


def _loss(y, target):
    return F.mse_loss(y, target)


class _Rounded(torch.autograd.Function):
    """What lies between two stages."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return x if there is None else there.roundtrip(x)

    @staticmethod
    def backward(ctx, grad):
        return (grad if ctx.back is None else ctx.back.roundtrip(grad.contiguous())), None, None


def _reference(count, there, back, x, target):
    """One process: gradients of all modules, the mean over microbatches."""
    modules = _modules(count)
    losses = []
    for rows, wanted in zip(x.chunk(PARTS), target.chunk(PARTS), strict=True):
        y = rows
        for number, module in enumerate(modules):
            y = module(y)
            if number < count - 1:
                y = _Rounded.apply(y, there, back)
        loss = _loss(y, wanted)
        loss.backward()
        losses.append(loss.detach())
    return [[p.grad / PARTS for p in module.parameters()] for module in modules], losses


def _step(rank, size, kind, backend, there, back):
    group = dist.new_group(backend=backend)
    per_rank = 2 if kind is ScheduleInterleaved1F1B else 1
    count = per_rank * size
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    target = torch.randn(ROWS, WIDTH, generator=generator)
    modules = _modules(count)
    numbers = range(rank, count, size)
    stages = [
        PipelineStage(modules[n], n, count, torch.device("cpu"), group=group) for n in numbers
    ]
    found = [pipelining.compress(s, there, back, min_size=256) for s in stages]
    schedule = kind(stages if per_rank == 2 else stages[0], PARTS, loss_fn=_loss)
    wanted, losses = _reference(count, there, back, x, target)
    for _ in range(2):  # buffers of the first step are used again
        for module in modules:
            module.zero_grad()
        got = []
        first = (x,) if rank == 0 else ()
        if count - 1 in numbers:
            schedule.step(*first, target=target, losses=got)
            assert all(torch.equal(a.detach(), b) for a, b in zip(got, losses, strict=True))
        else:
            schedule.step(*first)
        for n in numbers:
            for p, gradient in zip(modules[n].parameters(), wanted[n], strict=True):
                assert torch.allclose(p.grad, gradient, rtol=1e-5, atol=1e-7), n
    for n, one in zip(numbers, found, strict=True):
        hops = (there is not None and n < count - 1) + (back is not None and n > 0)
        assert one.bytes_raw == 2 * hops * 4 * ROWS * WIDTH
        assert (one.bytes_sent < 0.6 * one.bytes_raw) == (hops > 0)
    return [copy.copy(one) for one in found]


@pytest.mark.parametrize(
    ("kind", "backend", "there", "back"),
    [
        (ScheduleGPipe, "cgx", EIGHT, EIGHT),
        (Schedule1F1B, "cgx", EIGHT, FOUR),
        (Schedule1F1B, "cgx", None, FOUR),
        (Schedule1F1B, "gloo", FOUR, None),
        (ScheduleInterleaved1F1B, "cgx", EIGHT, FOUR),
    ],
)
def test_stages_compute_with_what_a_roundtrip_leaves(kind, backend, there, back):
    run_pooled(_step, 2, kind, backend, there, back)


def test_three_stages():
    run_pooled(_step, 3, Schedule1F1B, "cgx", EIGHT, EIGHT)


def _small(rank, size):
    """Tensors below min_size are exact."""
    module = torch.nn.Linear(4, 4)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    found = pipelining.compress(stage, {"bits": 1}, {"bits": 1})
    schedule = ScheduleGPipe(stage, 2, loss_fn=_loss)
    if rank == 0:
        schedule.step(torch.ones(8, 4))
    else:
        schedule.step(target=torch.ones(8, 4))
    return found


def test_short_tensors_are_exact():
    for found in run_pooled(_small, 2):
        assert found.bytes_sent == found.bytes_raw == 0
        assert found.activations.startswith("maxmin bits=1")


def _differing(rank, size):
    module = torch.nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    rounding = "nearest" if rank else "stochastic"
    pipelining.compress(stage, {"bits": 8, "rounding": rounding}, min_size=16)
    schedule = ScheduleGPipe(stage, 2, loss_fn=_loss)
    if rank == 0:
        return failure(lambda: schedule.step(torch.ones(8, WIDTH)))
    return failure(lambda: schedule.step(target=torch.ones(8, WIDTH)))


def test_other_settings_on_a_neighbour_are_an_error():
    first, second = run_pooled(_differing, 2, group_timeout=10)
    assert second.startswith("MismatchError"), second
    assert "rank 0 sent" in second and "rounding=stochastic" in second
    assert not first.startswith("returned")


def _refused(rank, size):
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, size, torch.device("cpu"))
    calls = {
        "stage": lambda: pipelining.compress(torch.nn.Linear(4, 4), {"bits": 4}),
        "activations": lambda: pipelining.compress(stage, {"bit": 4}),
        "gradients": lambda: pipelining.compress(stage, None, "4 bits"),
        "min_size": lambda: pipelining.compress(stage, {"bits": 4}, min_size=-1),
    }
    found = {name: failure(call) for name, call in calls.items()}
    found["environment"] = failure(lambda: pipelining.compress(stage, {}))
    found["twice"] = failure(lambda: pipelining.compress(stage, {"bits": 4}))
    return found


def test_bad_arguments_are_named():
    for found in run_pooled(_refused, 2):
        for name, words in {
            "stage": ("TypeError", "Linear", "forward_one_chunk"),
            "activations": ("ValueError", "activations: ", "'bit'"),
            "gradients": ("TypeError", "gradients: ", "'4 bits'"),
            "min_size": ("ValueError", "min_size"),
            "environment": ("returned", "activations='exact'"),
            "twice": ("ValueError", "already"),
        }.items():
            for word in words:
                assert word in found[name], (name, found[name])
