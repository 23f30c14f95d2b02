"""Complex parameters under the hook: exact, also beside others that are compressed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_cgx
from cgx_utils import AdaptiveBits, CGXState, DiLoCo, Monitor
from tests.distributed import run_pooled
from tests.utils.training import gather, wrap


class Mixed(nn.Module):
    """A complex matrix and a real one, both large enough to be compressed."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.real = nn.Linear(64, 64)
        self.turn = nn.Parameter(torch.randn(64, 64, dtype=dtype))

    def forward(self, x):
        y = torch.view_as_real(self.real(x).to(self.turn.dtype) @ self.turn)
        return y.square().mean()


def _data(rank):
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))


OPTIONS = {
    "plain": {},
    "all settings": {
        "error_feedback": True,
        "adaptive": AdaptiveBits(average_bits=3, candidates=(2, 4), every=1),
    },
    "selected": {"layer_filter": ".", "overrides": {"turn": {"bits": 2}}},
}


def _reduced(rank, world_size, name, options, group_bits, ddp):
    """(distance of the complex gradient to the mean, whether the real one is compressed, report)"""
    dtype = getattr(torch, name)
    group = dist.new_group(backend="cgx", pg_options=torch_cgx.Options(bits=group_bits))
    state = CGXState(config={"bits": 4, "bucket_size": 64}, **OPTIONS[options])
    local, module = Mixed(dtype), Mixed(dtype)
    model = wrap(module, state, process_group=group, **ddp)
    monitor = Monitor(model, 1, lambda record: None)
    for _ in range(3):
        model.zero_grad()
        model(_data(rank)).backward()
    local(_data(rank)).backward()
    exact = dist.new_group(backend="gloo")
    mean = torch.stack(gather(torch.view_as_real(local.turn.grad), exact)).sum(0) / world_size
    found = torch.view_as_real(module.turn.grad)
    real = torch.stack(gather(local.real.weight.grad, exact)).mean(0)
    rows = {row["name"]: row for row in state.report().rows}
    saved = state.state_dict()
    monitor.close()
    return {
        "distance": ((found - mean).abs().max() / mean.abs().max()).item(),
        "compressed": not torch.allclose(module.real.weight.grad, real, rtol=1e-3, atol=1e-6),
        "row": (rows["turn"]["codec"], rows["turn"]["bits"], rows["turn"]["why"]),
        "bits": saved.get("adaptive", {}).get("bits", {}),
        "residuals": sorted(saved.get("error_feedback", {}).get("residuals", {})),
        "errors": sorted(monitor._observer.errors),
    }


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex_gradients_are_exact_and_others_compressed(name, options):
    ddp = {"gradient_as_bucket_view": options == "plain"}
    for found in run_pooled(_reduced, 2, name, options, 2, ddp):
        assert found["distance"] < 1e-6
        assert found["compressed"]
        width = {"complex64": 64, "complex128": 128}[name]
        assert found["row"] == ("exact", width, f"dtype torch.{name}")
        assert "turn" not in found["bits"] and "turn" not in found["residuals"]
        assert found["errors"] == ["real.bias", "real.weight"]


def _refused(rank, world_size):
    model = Mixed(torch.complex64)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="'turn' is torch.complex64; allowed: torch.float32"):
        DiLoCo(model, inner, every=1)
    from torch.distributed.fsdp import fully_shard

    from cgx_utils import fsdp

    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    with pytest.raises(TypeError, match="'turn' is gathered or reduced as torch.complex64"):
        fsdp.compress(model, {"bits": 4})
    return True


def test_diloco_and_fsdp_name_a_complex_parameter():
    assert run_pooled(_refused, 2) == [True, True]
