"""Where the parameters of a `fully_shard` module lie in the flat buffers of its collectives.

FSDP2 gathers and reduces the parameters of one `fully_shard` call in one flat buffer. Rank r's
shard of it holds, one behind the other, rank r's shard of every parameter: its rows r*k to (r+1)*k
for k = ceil(rows / ranks), padded with zeros to k rows. A gather holds all parameters, a
reduce-scatter the parameters that have a gradient. Torch's `FSDPParamGroup` gives their order; it
is no public class, so only this module reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from torch_cgx._policy.names import Named, named_of


class Run(NamedTuple):
    """Neighbouring values of a shard that are all compressed, or all exact."""

    offset: int
    numel: int
    compressed: bool


@dataclass
class Unit:
    """What one call of `fully_shard` made.

    module: one of the modules that share the buffer. group: torch's FSDPParamGroup. named: the
    parameters with their names, in the buffer's order. compressed: likewise, which of them are not
    exact. warned: whether a warning said that a backward pass left parameters without gradients.
    reductions: reduce-scatters so far.
    """

    module: FSDPModule
    group: Any
    named: list[Named]
    compressed: list[bool]
    warned: bool = False
    reductions: int = 0

    @property
    def names(self) -> list[str]:
        """Of the parameters, in the buffer's order."""
        return [one.name for one in self.named]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The sharded parameters, as DTensors of the whole shape."""
        return [one.sharded_param for one in self.group.fsdp_params]

    @property
    def shard_group(self) -> dist.ProcessGroup:
        found: dist.ProcessGroup = self.group.mesh_info.shard_process_group
        return found

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The group of a mesh's replica dimension (HSDP)."""
        found: dist.ProcessGroup | None
        found = getattr(self.group.mesh_info, "replicate_process_group", None)
        return found

    def numels(self, trained: bool = False) -> list[int]:
        """Values of each parameter in one shard of a gather, padding included; `trained`: of a
        reduce-scatter, which leaves parameters without `requires_grad` out.
        """
        every = self.group.fsdp_params
        return [
            0
            if trained and not one.sharded_param.requires_grad
            else one.padded_sharded_param_size.numel()
            for one in every
        ]

    def runs(self, trained: bool = False) -> list[Run]:
        """A shard's values in order, as the longest runs of one kind."""
        found: list[Run] = []
        offset = 0
        for numel, compressed in zip(self.numels(trained), self.compressed, strict=True):
            if numel and found and found[-1].compressed is compressed:
                found[-1] = Run(found[-1].offset, found[-1].numel + numel, compressed)
            elif numel:
                found.append(Run(offset, numel, compressed))
            offset += numel
        return found

    def check(self, shard: torch.Tensor) -> None:
        """RuntimeError unless `shard`, this rank's input of a gather, holds this rank's parameters
        in the layout of this module: another version of torch may use another layout.
        """
        offset = 0
        for name, parameter, numel in zip(self.names, self.parameters, self.numels(), strict=True):
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local = local.detach().reshape(-1).to(shard.device, shard.dtype)
            found = shard[offset : offset + local.numel()]
            if not torch.equal(found.view(torch.uint8), local.view(torch.uint8)):
                raise RuntimeError(
                    f"cgx_utils.fsdp: the buffer of the all-gather does not hold {name!r} at value "
                    f"{offset}: torch {torch.__version__} or an extension of the parameter lays it "
                    "out in another way; leave out `weights`, or set `weights=None`"
                )
            offset += numel


def units_of(model: torch.nn.Module) -> list[Unit]:
    """The units of a model; ValueError if there is none. Reshards the model's parameters."""
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ValueError(
            f"the {type(model).__name__} has no module that fully_shard was applied to; call "
            "fully_shard on it first"
        )
    for module in modules:
        module.reshard()
    named = {id(one.parameter): one for one in named_of(model)}
    found: dict[int, Unit] = {}
    for module in modules:
        for group in _groups(module):
            if id(group) not in found and group.fsdp_params:
                own = [one.sharded_param for one in group.fsdp_params]
                known = [named.get(id(p), Named("", p, ("",), ())) for p in own]
                found[id(group)] = Unit(module, group, known, [False] * len(known))
    return list(found.values())


def _groups(module: FSDPModule) -> list[Any]:
    """torch's parameter groups of a module: one, none if it has no parameters of its own."""
    label = type(module).__name__
    try:
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # torch >= 2.13
        if groups is None:
            groups = [g for g in (state._fsdp_param_group,) if g is not None]
        for group in groups:
            _ = group.mesh_info, group.mp_policy, group.device
            for one in group.fsdp_params:
                _ = one.sharded_param, one.padded_sharded_param_size
    except AttributeError as error:
        raise RuntimeError(
            f"cgx_utils.fsdp does not know how torch {torch.__version__} lays out the shards of "
            f"{label} ({error}); known: torch 2.11 to 2.14. torch_cgx.Options(bits=...) of the "
            "group compress whole buffers"
        ) from error
    if len(groups) > 1:
        raise ValueError(
            f"{label} has parameters on {len(groups)} meshes (shard_placement_fn); allowed: one "
            "mesh for all parameters of a fully_shard call"
        )
    if groups and not hasattr(groups[0].mesh_info, "shard_process_group"):
        raise ValueError(
            f"{label} is replicated, not sharded; use DistributedDataParallel with cgx_hook"
        )
    return list(groups)
