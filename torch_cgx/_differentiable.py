"""The operators behind torch_cgx.nn: collectives with autograd formulas, and shapes for tensors
without values. Groups are named by their names, codecs by their texts ("": exact), which survive
tracing.

The gradient of each is an operator of this file with the configurations swapped, so gradients have
gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_cgx import _C, _collectives, _exchange
from torch_cgx._backend import backend_of, group_of
from torch_cgx._config import codec_of

_resolve: Callable[[str], dist.ProcessGroup] = vars(dist.distributed_c10d)["_resolve_process_group"]
EXACT = {"bits": 32}
Int = int | torch.SymInt

_library = torch.library.Library("torch_cgx", "FRAGMENT")
ops: Any = torch.ops.torch_cgx

_HOW = "str group, str forward, str backward) -> Tensor"
_SCHEMAS = {
    "nn_all_reduce": f"(Tensor input, str op, {_HOW}",
    "nn_all_gather_single": f"(Tensor input, int ranks, {_HOW}",
    "nn_reduce_scatter_single": f"(Tensor input, str op, int ranks, {_HOW}",
    "nn_all_to_all_single": f"(Tensor input, SymInt[] received, SymInt[] sent, {_HOW}",
}


def name_of(group: dist.ProcessGroup | None) -> str:
    """Of a group; None: the default one. RuntimeError, TypeError."""
    return str(group_of(group).group_name)


def group_named(name: str) -> dist.ProcessGroup:
    """The group of that name. RuntimeError if this process has none."""
    return _resolve(name)


def text_of(argument: str, config: Any, group: str, device: str) -> str:
    """Names the codec of a configuration, which is that of an argument; "": exact."""
    if config is None:
        return ""
    try:
        codec = codec_of(config, backend_of(group_named(group), device).settings())
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from None
    return "" if codec is None else codec.describe()


@functools.lru_cache(256)
def _config_of(text: str) -> Any:
    """What `text_of` has named, as the argument config."""
    if not text:
        return EXACT
    name, *fields = text.split()
    pairs = (field.split("=") for field in fields)
    return _C.Codec(name, **{key: int(v) if v.isdecimal() else v for key, v in pairs})


def _all_reduce(
    input: torch.Tensor, op: str, group: str, forward: str, backward: str
) -> torch.Tensor:
    output = input.detach().clone(memory_format=torch.contiguous_format)
    _collectives.all_reduce(output, _OPS[op], group_named(group), config=_config_of(forward))
    return output


def _all_gather(
    input: torch.Tensor, ranks: int, group: str, forward: str, backward: str
) -> torch.Tensor:
    output = _gathered(input, ranks)
    input = input.detach().contiguous()
    _collectives.all_gather_single(output, input, group_named(group), config=_config_of(forward))
    return output


def _reduce_scatter(
    input: torch.Tensor, op: str, ranks: int, group: str, forward: str, backward: str
) -> torch.Tensor:
    output = _scattered(input, ranks)
    _collectives.reduce_scatter_single(
        output,
        input.detach().contiguous(),
        _OPS[op],
        group_named(group),
        config=_config_of(forward),
    )
    return output


def _all_to_all(
    input: torch.Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    group: str,
    forward: str,
    backward: str,
) -> torch.Tensor:
    output = input.new_empty((sum(received), *input.shape[1:]))
    _exchange.all_to_all_single(
        output,
        input.detach().contiguous(),
        list(received),
        list(sent),
        group_named(group),
        config=_config_of(forward) if forward else None,
    )
    return output


_OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG}


def _gathered(input: torch.Tensor, ranks: int) -> torch.Tensor:
    rows = input.shape[0] if input.dim() else 1
    return input.new_empty((rows * ranks, *input.shape[1:]))


def _scattered(input: torch.Tensor, ranks: int) -> torch.Tensor:
    return input.new_empty((input.shape[0] // ranks, *input.shape[1:]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.shape, ctx.arguments = inputs[0].shape, inputs[1:]


def _of_all_reduce(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    op, group, forward, backward = ctx.arguments
    return ops.nn_all_reduce(grad, op, group, backward, forward), *[None] * 4


def _of_all_gather(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    ranks, group, forward, backward = ctx.arguments
    mine = ops.nn_reduce_scatter_single(grad, "sum", ranks, group, backward, forward)
    return mine.view(ctx.shape), *[None] * 4


def _of_reduce_scatter(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    op, ranks, group, forward, backward = ctx.arguments
    whole = ops.nn_all_gather_single(grad, ranks, group, backward, forward)
    return whole / ranks if op == "avg" else whole, *[None] * 5


def _of_all_to_all(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    received, sent, group, forward, backward = ctx.arguments
    back = ops.nn_all_to_all_single(grad, sent, received, group, backward, forward)
    return back, *[None] * 5


def _register(
    name: str,
    run: Callable[..., torch.Tensor],
    shape: Callable[..., torch.Tensor],
    gradient: Callable[..., tuple[Any, ...]],
) -> None:
    _library.define(name + _SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
    qualified = f"torch_cgx::{name}"
    torch.library.register_fake(qualified, shape, lib=_library)
    torch.library.register_autograd(qualified, gradient, setup_context=_keep, lib=_library)


_register(
    "nn_all_reduce",
    _all_reduce,
    lambda input, *_: input.new_empty(input.shape),
    _of_all_reduce,
)
_register(
    "nn_all_gather_single",
    _all_gather,
    lambda input, ranks, *_: _gathered(input, ranks),
    _of_all_gather,
)
_register(
    "nn_reduce_scatter_single",
    _reduce_scatter,
    lambda input, op, ranks, *_: _scattered(input, ranks),
    _of_reduce_scatter,
)
_register(
    "nn_all_to_all_single",
    _all_to_all,
    lambda input, received, *_: input.new_empty((sum(received), *input.shape[1:])),
    _of_all_to_all,
)
