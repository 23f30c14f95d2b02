"""Checks of what the collectives of torch_cgx are given, and their common endings."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C
from torch_cgx._config import codec_of
from torch_cgx._dtypes import COMPUTED
from torch_cgx._steps import number_of_call
from torch_cgx._warnings import warn


def key_of(backend: Any, step: int | None) -> dict[str, Any]:
    return {} if step is None else {"step": step, "tensor_number": number_of_call(backend, step)}


def codec_of_call(
    what: str, config: Any, backend: _C.ProcessGroupCGX, tensor: torch.Tensor
) -> _C.Codec | None:
    """The codec of a call that is exact without a config; None: exact. ValueError for a tensor that
    cannot be compressed.
    """
    if config is None:
        return None
    settings = backend.settings()
    codec = codec_of(config, settings)
    if codec is None:
        return None
    if tensor.dtype not in COMPUTED:
        raise ValueError(
            f"cgx: {what} of a {tensor.dtype} tensor was asked to compress; allowed: float32, "
            "float16, bfloat16"
        )
    if settings["intra_compress"] is False and len(set(backend.hosts())) == 1:
        return None
    return codec


def finish(work: dist.Work, async_op: bool) -> dist.Work | None:
    if async_op:
        return work
    work.wait()
    return None


def not_a_member(group: Any, name: str) -> bool:
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        return False
    warn(f"torch_cgx.{name}: this rank is not in the given group; nothing done")
    return True


def check_async_op(async_op: Any) -> None:
    if not isinstance(async_op, bool):
        raise TypeError(
            f"async_op={async_op!r}; allowed: True, False. A configuration is given by name: "
            "config=..."
        )


def check_residual(residual: Any) -> None:
    """Its type; the engine checks what depends on the other tensors."""
    if residual is not None and not isinstance(residual, torch.Tensor):
        raise TypeError(
            f"residual is of type {type(residual).__name__}; allowed: torch.Tensor, None"
        )


def check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is of type {type(tensor).__name__}; allowed: torch.Tensor")
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        raise TypeError(f"{name} has the layout {layout}; allowed: torch.strided")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} is not contiguous (strides {tuple(tensor.stride())}); allowed: a contiguous "
            f"tensor, such as {name}.contiguous()"
        )


def rank_of(group: dist.ProcessGroup, peer: int | None, in_group: int | None, name: str) -> int:
    """A rank in the group, of a global one or one in the group. TypeError, ValueError."""
    for what, value in ((name, peer), (f"group_{name}", in_group)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{what}={value!r}; allowed: a rank, None")
    if (peer is None) == (in_group is None):
        raise ValueError(
            f"{name}={peer}, group_{name}={in_group}; allowed: one of them, and None for the other"
        )
    if peer is not None:
        ranks = dist.get_process_group_ranks(group)
        if peer not in ranks:
            raise ValueError(f"{name}={peer}; allowed: global ranks of the group, {ranks}")
        return ranks.index(peer)
    assert in_group is not None
    if not 0 <= in_group < group.size():
        raise ValueError(f"group_{name}={in_group}; allowed: 0 to {group.size() - 1}")
    return in_group
