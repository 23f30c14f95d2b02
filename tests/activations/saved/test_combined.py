"""compress_saved together with the rest of torch: checkpointing, compile, autocast, DDP, FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.distributed import run_pooled
from torch_cgx import activations
from torch_cgx.activations import compress_saved

EXACT_ENOUGH = {"codec": "maxmin", "bits": 8, "bucket_size": 64}
FEW = {"codec": "maxmin", "bits": 3}


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def _model(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def _x(seed: int = 1) -> torch.Tensor:
    return torch.randn(16, 32, 32, generator=torch.Generator().manual_seed(seed))


def _grads(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def _near(found: list[torch.Tensor], exact: list[torch.Tensor], limit: float = 0.02) -> bool:
    assert len(found) == len(exact) > 0
    return all(float((a - b).norm() / b.norm()) < limit for a, b in zip(found, exact, strict=True))


def _exact(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return _grads(model)


# ---- checkpointing


@pytest.mark.parametrize("reentrant", (True, False))
def test_boundaries_of_checkpoints_are_compressed(reentrant: bool) -> None:
    model, x = _model(3), _x().requires_grad_()
    exact = _exact(model, x)
    context = compress_saved(EXACT_ENOUGH, measure=True)
    y = x * 1
    with context:
        for block in model:
            y = checkpoint(block, y, use_reentrant=reentrant)
        loss = y.square().mean()
    assert context.bytes_saved == 3 * x.nbytes + y.nbytes
    loss.backward()
    assert _near(_grads(model), exact)


@pytest.mark.parametrize("reentrant", (True, False))
def test_a_recomputation_rounds_as_before(reentrant: bool) -> None:
    """Inside of a checkpointed function the key comes from torch's generator, whose state the
    checkpoint restores.
    """
    model, x = _model(1), _x().requires_grad_()
    seen: list[tuple[bool, torch.Tensor]] = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        context = compress_saved(FEW)
        with context:
            key = torch.randint(2**40, ())  # what the next user of the generator gets
            seen.append((torch.is_grad_enabled(), key))
            return model(x)

    found = []
    for _ in range(2):
        torch.manual_seed(7)
        y = checkpoint(inside, x, use_reentrant=reentrant)
        y.square().mean().backward()
        found.append(_grads(model))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert len({int(key) for _, key in seen}) == 1
    if reentrant:
        assert len(seen) == 4
    exact = _exact(model, x)
    assert _near(found[0], exact, 0.5) and not _near(found[0], exact, 1e-4)


def test_a_compressed_model_inside_of_a_checkpoint() -> None:
    """The recomputation of a model with `compress` has the number of its forward pass."""
    model, x = _model(1), _x().requires_grad_()
    handle = activations.compress(model, FEW)
    found = []
    for reentrant in (None, True, False):
        handle.step = 5
        y = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
        y.square().mean().backward()
        found.append(_grads(model))
        assert handle.step == 6, reentrant
    for grads in found[1:]:
        for a, b in zip(found[0], grads, strict=True):
            assert torch.equal(a, b)


def test_steps_of_a_checkpointed_model_advance() -> None:
    model, x = _model(1), _x().requires_grad_()
    handle = activations.compress(model, FEW)
    found = []
    for _ in range(3):
        checkpoint(model, x, use_reentrant=True).square().mean().backward()
        found.append(_grads(model))
    assert handle.state_dict() == {"step": 3}
    assert not torch.equal(found[0][2], found[1][2])
    assert not torch.equal(found[1][2], found[2][2])


# ---- autocast, scaling, accumulation


def test_autocast_grad_scaler_and_accumulation() -> None:
    model, x = _model(), _x()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    exact = []
    for compressed in (False, True):
        for micro in range(2):
            context = compress_saved(EXACT_ENOUGH)
            with torch.autocast("cpu", torch.bfloat16):
                if compressed:
                    with context:
                        loss = model(x + micro).float().square().mean()
                else:
                    loss = model(x + micro).float().square().mean()
            scaler.scale(loss).backward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler.unscale_(optimizer)
        found = _grads(model)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 1024  # no gradient was infinite
        if not compressed:
            exact = found
    assert _near(found, exact, 0.05)


def test_weights_that_autocast_casts_stay_exact() -> None:
    """The gradient of the input depends on weights only: it is the exact one."""
    layer, x = nn.Linear(64, 64), torch.randn(64, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (exact,) = torch.autograd.grad(layer(x).float().sum(), x)
    with compress_saved({"bits": 1}), torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(layer(x).float().sum(), x)
    assert torch.equal(found, exact)


# ---- torch.compile


def test_around_a_compiled_model() -> None:
    model, x = _model(), _x()
    exact = _exact(model, x)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    context = compress_saved(EXACT_ENOUGH)
    with context:
        loss = compiled(x).square().mean()
    assert context.bytes_saved > 10 * x.nbytes
    loss.backward()
    assert _near(_grads(model), exact)
    layer = nn.Linear(32, 32)  # weights stay exact
    with compress_saved({"bits": 1}):
        y = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(torch.compile(layer, backend="aot_eager")(y).sum(), y)
    (wanted,) = torch.autograd.grad(layer(y).sum(), y)
    assert torch.equal(found, wanted)


def test_names_of_modules_are_refused_around_a_compiled_model() -> None:
    compiled, x = torch.compile(_model(1), backend="aot_eager"), _x()
    for rules in ({"overrides": {"up": None}}, {"filter": lambda name, tensor: True}):
        with pytest.raises(RuntimeError, match="do not apply to it"):
            with compress_saved(EXACT_ENOUGH, **rules):
                compiled(x)


def test_a_context_inside_of_a_compiled_function_breaks_its_graph() -> None:
    model, x = _model(1), _x()
    exact = _exact(model, x)
    context = compress_saved(EXACT_ENOUGH)

    @torch.compile(backend="aot_eager")
    def inside(x: torch.Tensor) -> torch.Tensor:
        with context:
            return model(x)

    inside(x).square().mean().backward()
    assert context.bytes_saved > 0 and _near(_grads(model), exact)


def test_entering_inside_of_a_compiled_function_is_refused_by_name() -> None:
    model, x = _model(1), _x()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def inside(x: torch.Tensor) -> torch.Tensor:
        with compress_saved():
            return model(x)

    with pytest.raises(Exception, match="enter it around|inside of a compiled function"):
        inside(x)


def test_a_compressed_model_that_is_compiled() -> None:
    model, x = _model(), _x()
    exact = _exact(model, x)
    handle = activations.compress(model, EXACT_ENOUGH)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x).square().mean().backward()
    assert handle.bytes_saved > 0 and _near(_grads(model), exact)


# ---- process groups


def _data_parallel(rank: int, world_size: int, backend: str) -> Any:
    from cgx_utils import CGXState, cgx_hook

    model = _model()
    ddp = DistributedDataParallel(model)
    if backend == "cgx":
        state = CGXState(None, compression_params={"bits": 8, "bucket_size": 64})
        ddp.register_comm_hook(state, cgx_hook)
    results = []
    for compressed in (False, True):
        context = compress_saved(EXACT_ENOUGH)
        x = _x(rank)
        if compressed:
            with context:
                loss = ddp(x).square().mean()
        else:
            loss = ddp(x).square().mean()
        loss.backward()
        results.append(_grads(model))
    assert context.bytes_saved > 0
    assert _near(results[1], results[0], 0.05)
    return results[1]


@pytest.mark.parametrize("backend", ("gloo", "cgx"))
def test_with_data_parallel_training(backend: str) -> None:
    first, second = run_pooled(_data_parallel, 2, backend, backend=backend)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def _watched(rank: int, world_size: int) -> list[Any]:
    from cgx_utils import CGXState, Monitor, cgx_hook

    model = DistributedDataParallel(_model())
    model.register_comm_hook(CGXState(None), cgx_hook)
    records: list[Any] = []
    handle = activations.compress(model.module, EXACT_ENOUGH)
    measured = []
    with Monitor(model, 3, records.append, saved=handle):
        for step in range(6):
            measured.append(handle.measure)
            model(_x(step)).square().mean().backward()
    return [measured, *(record["saved_errors"] for record in records)]


def test_errors_of_saved_tensors_are_in_the_monitors_records() -> None:
    measured, first, second = run_pooled(_watched, 2, backend="cgx")[0]
    assert measured == [False, False, True] * 2  # only what a record shows
    for errors in (first, second):
        assert set(errors) >= {"0.norm", "0.up", "1.down"}
        assert all(0 < error < 0.02 for error in errors.values())


def _keys_of_ranks(rank: int, world_size: int) -> torch.Tensor:
    weight = torch.ones(4000, requires_grad=True)
    with compress_saved(FEW, step=3):
        loss = (weight * _x().view(-1)[:4000]).sum()
    (found,) = torch.autograd.grad(loss, weight)
    return found


def test_ranks_round_differently() -> None:
    first, second = run_pooled(_keys_of_ranks, 2, backend="gloo")
    assert not torch.equal(first, second)


def _sharded(rank: int, world_size: int) -> bool:
    from torch.distributed.fsdp import fully_shard

    def trained(compressed: bool) -> list[torch.Tensor]:
        model = _model()
        for block in model:
            fully_shard(block)
        fully_shard(model)
        context = compress_saved(EXACT_ENOUGH)
        if compressed:
            with context:
                loss = model(_x(rank)).square().mean()
            assert context.bytes_saved > 0
        else:
            loss = model(_x(rank)).square().mean()
        loss.backward()
        return [p.grad.full_tensor() for p in model.parameters() if p.grad is not None]

    return _near(trained(True), trained(False))


def test_parameters_that_fsdp_reshards_come_back_gathered() -> None:
    """A bug of others: a copy of a sharded parameter was kept, or its freed storage was read."""
    assert run_pooled(_sharded, 2, backend="gloo") == [True, True]
    assert not dist.is_initialized()
