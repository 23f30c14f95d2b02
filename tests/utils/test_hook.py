"""cgx_hook under DistributedDataParallel: exact layers exact, compressed layers within the bound,
equal bits everywhere.
"""

from __future__ import annotations

import contextlib
import gc
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_cgx
from cgx_utils import CGXState, cgx_hook, hook
from tests.distributed import run_pooled
from tests.utils.training import (
    Branches,
    batch,
    check_gradients,
    digest,
    exact_mean,
    gather,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    wrap,
)


def _state(bits=4, **options):
    return CGXState(None, config={"bits": bits, "bucket_size": 64}, **options)


def _iterate(model, rank, steps, group, optimizer=None, **checks):
    """Some steps, each checked; returns the digest of all averaged gradients."""
    digests = []
    for step in range(steps):
        data = batch(rank, step)
        local = local_gradients(model, data)
        model.zero_grad()
        loss_of(model, data).backward()
        found = gradients(model)
        check_gradients(found, local, group, **checks)
        digests.append(digest(found))
        if optimizer is not None:
            optimizer.step()
    return digests


def _exact(rank, world_size):
    group = dist.new_group(backend="gloo")
    model = wrap(make_model(), _state(bits=32))
    reference = nn.parallel.DistributedDataParallel(make_model(), process_group=group)
    for step in range(3):
        for net in (model, reference):
            net.zero_grad()
            loss_of(net, batch(rank, step)).backward()
        expected = gradients(reference)
        for name, value in gradients(model).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-8)
    return torch_cgx.stats()["compressed_calls"]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_32_bits_give_gloos_gradients(world_size):
    assert run_pooled(_exact, world_size) == [0] * world_size


def _four_bits(rank, world_size, options):
    group = dist.new_group(backend="gloo")
    model = wrap(make_model(), _state(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    digests = _iterate(model, rank, 5, group, optimizer)
    return digests, digest(dict(model.named_parameters())), torch_cgx.stats()["compressed_calls"]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.01},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_4_bits(world_size, options):
    results = run_pooled(_four_bits, world_size, options)
    assert len({str(r) for r in results}) == 1, "ranks differ"
    assert results[0][2] >= 5


def _no_sync(rank, world_size):
    group = dist.new_group(backend="gloo")
    model = wrap(make_model(), _state())
    for step in range(3):
        model.zero_grad()
        local = local_gradients(model, batch(rank, 2 * step))
        for name, value in local_gradients(model, batch(rank, 2 * step + 1)).items():
            local[name] += value
        calls = torch_cgx.stats()["calls"]
        with model.no_sync():
            loss_of(model, batch(rank, 2 * step)).backward()
        assert torch_cgx.stats()["calls"] == calls
        loss_of(model, batch(rank, 2 * step + 1)).backward()
        check_gradients(gradients(model), local, group)
    return digest(gradients(model))


def test_no_sync_accumulates_and_reduces_once():
    assert len(set(run_pooled(_no_sync, 2))) == 1


def _join(rank, world_size):
    model = wrap(make_model(), _state())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            optimizer.step()
            steps += 1
    return steps, digest(dict(model.module.named_parameters()))


def test_join_with_uneven_inputs():
    results = run_pooled(_join, 2)
    assert [steps for steps, _ in results] == [3, 5]
    assert results[0][1] == results[1][1]


def _bf16(rank, world_size):
    group = dist.new_group(backend="gloo")
    model = wrap(make_model().to(torch.bfloat16), _state())
    for step in range(3):
        data = batch(rank, step)
        local = local_gradients(model, data)
        model.zero_grad()
        loss_of(model, data).backward()
        for name, value in gradients(model).items():
            assert value.dtype == torch.bfloat16
            parts = gather(local[name], group)
            if name not in ("first.weight", "second.weight"):
                assert torch.equal(value, exact_mean(parts)), name
            else:
                # 4 bits of a bucket of 64 are coarser than bf16 itself (8 bits).
                error = (value.double() - exact_mean(parts).double()).norm()
                assert 0 < error < 0.25 * exact_mean(parts).double().norm(), name
    return digest(gradients(model))


def test_bf16_model():
    assert len(set(run_pooled(_bf16, 2))) == 1


def _float64(rank, world_size):
    group = dist.new_group(backend="gloo")
    model = wrap(make_model().double(), _state())
    local = local_gradients(model, batch(rank, 0))
    loss_of(model, batch(rank, 0)).backward()
    for name, value in gradients(model).items():
        mean = torch.stack(gather(local[name], group)).mean(0)
        torch.testing.assert_close(value, mean, rtol=1e-14, atol=1e-16)
    return digest(gradients(model))


def test_float64_is_exact():
    assert len(set(run_pooled(_float64, 2))) == 1


def _scaler(rank, world_size, injector):
    model = wrap(make_model(), _state())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    history = []
    for step in range(5):
        before = digest(dict(model.named_parameters()))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            x, y = batch(rank, step)
            output = model(x)
        loss = nn.functional.mse_loss(output.float(), y)
        if step == 2 and rank == injector:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        after = digest(dict(model.named_parameters()))
        history.append((before == after, scaler.get_scale(), after))
    return history


@pytest.mark.parametrize("injector", [0, 1])
def test_fp16_autocast_skips_the_step_with_an_inf_on_all_ranks(injector):
    first, second = run_pooled(_scaler, 2, injector)
    assert first == second
    assert [skipped for skipped, _, _ in first] == [False, False, True, False, False]
    assert first[1][1] == 1024.0 and first[2][1] == 512.0


def _two_models(rank, world_size):
    group = dist.new_group(backend="gloo")
    models = [wrap(make_model(seed), _state()) for seed in (1, 2)]
    digests = []
    for step in range(4):
        for number, model in enumerate(models):
            digests += _iterate(model, rank, 1, group)
            # As many values as the bucket has, and as one layer: both were mixed up with it by the
            # old system.
            for size in (sum(p.numel() for p in model.parameters()), 8192, 5):
                generator = torch.Generator().manual_seed(step + 10 * rank + 100 * number)
                metric = torch.randn(size, generator=generator)
                parts = gather(metric, group)
                dist.all_reduce(metric)
                expected = torch.zeros(size)
                for part in parts:
                    expected += part
                assert torch.equal(metric, expected), (step, number, size)
    return digests


def test_two_models_and_metrics_in_between():
    first, second = run_pooled(_two_models, 2)
    assert first == second


def _unused(rank, world_size):
    group = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = wrap(Branches(), _state(), find_unused_parameters=True)
    for step in range(4):
        model.module.use_left = step % 2 == 0
        local = local_gradients(model, batch(rank, step))
        model.zero_grad()
        loss_of(model, batch(rank, step)).backward()
        used = "left" if step % 2 == 0 else "right"
        found = gradients(model)
        assert set(found) == {f"{used}.weight", f"{used}.bias"}
        check_gradients(found, local, group, compressed={f"{used}.weight"})
    return digest(found)


def test_unused_parameters():
    assert len(set(run_pooled(_unused, 2))) == 1


def _rebuilt(rank, world_size):
    """Torch begins with one bucket and groups the layers anew after the first backward."""
    group = dist.new_group(backend="gloo")
    layouts = []

    def spy(inner, bucket):
        layouts.append(tuple(tuple(p.shape) for p in bucket.parameters()))
        return cgx_hook(inner, bucket)

    model = wrap(make_model(), _state(), spy, bucket_cap_mb=0.004)
    _iterate(model, rank, 1, group)
    before = list(layouts)
    layouts.clear()
    digests = _iterate(model, rank, 3, group)
    return before, layouts, digests


def test_bucket_rebuild_is_noticed():
    first, second = run_pooled(_rebuilt, 2)
    assert first == second
    before, after, _ = first
    assert len(before) == 1 and len(set(after)) > 1
    assert len(after) == 3 * len(set(after))


def _detail(rank, world_size):
    with contextlib.ExitStack() as stack:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        stack.callback(dist.set_debug_level, dist.DebugLevel.OFF)
        group = dist.new_group(backend="cgx")
        exact = dist.new_group(backend="gloo")
        state = CGXState(group, config={"bits": 4, "bucket_size": 64})
        model = wrap(make_model(), state, process_group=group)
        digests = _iterate(model, rank, 2, exact)
        return digests, torch_cgx.stats(group)["compressed_calls"] >= 2


def test_debug_level_detail():
    first, second = run_pooled(_detail, 2)
    assert first == second and first[1]


def _subgroup(rank, world_size):
    """Ranks 0 and 2 train one model; the state does not name their group, the DDP instance does."""
    group = dist.new_group([0, 2], backend="cgx")
    if rank == 1:
        return None
    model = wrap(make_model(), _state(), process_group=group)
    loss_of(model, batch(rank, 0)).backward()
    return digest(gradients(model)), torch_cgx.stats(group)["compressed_calls"]


def test_group_of_the_ddp_instance_is_used():
    first, nothing, third = run_pooled(_subgroup, 3)
    assert nothing is None and first == third and first[1] >= 1


def state_reused(rank, world_size):
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64, bias=False)
    state = CGXState(None, min_size=0, config={"bits": 32})
    x = torch.full((1, 64), 2.0 * (rank + 1))
    groups = [dist.new_group([r]) for r in range(world_size)]

    def gradient(ddp):
        module.weight.grad = None
        ddp(x).sum().backward()
        return module.weight.grad[0, 0].item()

    first = DistributedDataParallel(module)
    first.register_comm_hook(state, cgx_hook)
    assert gradient(first) == 3.0  # the mean of 2 and 4
    second = DistributedDataParallel(module, process_group=groups[rank])
    second.register_comm_hook(state, cgx_hook)
    with pytest.raises(RuntimeError, match="make a CGXState for each"):
        gradient(second)
    del first, second
    gc.collect()
    third = DistributedDataParallel(module, process_group=groups[rank])
    third.register_comm_hook(state, cgx_hook)
    return gradient(third)


def test_a_state_reused_for_another_instance_follows_it_or_is_refused():
    assert run_pooled(state_reused, 2) == [2.0, 4.0]


class _Words(nn.Module):
    """An embedding with sparse gradients before layers with dense ones."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(200, 64, sparse=True)
        self.rest = make_model()

    def forward(self, words):
        return self.rest(self.words(words))


def _sparse(rank, world_size, aps):
    hook._warned_of_sparse = False  # a process of the pool has seen other tests
    torch.manual_seed(0)
    plain = dist.new_group(backend="gloo")
    models = [DistributedDataParallel(_Words(), process_group=g) for g in (None, plain)]
    models[1].load_state_dict(models[0].state_dict())
    state = CGXState(config={"codec": "fp16", "bits": 16}, aps=True) if aps else _state()
    models[0].register_comm_hook(state, cgx_hook)
    generator = torch.Generator().manual_seed(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            words = torch.randint(0, 50 * (rank + 1), (16,), generator=generator)
            for model in models:
                model.zero_grad()
                model(words).square().mean().backward()
            found, wanted = (model.module.words.weight.grad for model in models)
            assert found.is_sparse and wanted.is_sparse
            assert torch.equal(found.to_dense(), wanted.to_dense()), step
    warned = [str(w.message) for w in caught if "sparse" in str(w.message)]
    return warned, digest(gradients(models[0].module.rest)), torch_cgx.stats()["compressed_calls"]


@pytest.mark.parametrize("world_size, aps", [(1, False), (2, False), (3, False), (2, True)])
def test_sparse_gradients_are_exact_with_one_warning(world_size, aps):
    results = run_pooled(_sparse, world_size, aps)
    assert len({digests for _, digests, _ in results}) == 1
    assert all(calls >= 3 for _, _, calls in results)
    assert all(len(warned) == 1 and "reduced exactly" in warned[0] for warned, _, _ in results)
