"""Finds the DistributedDataParallel instance of a communication hook; torch does not pass it to the
hook.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def find_owner(state: Any, parameters: Iterable[torch.Tensor]) -> DistributedDataParallel | None:
    """The live DDP instance that `state` is registered with, or that has it as `cgx_state`, or else
    the one that owns `parameters`.

    RuntimeError if the state is registered with two. Walks the garbage collector's objects (tens of
    milliseconds): for new bucket layouts only.
    """
    found = instances()
    owners = _registered_with(state, found)
    if len(owners) > 1:
        del found, owners
        gc.collect()  # an unused instance may still wait for the garbage collector
        found = instances()
        owners = _registered_with(state, found)
    if len(owners) > 1:
        raise RuntimeError(
            f"one CGXState is registered with {len(owners)} DistributedDataParallel instances; it "
            "belongs to one: make a CGXState for each"
        )
    if owners:
        return owners[0]
    # A hook that wraps cgx_hook may be registered with a state of its own.
    wanted = {id(parameter) for parameter in parameters}
    if not wanted:
        return None
    holders = [ddp for ddp in found if wanted <= {id(p) for p in ddp.parameters()}]
    return holders[0] if len(holders) == 1 else None


def _registered_with(
    state: Any, found: list[DistributedDataParallel]
) -> list[DistributedDataParallel]:
    return [
        ddp
        for ddp in found
        if ddp.__dict__.get("cgx_state") is state
        or any(registered is state for _, registered in getattr(ddp, "_comm_hooks", ()))
    ]


def instances() -> list[DistributedDataParallel]:
    """All that live; some may only wait for the garbage collector."""
    classes, found = [DistributedDataParallel], {DistributedDataParallel}
    while classes:
        new = [c for c in classes.pop().__subclasses__() if c not in found]
        classes += new
        found.update(new)
    # type(), not isinstance(): the latter would run __class__ properties of foreign objects.
    # One whose constructor has failed has no parameters.
    return [o for o in gc.get_objects() if type(o) in found and "_parameters" in o.__dict__]
