"""Collectives that move values, with a configuration per call: broadcast and all-to-all.

They work like their namesakes in torch.distributed, called by all ranks of the group in the same
order with equal configurations. A disagreement is a MismatchError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _feedback, _in_bytes
from torch_cgx._arguments import (
    check_async_op,
    check_residual,
    check_tensor,
    codec_of_call,
    finish,
    key_of,
    not_a_member,
    rank_of,
)
from torch_cgx._backend import backend_of, group_of
from torch_cgx._config import list_of
from torch_cgx._steps import check_step


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> dist.Work | None:
    """Copies `tensor` of one rank to all; with a config, all ranks, the source included, get the
    decoded values, which were rounded once.

    The first five arguments are those of torch.distributed.broadcast; without src and group_src the
    source is global rank 0. tensor: contiguous, written on all ranks; fp32, fp16 or bf16 if it is
    compressed. config: as in `all_reduce`; None: exact, whatever the group's configuration says.
    residual: error feedback, of the tensor's shape, read and written on the source alone: it
    broadcasts tensor + residual, and residual gets tensor + residual - what all ranks get. Other
    arguments, results and errors as in `all_reduce`.
    """
    check_async_op(async_op)
    if not_a_member(group, "broadcast"):
        return None
    check_tensor("tensor", tensor)
    check_residual(residual)
    check_step(step)
    group_ = group_of(group)
    root = 0
    if src is not None or group_src is not None:
        root = rank_of(group_, src, group_src, "src")
    elif group is not None:
        root = rank_of(group_, 0, None, "src")
    backend = backend_of(group_, tensor.device)
    codec = codec_of_call("broadcast", config, backend, tensor)
    if codec is None and residual is None:
        return dist.broadcast(tensor, None, group_, async_op, group_src=root)
    if residual is not None:
        _feedback.check("broadcast", residual, tensor, codec)
    if codec is not None and backend.moves_encoded(tensor):
        key = key_of(backend, step)
        work = backend.broadcast_codec(tensor, root, codec, async_op, residual=residual, **key)
    else:
        if backend.rank() != root:
            residual = None
        work = _in_bytes.broadcast(tensor, root, group_, backend, codec, residual, step)
    return finish(work, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> dist.Work | None:
    """Sends piece r of `input` to rank r, and gathers what the ranks send to this one in `output`,
    in rank order; a config quantizes the pieces for the wire. The piece of a rank for itself is
    copied, exactly.

    The first six arguments are those of torch.distributed.all_to_all_single: pieces are rows, by
    the split sizes, or equal ones without them. Each piece is encoded by itself: its buckets are
    counted from its start. output, input: contiguous, of one dtype; fp32, fp16 or bf16 if they are
    compressed. config: as in `all_reduce`; None: exact, whatever the group's configuration says.
    residual: error feedback, of the input's shape; gets input + residual - what the receivers get.
    Values of a fixed meaning only, such as weights or gradients of the same rows in each call:
    where rows belong to other tokens in each call, as in a layer of experts, it adds what one token
    is owed to another. Other arguments, results and errors as in `all_reduce`.
    """
    check_async_op(async_op)
    if not_a_member(group, "all_to_all_single"):
        return None
    check_tensor("output", output)
    check_tensor("input", input)
    check_residual(residual)
    check_step(step)
    group_ = group_of(group)
    backend = backend_of(group_, input.device)
    codec = codec_of_call("all_to_all_single", config, backend, input)
    if codec is None and residual is None:
        return dist.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group_, async_op
        )
    if (output.dtype, output.device) != (input.dtype, input.device):
        raise ValueError(
            f"cgx: all_to_all_single: input is {input.dtype} on {input.device}, output is "
            f"{output.dtype} on {output.device}; they must be equal"
        )
    received = _pieces("output", output, output_split_sizes, backend.size())
    sent = _pieces("input", input, input_split_sizes, backend.size())
    own = backend.rank()
    if received[own] != sent[own]:
        raise ValueError(
            f"cgx: all_to_all_single: rank {own} sends {sent[own]} values to itself and receives "
            f"{received[own]}; they must be equal"
        )
    if residual is not None:
        _feedback.check("all_to_all_single", residual, input, codec, output)
    if codec is not None and backend.moves_encoded(input):
        rows_out, rows_in = (
            [] if sizes is None else list(sizes)
            for sizes in (output_split_sizes, input_split_sizes)
        )
        work = backend.all_to_all_codec(
            output,
            input,
            rows_out,
            rows_in,
            codec,
            async_op,
            residual=residual,
            **key_of(backend, step),
        )
    else:
        work = _in_bytes.all_to_all(
            (output, received), (input, sent), group_, backend, codec, residual, step
        )
    return finish(work, async_op)


def _pieces(name: str, tensor: torch.Tensor, sizes: Sequence[int] | None, ranks: int) -> list[int]:
    """The number of values of each rank's piece. TypeError, ValueError."""
    rows = tensor.size(0) if tensor.dim() else 1
    sizes = [] if sizes is None else list_of(f"{name}_split_sizes", sizes, "a list of numbers")
    if not sizes:
        if rows % ranks:
            raise ValueError(
                f"{name} has {rows} rows; allowed without {name}_split_sizes: a multiple of "
                f"{ranks}, the number of ranks"
            )
        sizes = [rows // ranks] * ranks
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name}_split_sizes={sizes!r}; allowed: integers >= 0")
    if len(sizes) != ranks or sum(sizes) != rows or min(sizes) < 0:
        raise ValueError(
            f"{name}_split_sizes={sizes}; allowed: a number of rows for each of {ranks} "
            f"ranks, {rows} in all"
        )
    width = tensor.numel() // rows if rows else 0
    return [size * width for size in sizes]
