"""What a program sets for all of torch changes no result: the default dtype and device, inference
mode, deterministic algorithms with filled memory.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, DiLoCo, Monitor, fsdp
from tests.distributed import run_pooled
from tests.utils.training import digest, gradients, wrap
from torch_cgx import bounded
from torch_cgx.cost import speeds


@contextlib.contextmanager
def _dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    kept = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = kept
        torch.use_deterministic_algorithms(False)


MODES = {
    "float64": lambda: _dtype(torch.float64),
    "float16": lambda: _dtype(torch.float16),
    "bfloat16": lambda: _dtype(torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "deterministic": _deterministic,
}


def _net():
    """Made before a mode is on: a program that wants float32 says so."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def _hook(model, x, memory):
    state = CGXState(
        config={"bits": 4, "bucket_size": 64},
        error_feedback=True,
        error_feedback_memory=memory,
        adaptive=AdaptiveBits(average_bits=3, candidates=(2, 4), every=1),
    )
    found = wrap(model, state)
    records = []
    with Monitor(found, 1, records.append):
        for _ in range(3):
            found.zero_grad()
            found(x).square().mean().backward()
    errors = [row["relative_error"] for row in state.report().rows]
    saved = state.state_dict()["error_feedback"]["residuals"]
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    return digest(gradients(model)), digest(saved), errors


def _diloco(model, x):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco = DiLoCo(model, inner, every=1, config={"bits": 4, "bucket_size": 64})
    for _ in range(2):
        inner.zero_grad()
        model(x).square().mean().backward()
        inner.step()
        diloco.step()
    saved = diloco.state_dict()
    diloco.load_state_dict(saved)
    assert all(r.dtype == torch.float32 for r in saved["residuals"].values())
    return digest(dict(model.named_parameters())), digest(saved["residuals"])


def _fsdp(model, x):
    fsdp.compress(model, {"bits": 4}, {"bits": 8})
    model(x).square().mean().backward()
    return digest({n: p.grad.to_local() for n, p in model.named_parameters()})


def _calls(values, residual):
    """The calls of torch_cgx, compressors, and what the tools measure."""
    found = {}
    for config in ({"bits": 2}, {"codec": "rotated", "bits": 3}):
        out = values.clone()
        torch_cgx.all_reduce(out, config=config, residual=residual)
        found[str(config)] = out
    found["residual"] = residual
    pair = [values, -2 * values]
    left = [values.clone().zero_() for _ in pair]
    simulated = torch_cgx.simulate(pair, {"bits": 2}, residuals=left)
    found["simulated"] = simulated.result
    payload = bounded.compress(values, max_error=1e-3)
    found["decompressed"] = bounded.decompress(payload)
    tree = {"w": values.clone()}
    bounded.broadcast(tree, max_error=1e-2)
    found |= tree
    assert all(t.dtype == torch.float32 and t.device.type == "cpu" for t in found.values())
    assert speeds.measure_speed({"bits": 4})
    return digest(found), simulated.error


def _run(rank, world_size, mode):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    nets = [_net() for _ in range(5)]
    fully_shard(nets[4], mesh=dist.init_device_mesh("cpu", (world_size,)))
    values, residual = x.flatten().clone(), torch.zeros(512)
    with MODES[mode]() if mode else contextlib.nullcontext():
        found = [_hook(net, x, m) for net, m in zip(nets, ("fp32", "bf16", "8bit"), strict=False)]
        found += [_diloco(nets[3], x), _fsdp(nets[4], x), _calls(values, residual)]
    return found


@pytest.fixture(scope="module")
def plain():
    return run_pooled(_run, 2, None)


@pytest.mark.parametrize("mode", MODES)
def test_the_results_are_the_same(plain, mode):
    for found, wanted in zip(run_pooled(_run, 2, mode, timeout=120), plain, strict=True):
        assert found == wanted


def _in_inference_mode(rank, world_size):
    """A state that is loaded there goes on outside, as do residuals and calls."""
    model, other = _net(), _net()
    state = CGXState(config={"bits": 4}, error_feedback=True)
    found = wrap(model, state)
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    found(x).square().mean().backward()
    inner = torch.optim.SGD(other.parameters(), lr=0.1)
    diloco = DiLoCo(other, inner, every=1, config={"bits": 4})
    with torch.inference_mode():
        state.load_state_dict(state.state_dict())
        diloco.load_state_dict(diloco.state_dict())
        assert state.report().rows
        out = x.clone()
        torch_cgx.all_reduce(out, config={"bits": 4})
        torch_cgx.simulate([x, x], {"bits": 4})
    for _ in range(2):
        found(x).square().mean().backward()
        other(x).square().mean().backward()
        inner.step()
        diloco.step()
    return diloco.rounds


def test_inference_mode_leaves_nothing_behind():
    assert run_pooled(_in_inference_mode, 2) == [2, 2]


def _made_in_inference_mode(rank, world_size):
    model = _net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.inference_mode():
        diloco = DiLoCo(model, inner, every=1, config={"bits": 4})
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        model(x).square().mean().backward()
        inner.step()
        diloco.step()
    return diloco.rounds


def test_a_diloco_may_be_made_in_inference_mode():
    assert run_pooled(_made_in_inference_mode, 2) == [2, 2]
