"""fully_shard (FSDP2) on one mesh dimension and on two (HSDP): over cgx as over gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

import torch_cgx
from tests.compat.compare import compressed, over, same_as_gloo
from tests.compat.training import Net, batch, learned, loss_of, train, values


def _shard(world_size, hybrid=False, **options):
    net = Net()
    if hybrid:
        shape, names = (2, world_size // 2), ("replicate", "shard")
        options["mesh"] = dist.init_device_mesh("cpu", shape, mesh_dim_names=names)
    else:
        options["mesh"] = dist.init_device_mesh("cpu", (world_size,))
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def _whole(model):
    return values((name, p.full_tensor()) for name, p in model.named_parameters())


def _trained(rank, world_size, options, steps=4):
    model = _shard(world_size, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    return losses, _whole(model)


def _ranks_agree(found):
    for other in found[1:]:
        assert all(torch.equal(found[0][1][name], other[1][name]) for name in other[1])


HALF = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
CASES = {
    "plain": {},
    "no reshard": {"reshard_after_forward": False},
    "bf16": {"mp_policy": HALF},
    "bf16, fp32 sums": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
    "fp16": {"mp_policy": MixedPrecisionPolicy(torch.float16, torch.float16)},
    "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}


@pytest.mark.parametrize("case", CASES)
def test_options(case):
    _ranks_agree(same_as_gloo(_trained, 2, CASES[case]))


@pytest.mark.parametrize("options", [{}, {"mp_policy": HALF}], ids=["fp32", "bf16"])
def test_two_mesh_dimensions(options):
    _ranks_agree(same_as_gloo(_trained, 4, {"hybrid": True, **options}))


def test_three_ranks():
    """Shards of unequal size; gloo sums three ranks in another order."""
    _ranks_agree(same_as_gloo(_trained, 3, {}))


def _methods(rank, world_size):
    model = _shard(world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    assert isinstance(model, FSDPModule)
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    model.set_force_sum_reduction_for_comms(True)  # or else PREMUL_SUM, which gloo has not
    model.set_gradient_divide_factor(float(world_size * 2))
    norms = []
    for step in range(3):
        for part in range(2):  # accumulation
            model.set_requires_gradient_sync(part == 1)
            model.set_is_last_backward(part == 1)
            loss_of(model, batch(rank, 2 * step + part)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()
    whole = dcp_state.StateDictOptions(full_state_dict=True)
    saved = dcp_state.get_model_state_dict(model, options=whole)
    states = dcp_state.get_optimizer_state_dict(model, optimizer, options=whole)["state"]
    copies = {name: value.clone() for name, value in saved.items()}
    again = _shard(world_size)
    spread = dcp_state.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp_state.set_model_state_dict(again, saved if rank == 0 else {}, options=spread)
    restored = _whole(again)
    momentum = {name: s["momentum_buffer"].clone() for name, s in states.items()}
    return norms, restored, copies, momentum


def test_accumulation_clipping_and_state():
    first, second = same_as_gloo(_methods, 2)
    assert first[0] == second[0] and min(first[0]) > 0
    assert first[1].keys() == first[2].keys() and first[3]
    assert all(torch.equal(first[1][name], first[2][name]) for name in first[2])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[2])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("options", [{}, {"mp_policy": HALF}], ids=["fp32", "bf16"])
def test_compressed_training_converges(options, bits):
    found = compressed(_trained, 2, options, 60, bits=bits)
    assert all(learned(losses) for losses, _ in found)
    _ranks_agree(found)


def test_compressed_training_on_two_mesh_dimensions_converges():
    found = compressed(_trained, 4, {"hybrid": True}, 60)
    assert all(learned(losses) for losses, _ in found)
    _ranks_agree(found)


class _Compressed(ReduceScatter):
    """Compresses the gradients of the modules that it is set for, and nothing else."""

    def __init__(self, config):
        self.config = config

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return torch_cgx.reduce_scatter_single(
            output_tensor, input_tensor, op, group, config=self.config, async_op=async_op
        )


def _chosen(rank, world_size, steps):
    model = _shard(world_size)
    for block in model.blocks:
        block.set_custom_reduce_scatter(_Compressed({"bits": 4, "bucket_size": 64}))
    loss_of(model, batch(rank, 0)).backward()
    first = values((name, p.grad.full_tensor()) for name, p in model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    return losses, _whole(model), first, torch_cgx.stats()["compressed_calls"]


def _first_gradients(rank, world_size):
    model = _shard(world_size)
    loss_of(model, batch(rank, 0)).backward()
    return values((name, p.grad.full_tensor()) for name, p in model.named_parameters())


def test_compression_of_chosen_modules():
    found = [run.value for run in over("cgx", _chosen, 2, 60)]
    assert all(learned(losses) for losses, *_ in found)
    _ranks_agree(found)
    exact = over("gloo", _first_gradients, 2)[0].value
    for name, gradient in found[0][2].items():
        assert torch.equal(gradient, exact[name]) is ("blocks" not in name), name
    assert found[0][3] == 2 * 61


def _replicas(rank, world_size, steps):
    options = torch_cgx.Options(bits=4, bucket_size=64)
    mesh = dist.init_device_mesh(
        "cpu",
        (2, 2),
        mesh_dim_names=("replicate", "shard"),
        backend_override={"replicate": ("cgx", options)},
    )
    model = fully_shard(Net(), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = train(model, rank, steps, optimizer)
    counts = [torch_cgx.stats(mesh.get_group(i))["compressed_calls"] for i in range(2)]
    return losses, _whole(model), counts


def test_compression_between_replicas_only():
    found = [run.value for run in over("cgx", _replicas, 4, 60)]
    assert all(learned(losses) for losses, *_ in found)
    _ranks_agree(found)
    assert all(counts == [60, 0] for *_, counts in found)


def _outputs(rank, world_size):
    with torch.no_grad():
        return _shard(world_size)(batch(rank, 0)[0])


def test_gathers_of_weights_are_exact_unless_asked_for():
    exact = over("gloo", _outputs, 2)[0].value
    env = {"CGX_COMPRESSION_QUANTIZATION_BITS": "8"}
    assert torch.equal(over("cgx", _outputs, 2, env=env)[0].value, exact)
    rough = compressed(_outputs, 2, collectives="all_gather")[0]
    assert 0 < (rough - exact).norm() < 0.05 * exact.norm()
