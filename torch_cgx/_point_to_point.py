"""Messages between two ranks with a configuration per call.

They work like their namesakes in torch.distributed. With a config the sender encodes its values
into one message (torch_cgx/_message.py), which torch.distributed carries as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C, _feedback
from torch_cgx._arguments import (
    check_residual,
    check_tensor,
    codec_of_call,
    not_a_member,
    rank_of,
)
from torch_cgx._backend import backend_of, group_of
from torch_cgx._message import device_of_bytes, message_of
from torch_cgx._steps import check_step, key_of_message
from torch_cgx._work import WorkWithEnd


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> None:
    """Sends `tensor` to one rank, which calls `recv` with an equal config.

    The first five arguments are those of torch.distributed.send. tensor: contiguous; fp32, fp16 or
    bf16 if it is compressed. config: as in `all_reduce`; None: exact, whatever the group's
    configuration says. residual: error feedback, a contiguous fp32 or bf16 tensor of the tensor's
    shape and device, which the caller keeps from message to message, zeros at first: tensor +
    residual is sent (rounded to the tensor's dtype, then encoded), and residual gets what the
    receiver does not get of it; where that is not finite, it stays. step: keys random numbers, as
    in `all_reduce`, in place of the number of this rank's message on the group; the receiver does
    not need it.

    ValueError and TypeError name a bad argument before anything is sent; CgxError and its
    subclasses report later failures. A receiver that expects another length, type or config gets a
    MismatchError that names both; so does the sender, where the lengths in bytes differ and it
    waits still.
    """
    if not_a_member(group, "send"):
        return
    group_ = group_of(group)
    peer = rank_of(group_, dst, group_dst, "dst")
    if peer == group_.rank():
        raise ValueError(f"dst is rank {peer} of the group, this rank; allowed: another rank")
    work = isend(tensor, None, group_, tag, peer, config=config, residual=residual, step=step)
    if work is not None:
        work.wait()


def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> dist.Work | None:
    """As `send`, but returns a Work at once, and may send to this rank itself. With a config or a
    residual, `tensor` and `residual` are the caller's again when it returns.
    """
    if not_a_member(group, "isend"):
        return None
    check_tensor("tensor", tensor)
    check_residual(residual)
    check_step(step)
    group_ = group_of(group)
    peer = rank_of(group_, dst, group_dst, "dst")
    backend = backend_of(group_, tensor.device)
    codec = codec_of_call("send", config, backend, tensor)
    if residual is not None:
        _feedback.check("send", residual, tensor, codec)
    with torch.no_grad():
        sent = None if residual is None else _feedback.Sent(tensor, residual)
        if codec is None:
            values = tensor if sent is None else sent.values
            work = dist.isend(values, group=group_, tag=tag, group_dst=peer)
            if sent is not None:
                sent.keep([values])
            return work
        message = message_of(codec, tensor, backend)
        values = tensor.detach() if sent is None else sent.values
        packed = message.pack(values, (*key_of_message(backend, step), backend.rank()))
        moved = packed.to(device_of_bytes(tensor, backend))
        work = dist.isend(moved, group=group_, tag=tag, group_dst=peer)
        if sent is not None:
            decoded = torch.empty_like(values)
            message.unpack(packed, decoded, (backend.rank(), backend.rank()))
            sent.keep([decoded])
    assert work is not None
    side = f"rank {backend.rank()} sends {message}"
    return _MessageWork(work, moved, lambda: None, side)  # holds the bytes


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    config: Any = None,
) -> int:
    """Receives what a rank sends by `send` into `tensor`.

    The first five arguments are those of torch.distributed.recv; without src and group_src it
    receives from any rank. tensor: contiguous, of the sender's dtype and number of values. config:
    the sender's. Of a CUDA tensor, the CPU waits for the header of a compressed message.

    Returns the sender's global rank, or -1 if this rank is not in the group. MismatchError: the
    message has another length, dtype or config; the text names both, and `tensor` is as it was.
    """
    work = irecv(tensor, src, group, tag, group_src, config=config)
    if work is None:
        return -1
    work.wait()
    group_ = group_of(group)
    if group_src is None:
        group_src = work._source_rank() if src is None else dist.get_group_rank(group_, src)
    return dist.get_global_rank(group_, group_src)


def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    config: Any = None,
) -> dist.Work | None:
    """As `recv`, but returns a Work at once. Its wait() decodes the values into `tensor`, as does
    is_completed() where it returns True.
    """
    if not_a_member(group, "irecv"):
        return None
    check_tensor("tensor", tensor)
    group_ = group_of(group)
    backend = backend_of(group_, tensor.device)
    codec = codec_of_call("recv", config, backend, tensor)
    if src is not None or group_src is not None:
        group_src = rank_of(group_, src, group_src, "src")
    if codec is None:
        return dist.irecv(tensor, group=group_, tag=tag, group_src=group_src)
    if tensor.requires_grad:
        raise ValueError("tensor requires a gradient; allowed: one that does not, as of .detach()")
    message = message_of(codec, tensor, backend)
    where = device_of_bytes(tensor, backend)
    packed = torch.empty(message.size, dtype=torch.uint8, device=where)
    arriving = dist.irecv(packed, group=group_, tag=tag, group_src=group_src)
    assert arriving is not None
    work = arriving

    def decode() -> None:
        sender = work._source_rank() if group_src is None else group_src
        message.unpack(packed.to(tensor.device), tensor, (sender, backend.rank()))

    return _MessageWork(work, tensor, decode, f"rank {backend.rank()} receives {message}")


class _MessageWork(WorkWithEnd):
    """side: what this rank does, for the error of a message of another length."""

    ends_failures = False

    def __init__(self, work: dist.Work, tensor: torch.Tensor, end: Callable[[], None], side: str):
        super().__init__(work, tensor, end)
        self._side = side

    def wait(self, timeout: Any = None) -> bool:
        try:
            return super().wait(timeout)
        except _C.MismatchError as error:
            if error is self._error:
                raise
            raise type(error)(f"{error}\n  in bytes, as {self._side}") from None
