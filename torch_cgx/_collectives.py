"""Collectives with a configuration per call, and the engine's counters.

They work like their namesakes in torch.distributed: in place or into `output`, called by all ranks
of the group in the same order with equal arguments, on tensors of equal shape and dtype. A
disagreement is a MismatchError on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _aps
from torch_cgx._arguments import (
    check_async_op,
    check_residual,
    check_tensor,
    finish,
    key_of,
    not_a_member,
)
from torch_cgx._backend import backend_of, check_group, check_op
from torch_cgx._config import codec_of, layers_of
from torch_cgx._counters import Stats, Tuning, stats_of
from torch_cgx._renamed import takes_old_names
from torch_cgx._steps import check_step

# torch 2.13 has new names, and warns of the old ones.
_torchs_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_torchs_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(
    tensor: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    config: Any = None,
    layers: Sequence[Any] | None = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
    aps: bool = False,
) -> dist.Work | None:
    """All-reduces `tensor` in place; every rank gets the same bits.

    The first four arguments are those of torch.distributed.all_reduce. tensor: contiguous; fp32,
    fp16 or bf16 if anything is compressed (sums are fp32). op: SUM or AVG if anything is
    compressed; AVG divides the fp32 sum by the number of ranks. config: None for the group's
    configuration, a dict of bits (1-8; 16: bf16 or fp16 on the wire; else exact), half,
    bucket_size, codec, rounding, seed, skip_incomplete_buckets, a codec of `torch_cgx.codecs`, or
    `torch_cgx.Options`. layers: (numel, config) pairs or `Layer`s in the tensor's order, with None
    for exact ones; not together with `config`. residual: error feedback (docs/numerics.md), a
    contiguous fp32 or bf16 tensor of the tensor's shape and device, which the caller keeps from
    call to call, zeros at first. The rank contributes tensor + residual, and residual gets the
    error of what the rank encodes, in units of the sum; where that is not finite, it stays. It
    belongs to the work until that is complete. Each rank decides for itself whether it has one; not
    with maxmin at 1 bit, whose residuals grow without bound. step: keys random numbers (stochastic
    rounding, signs of "rotated" and "trellis"), in place of the number of the call on its group, so
    that a resumed program draws what it would have drawn without the stop: an integer >= 0, equal
    on all ranks, that ascends. Calls with equal steps, one after the other, draw different numbers.
    aps: shifts each encoded layer by a power of two to the top of its format's range, and the sum
    back: the automatic shift (APS) of CPD (arXiv 1911.08907; docs/numerics.md). For the codecs
    float, fp16 and bf16, by config or layers; equal on all ranks. It costs an all-reduce MAX of 4
    bytes a layer, for which the call waits, also with `async_op`. A layer with a NaN or infinity on
    any rank becomes NaN as a whole.

    Returns a Work if `async_op`, else None. ValueError and TypeError name a bad argument before
    anything is sent; CgxError and its subclasses report later failures.
    """
    check_async_op(async_op)
    if not_a_member(group, "all_reduce"):
        return None
    if config is not None and layers is not None:
        raise ValueError("all_reduce takes config or layers, not both")
    check_tensor("tensor", tensor)
    check_op(op)
    check_residual(residual)
    check_step(step)
    _aps.check(aps)
    backend = backend_of(group, tensor.device)
    plan = None
    if aps and config is None and layers is None:
        raise ValueError(
            "aps=True without config or layers; allowed: with one of them, as config={} for the "
            "group's own"
        )
    if config is not None or layers is not None:
        pairs = layers if layers is not None else [(tensor.numel(), config)]
        plan = layers_of(pairs, tensor.numel(), backend.settings())
    elif residual is None and step is None:
        return dist.all_reduce(tensor, op, group, async_op)

    def start() -> dist.Work:
        return backend.all_reduce_layers(
            tensor, op, plan, async_op, residual=residual, **key_of(backend, step)
        )

    if aps and plan is not None:
        _aps.check_tensors(tensor, plan, op, residual)
        work = _aps.all_reduce(tensor, plan, residual, group, backend.size(), start)
    else:
        work = start()
    return finish(work, async_op)


def reduce_scatter_single(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> dist.Work | None:
    """Reduces `input` over the ranks and writes one of world-size equal shares to `output`: share r
    on rank r.

    output: n values; input: n * world size, same dtype. residual: of the input's shape. Other
    arguments as in `all_reduce`. `reduce_scatter_tensor`, torch's name before 2.13, is the same
    function.
    """
    check_async_op(async_op)
    if not_a_member(group, "reduce_scatter_single"):
        return None
    check_tensor("output", output)
    check_tensor("input", input)
    check_op(op)
    check_residual(residual)
    check_step(step)
    backend = backend_of(group, input.device)
    codec = None
    if config is not None:
        codec = codec_of(config, backend.settings())
    elif residual is None and step is None:
        _check_shares("reduce_scatter_single", input, output, backend.size(), "input")
        return _torchs_reduce_scatter(output, input, op, group, async_op)
    work = backend.reduce_scatter_codec(
        output,
        input,
        op,
        codec,
        async_op,
        as_group=config is None,
        residual=residual,
        **key_of(backend, step),
    )
    return finish(work, async_op)


@takes_old_names("all_gather_single", output_tensor="output", input_tensor="input")
def all_gather_single(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    config: Any = None,
    residual: torch.Tensor | None = None,
    step: int | None = None,
) -> dist.Work | None:
    """Gathers every rank's `input_tensor` into `output_tensor`, in rank order; a config quantizes
    the values for the wire.

    input_tensor: n values; output_tensor: n * world size, same dtype. All ranks, the sender
    included, get the same (decoded) values. residual: of the input's shape; gets input + residual -
    what is gathered. Other arguments as in `all_reduce`. `all_gather_into_tensor`, torch's name
    before 2.13, is the same function.
    """
    check_async_op(async_op)
    if not_a_member(group, "all_gather_single"):
        return None
    check_tensor("output_tensor", output_tensor)
    check_tensor("input_tensor", input_tensor)
    check_residual(residual)
    check_step(step)
    backend = backend_of(group, input_tensor.device)
    codec = None
    if config is not None:
        codec = codec_of(config, backend.settings())
    elif residual is None and step is None:
        _check_shares("all_gather_single", input_tensor, output_tensor, backend.size(), "output")
        return _torchs_all_gather(output_tensor, input_tensor, group, async_op)
    work = backend.all_gather_codec(
        output_tensor,
        input_tensor,
        codec,
        async_op,
        as_group=config is None,
        residual=residual,
        **key_of(backend, step),
    )
    return finish(work, async_op)


# torch's names before 2.13, which are here to stay.
reduce_scatter_tensor = reduce_scatter_single
all_gather_into_tensor = all_gather_single


def stats(group: dist.ProcessGroup | None = None) -> Stats:
    """This rank's counters of a group since the group was created or the counters were reset."""
    return stats_of(backend_of(group, _device_of(group)).stats())


def tuning(group: dist.ProcessGroup | None = None) -> Tuning | None:
    """The measurements and decisions of a group's autotuner; None without the option `autotune`."""
    found = backend_of(group, _device_of(group)).tuning()
    return None if found is None else Tuning(**found)


def reset_stats(group: dist.ProcessGroup | None = None) -> None:
    """Sets the counters of `stats` to zero, on this rank."""
    backend_of(group, _device_of(group)).reset_stats()


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """A device whose backend is cgx (CUDA only in "cpu:gloo,cuda:cgx"); cpu if there is none."""
    if group is None and dist.is_initialized():
        group = dist.distributed_c10d._get_default_group()
    if group is not None:
        check_group(group)
    for device in [] if group is None else group._device_types:
        try:
            backend_of(group, device)
        except ValueError:
            continue
        return device
    return torch.device("cpu")


def _check_shares(
    what: str, input: torch.Tensor, output: torch.Tensor, size: int, whole: str
) -> None:
    """ValueError, as of the engine with a config, unless input and output fit. whole: which of them
    has the values of all ranks.
    """
    if input.dtype != output.dtype:
        raise ValueError(
            f"cgx: {what}: input is {input.dtype}, output is {output.dtype}; they must be equal"
        )
    one, all_ = (input, output) if whole == "output" else (output, input)
    if all_.numel() != one.numel() * size:
        raise ValueError(
            f"cgx: {what} on {size} ranks: input has {input.numel()} values, output has "
            f"{output.numel()}; the {whole} must have {size} times as many"
        )
