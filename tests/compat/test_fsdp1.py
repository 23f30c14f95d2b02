"""FullyShardedDataParallel (FSDP1), every sharding strategy: over cgx as over gloo."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.compat.compare import check_equal, compressed, over, same_as_gloo
from tests.compat.training import Block, Net, batch, learned, loss_of, train, values


def _wrap(world_size, strategy, **options):
    if "HYBRID" in strategy:
        options["device_mesh"] = dist.init_device_mesh(
            "cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard")
        )
    return FSDP(
        Net(),
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy([Block]),
        device_id=torch.device("cpu"),
        **options,
    )


def _whole(model):
    """The full parameters."""
    with FSDP.summon_full_params(model):
        return values((n.replace("_fsdp_wrapped_module.", ""), p) for n, p in _pairs(model))


def _pairs(model):
    return [(name, p) for name, p in model.named_parameters() if p.numel()]


def _trained(rank, world_size, strategy, options, steps=4):
    model = _wrap(world_size, strategy, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    return losses, _whole(model)


STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
HYBRID = ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("use_orig_params", [True, False])
def test_strategies(strategy, use_orig_params):
    options = {"use_orig_params": use_orig_params}
    # FSDP1 reduces and scatters sums: without compression those go to gloo.
    first, second = same_as_gloo(_trained, 2, strategy, options, engine=strategy == "NO_SHARD")
    assert first[1].keys() == second[1].keys() and len(first[1]) > 0
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


@pytest.mark.parametrize("strategy", HYBRID)
def test_hybrid_strategies(strategy):
    found = same_as_gloo(_trained, 4, strategy, {})
    for other in found[1:]:
        assert all(torch.equal(found[0][1][name], other[1][name]) for name in other[1])


@pytest.mark.parametrize(
    "options",
    [
        {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)},
        {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)},
        {"backward_prefetch": BackwardPrefetch.BACKWARD_POST, "forward_prefetch": True},
        {"limit_all_gathers": False},
    ],
    ids=["bf16", "bf16, fp32 sums", "prefetch", "no limit"],
)
def test_options(options):
    same_as_gloo(_trained, 2, "FULL_SHARD", options)


def _more(rank, world_size):
    """Accumulation, clipping, scaling and every kind of state."""
    model = _wrap(world_size, "FULL_SHARD", use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = ShardedGradScaler(device="cpu", init_scale=256.0)
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            scaler.scale(loss_of(model, batch(rank, 2 * step))).backward()
        scaler.scale(loss_of(model, batch(rank, 2 * step + 1))).backward()
        scaler.unscale_(optimizer)
        norms.append(model.clip_grad_norm_(0.5).item())
        scaler.step(optimizer)
        scaler.update()
    whole = dcp_state.StateDictOptions(full_state_dict=True)
    states = dcp_state.get_optimizer_state_dict(model, optimizer, options=whole)["state"]
    return norms, _whole(model), {k: v["exp_avg"].clone() for k, v in states.items()}


def test_accumulation_clipping_scaling_and_state():
    first, second = same_as_gloo(_more, 2)
    assert first[0] == second[0] and min(first[0]) > 0
    assert first[2], "rank 0 has the optimizer's state"


def _restored(rank, world_size):
    model = _wrap(world_size, "FULL_SHARD", use_orig_params=True)
    train(model, rank, 1)
    whole = FullStateDictConfig(rank0_only=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole):
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        train(model, rank, 1)
        changed = _whole(model)
        model.load_state_dict(saved)
    again = _whole(model)
    return all(torch.equal(saved[n], again[n]) for n in saved), changed["last.bias"]


def test_state_comes_back():
    for same, changed in same_as_gloo(_restored, 2):
        assert same and changed.norm() > 0


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_training_converges(strategy, bits):
    first, second = compressed(_trained, 2, strategy, {}, 60, bits=bits)
    assert learned(first[0]) and learned(second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_compressed_hybrid_training_converges():
    found = compressed(_trained, 4, "HYBRID_SHARD", {}, 60)
    for losses, parameters in found:
        assert learned(losses)
        assert all(torch.equal(parameters[n], found[0][1][n]) for n in parameters)


def test_gathers_of_weights_stay_exact():
    """On a CPU, FSDP1 gathers into lists of tensors, which no setting compresses."""
    with pytest.raises(AssertionError, match=r"\[0, 0\]"):
        compressed(_outputs, 2, collectives="all_gather")


def _outputs(rank, world_size):
    with torch.no_grad():
        return _wrap(world_size, "FULL_SHARD")(batch(rank, 0)[0])


def _refused(rank, world_size):
    with pytest.raises(RuntimeError, match="accelerator"):
        train(_wrap(world_size, "FULL_SHARD", cpu_offload=CPUOffload(True)), rank, 1)
    model = _wrap(world_size, "FULL_SHARD")
    model.register_comm_hook(
        default_hooks.LowPrecisionState(dist.group.WORLD), default_hooks.fp16_compress_hook
    )
    with pytest.raises(RuntimeError, match="unknown parameter type"):  # a stream
        train(model, rank, 1)
    with pytest.raises(ValueError) as caught:
        _wrap(world_size, "FULL_SHARD", sync_module_states=True)
    return str(caught.value)


def test_options_that_torch_has_for_accelerators_only():
    for backend in ("gloo", "cgx"):
        for run in over(backend, _refused, 2):
            assert "sync_module_states" in run.value


def _sharded_state(rank, world_size):
    model = _wrap(world_size, "FULL_SHARD", use_orig_params=True)
    train(model, rank, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            saved = model.state_dict()
            whole = {n: torch.empty(v.size()) if rank == 0 else None for n, v in saved.items()}
            for name, value in saved.items():
                value.gather(0, whole[name])
    return whole


def test_sharded_state():
    expected = over("gloo", _sharded_state, 2)
    found = over("cpu:cgx", _sharded_state, 2)
    check_equal(found[0].value, expected[0].value, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch picks the CUDA device, which is there")
def test_sharded_tensors_gather_where_the_backend_is_named_for_cuda_too():
    """torch takes the first device beside the CPU that a backend is registered for, and asks for
    the current one.
    """
    for outcome in over("cgx", _sharded_state, 2, check=False):
        assert "_get_preferred_device" in outcome.error
