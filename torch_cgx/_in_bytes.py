"""Compressed broadcasts and all-to-alls of tensors that the engine does not move, as a GPU's over
NCCL: each piece becomes a message (torch_cgx/_message.py), and the group carries its bytes.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

from torch_cgx import _C
from torch_cgx._feedback import Sent
from torch_cgx._message import Message, message_of
from torch_cgx._steps import key_of_message
from torch_cgx._work import WorkWithEnd

Pieces = tuple[torch.Tensor, list[int]]
"""A tensor, and the number of its values in the piece of each rank."""


class _Decoded(WorkWithEnd):
    ends_failures = False


def broadcast(
    tensor: torch.Tensor,
    root: int,
    group: dist.ProcessGroup,
    backend: _C.ProcessGroupCGX,
    codec: _C.Codec | None,
    residual: torch.Tensor | None,
    step: int | None,
) -> dist.Work:
    """residual: None on all ranks but the root."""
    sent = None if residual is None else Sent(tensor, residual)
    values = tensor.detach().view(-1) if sent is None else sent.values
    if codec is None or backend.size() == 1:
        flat = tensor.detach().view(-1)
        if sent is not None:
            flat.copy_(values)
            sent.keep([values])
        return dist.broadcast(flat, None, group, True, group_src=root)
    message = message_of(codec, tensor, backend)
    if backend.rank() == root:
        packed = message.pack(values, (*key_of_message(backend, step), root))
    else:
        packed = torch.empty(message.size, dtype=torch.uint8, device=tensor.device)
    work = dist.broadcast(packed, None, group, True, group_src=root)

    def end() -> None:
        message.unpack(packed, tensor.detach(), (root, backend.rank()))
        if sent is not None:
            sent.keep([tensor.detach()])

    return _Decoded(work, tensor, end)


def all_to_all(
    output: Pieces,
    input: Pieces,
    group: dist.ProcessGroup,
    backend: _C.ProcessGroupCGX,
    codec: _C.Codec | None,
    residual: torch.Tensor | None,
    step: int | None,
) -> dist.Work:
    tensor, own = input[0], backend.rank()
    sent = None if residual is None else Sent(tensor, residual)
    values = tensor.detach().view(-1) if sent is None else sent.values
    pieces = values.split(input[1])
    if codec is None or backend.size() == 1:
        if sent is not None:
            sent.keep(pieces)
        flat = output[0].detach().view(-1)
        return dist.all_to_all_single(flat, values, output[1], input[1], group, True)
    outgoing = [message_of(codec, piece, backend) for piece in pieces]
    incoming = [Message(codec, numel, tensor.dtype, outgoing[own].checked) for numel in output[1]]
    bytes_out = [_size(m, rank == own) for rank, m in enumerate(outgoing)]
    bytes_in = [_size(m, rank == own) for rank, m in enumerate(incoming)]
    packed = torch.empty(sum(bytes_out), dtype=torch.uint8, device=tensor.device)
    arrived = torch.empty(sum(bytes_in), dtype=torch.uint8, device=tensor.device)
    kept = pieces[own].clone()  # output may be input
    parts = packed.split(bytes_out)
    for message, piece, part in zip(outgoing, pieces, parts, strict=True):
        if len(part):
            message.pack(piece, (*key_of_message(backend, step), own), part)
    if sent is not None:
        decoded = [torch.empty_like(piece) for piece in pieces]
        for message, part, values_ in zip(outgoing, parts, decoded, strict=True):
            if len(part):
                message.unpack(part, values_, (own, own))
        decoded[own] = kept
        sent.keep(decoded)
    work = dist.all_to_all_single(arrived, packed, bytes_in, bytes_out, group, True)

    def end() -> None:
        places = output[0].detach().view(-1).split(output[1])
        for rank, message, place, part in zip(
            itertools.count(), incoming, places, arrived.split(bytes_in), strict=False
        ):
            if rank == own:
                place.copy_(kept)
            elif len(part):
                message.unpack(part, place, (rank, own))

    return _Decoded(work, output[0], end)


def _size(message: Message, own: bool) -> int:
    """Bytes of a piece on the wire."""
    return 0 if own or message.numel == 0 else message.size
