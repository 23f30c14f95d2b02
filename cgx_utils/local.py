"""Whether a model trains locally, as `DiLoCo` needs it, or somebody averages its gradients."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.owner import instances
from torch_cgx._warnings import warn


def check_local(
    model: torch.nn.Module,
    parameters: Iterable[torch.Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """ValueError if the model is, or holds, a DistributedDataParallel that averages gradients over
    ranks of `group`, or an FSDP1 module, whose parameters are shards. A warning if another instance
    has these parameters: the program may train with it.
    """
    inside = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    for ddp in inside:
        shared = _shared(ddp, group)
        if len(shared) > 1:
            raise ValueError(
                f"DiLoCo: the model {_place(ddp, model)} a DistributedDataParallel, which averages "
                f"the gradients of every step over ranks {shared}, so that nothing is saved; "
                "allowed: the module in it (model.module), and training with that one in place of "
                "the DistributedDataParallel"
            )
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import
    if fsdp is not None and any(
        isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules()
    ):
        raise ValueError(
            "DiLoCo: the model is sharded by FullyShardedDataParallel; allowed: a module whose "
            "parameters are whole on every rank"
        )
    wanted = {id(parameter) for parameter in parameters}
    kept = {id(ddp) for ddp in inside}
    if _elsewhere(wanted, kept, group):
        gc.collect()  # an unused instance may still wait for the garbage collector
        shared = _elsewhere(wanted, kept, group)
        if shared:
            warn(
                "DiLoCo: a DistributedDataParallel has the model's parameters, too. A step that is "
                f"taken with it sends every gradient to ranks {shared}: train with the module "
                "that DiLoCo was given, and delete the DistributedDataParallel"
            )


def _elsewhere(wanted: set[int], kept: set[int], group: dist.ProcessGroup | None) -> list[int]:
    """The ranks over which another instance averages gradients of these parameters."""
    for ddp in instances():
        if id(ddp) not in kept and any(id(p) in wanted for p in ddp.parameters()):
            shared = _shared(ddp, group)
            if len(shared) > 1:
                return shared
    return []


def _shared(ddp: DistributedDataParallel, group: dist.ProcessGroup | None) -> list[int]:
    """The ranks, of the default group, that are in both groups."""
    whole = dist.distributed_c10d._get_default_group()
    mine = set(dist.get_process_group_ranks(group or whole))
    try:
        theirs = dist.get_process_group_ranks(ddp.process_group)
    except (KeyError, ValueError, AttributeError):  # not one of torch.distributed's
        return []
    return sorted(mine.intersection(theirs))


def _place(ddp: DistributedDataParallel, model: torch.nn.Module) -> str:
    return "is" if ddp is model else "holds"
