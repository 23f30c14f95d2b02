"""fp16 training with GradScaler: the steps whose gradients overflow are skipped, on every rank, and
no others, at every width, with the hook and with a group that compresses by itself.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook
from tests.distributed import run_pooled
from tests.utils.training import batch, digest, make_model

STEPS = 12
# step: (rank that injects, what)
INJECTED = {2: (0, "inf"), 5: (1, "nan"), 6: (1, "-inf"), 9: (0, "scale")}


def _train(rank, world_size, bits, hook, weights, bucket_size=64):
    options = None if hook else torch_cgx.Options(bits=bits, bucket_size=bucket_size)
    group = dist.new_group(pg_options=options)
    half = weights == "fp16"
    model = make_model().half() if half else make_model()
    model = DistributedDataParallel(model, process_group=group)
    if hook:
        params = {"bits": bits, "bucket_size": bucket_size}
        model.register_comm_hook(CGXState(None, 64, params), cgx_hook)
    # GradScaler wants fp32 weights: those of the model, or copies, whose gradients are fp16 on
    # their way.
    own = list(model.parameters())
    masters = [p.detach().float().requires_grad_() for p in own] if half else own
    optimizer = torch.optim.SGD(masters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=1000)
    history = []
    for step in range(STEPS):
        before = digest(dict(model.named_parameters()))
        model.zero_grad()
        x, y = batch(rank, step)
        with torch.autocast("cpu", dtype=torch.float16, enabled=not half):
            output = model(x.half() if half else x)
        loss = nn.functional.mse_loss(output.float(), y)
        scale = scaler.get_scale()
        injector, what = INJECTED.get(step, (-1, ""))
        if rank == injector:
            # A finite loss whose gradients fp16 cannot hold, or one that is not finite.
            loss = loss * (1e8 if what == "scale" else float(what))
        scaler.scale(loss).backward()
        for master, p in zip(masters, own, strict=True):
            master.grad = p.grad.float()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, p in zip(masters, own, strict=True):
                p.copy_(master)
        after = digest(dict(model.named_parameters()))
        history.append((before == after, scaler.get_scale() < scale, after))
        assert all(p.isfinite().all() for p in model.parameters()), step
    compressed = torch_cgx.stats(group)["compressed_calls"]
    dist.destroy_process_group(group)
    return history, compressed


@pytest.mark.parametrize("weights", ["fp16", "fp32"])
@pytest.mark.parametrize("hook", [True, False], ids=["hook", "group"])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_steps_that_overflow_are_skipped_and_no_others(bits, hook, weights):
    (first, calls), (second, _) = run_pooled(_train, 2, bits, hook, weights)
    assert first == second, "all ranks have equal weights after each step"
    assert [skipped for skipped, _, _ in first] == [step in INJECTED for step in range(STEPS)]
    assert [halved for _, halved, _ in first] == [step in INJECTED for step in range(STEPS)]
    assert calls >= STEPS, "something was compressed"


def test_one_rank_of_a_host_of_three_is_enough():
    env = [{"CGX_HOST_ID": host} for host in "aab"]
    results = run_pooled(_train, 3, 4, True, "fp16", env=env)
    assert all(history == results[0][0] for history, _ in results)
    assert [skipped for skipped, _, _ in results[0][0]] == [step in INJECTED for step in range(12)]
