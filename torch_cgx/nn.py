"""Collectives that autograd differentiates, with a configuration for the forward pass and one for
the backward pass.

    from torch_cgx import nn

    y = nn.all_to_all_single(x, forward={"bits": 8}, backward={"bits": 4})

They are functional: they return a new tensor and leave their input alone. The gradient of each is
the collective that is adjoint to it: of a loss that is the sum of the losses of all ranks, as in
torch.distributed.nn. All ranks have to run the same backward pass. What is rounded on the way
counts as if it were not (its gradient passes straight through). They may be differentiated again,
and torch.compile traces them without a break in the graph (a configuration is a constant then).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _differentiable
from torch_cgx._backend import check_op

_ops = _differentiable.ops

__all__ = ["all_gather_single", "all_reduce", "all_to_all_single", "reduce_scatter_single"]


def all_reduce(
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    forward: Any = None,
    backward: Any = None,
) -> torch.Tensor:
    """The sum of all ranks' inputs, or their mean, on every rank: a new tensor of input's shape.
    The gradient is reduced with the same op.

    op: SUM or AVG. forward, backward: configurations of the reduction of values and of gradients,
    as `config` of `torch_cgx.all_reduce`; None: exact, whatever the group's configuration says.

    ValueError and TypeError name a bad argument before anything is sent; CgxError and its
    subclasses report later failures.
    """
    name = _name(group)
    there, back = _texts(name, input, forward, backward)
    return _ops.nn_all_reduce(input, _op(op), name, there, back)


def all_gather_single(
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    forward: Any = None,
    backward: Any = None,
) -> torch.Tensor:
    """The inputs of all ranks one after the other, in rank order, along dimension 0: of shape
    (n, ...) on N ranks (n * N, ...). The gradient is a reduce-scatter of SUM.

    forward, backward: as in `all_reduce`, of the all-gather and of the reduce-scatter.
    """
    name = _name(group)
    there, back = _texts(name, input, forward, backward)
    return _ops.nn_all_gather_single(input, _size(name), name, there, back)


def reduce_scatter_single(
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    *,
    forward: Any = None,
    backward: Any = None,
) -> torch.Tensor:
    """Share r, on rank r, of the sum or mean of all ranks' inputs: of shape (n * N, ...) on N ranks
    (n, ...). The gradient is an all-gather, divided by N for AVG.

    op, forward, backward: as in `all_reduce`, of the reduce-scatter and of the all-gather.
    """
    name = _name(group)
    size = _size(name)
    if input.dim() == 0 or input.size(0) % size:
        raise ValueError(
            f"input has the shape {tuple(input.shape)}; allowed: a first dimension that is a "
            f"multiple of {size}, the number of ranks"
        )
    there, back = _texts(name, input, forward, backward)
    return _ops.nn_reduce_scatter_single(input, _op(op), size, name, there, back)


def all_to_all_single(
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    *,
    forward: Any = None,
    backward: Any = None,
) -> torch.Tensor:
    """Sends piece r of `input`, of input_split_sizes[r] rows, to rank r, and returns what the ranks
    send to this one, output_split_sizes[r] rows of rank r, in rank order. Without sizes all pieces
    are equal. The gradient goes the way back: the same with the sizes swapped.

    forward, backward: as in `all_reduce`; a rank's piece for itself is exact.
    """
    name = _name(group)
    size = _size(name)
    if input.dim() == 0:
        raise ValueError("input has no dimension; allowed: a tensor of rows")
    if output_split_sizes is None or input_split_sizes is None:
        given = input_split_sizes if output_split_sizes is None else output_split_sizes
        if given is not None:
            raise ValueError(
                f"output_split_sizes={output_split_sizes}, input_split_sizes={input_split_sizes}; "
                "allowed: both, or neither"
            )
        if input.size(0) % size:
            raise ValueError(
                f"input has {input.size(0)} rows; allowed without split sizes: a multiple of "
                f"{size}, the number of ranks"
            )
        output_split_sizes = input_split_sizes = [input.size(0) // size] * size
    for what, sizes in (("output", output_split_sizes), ("input", input_split_sizes)):
        if not isinstance(sizes, (list, tuple)):
            raise TypeError(f"{what}_split_sizes={sizes!r}; allowed: a list of numbers, None")
        if len(sizes) != size:
            raise ValueError(
                f"{what}_split_sizes has {len(sizes)} numbers; allowed: {size}, one for each rank"
            )
    there, back = _texts(name, input, forward, backward)
    return _ops.nn_all_to_all_single(
        input, list(output_split_sizes), list(input_split_sizes), name, there, back
    )


# Under torch.compile a group has no more than its name.
@torch.compiler.assume_constant_result
def _name(group: dist.ProcessGroup | None) -> str:
    return _differentiable.name_of(group)


@torch.compiler.assume_constant_result
def _size(name: str) -> int:
    return _differentiable.group_named(name).size()


@torch.compiler.assume_constant_result
def _op(op: Any) -> str:
    check_op(op)
    if op == dist.ReduceOp.SUM:
        return "sum"
    if op == dist.ReduceOp.AVG:
        return "avg"
    raise ValueError(f"op={op!r}; allowed: SUM, AVG")


def _texts(name: str, input: torch.Tensor, forward: Any, backward: Any) -> tuple[str, str]:
    device = input.device.type
    return _text("forward", forward, name, device), _text("backward", backward, name, device)


@torch.compiler.assume_constant_result
def _text(argument: str, config: Any, name: str, device: str) -> str:
    return _differentiable.text_of(argument, config, name, device)
