"""The reduction of one bucket of gradients by the rules of a `CGXState`."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from cgx_utils.state import CGXState
from torch_cgx._warnings import warn

_ENGINE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_warned_of_sparse = False


class Bucket(Protocol):
    """The methods of torch's GradBucket that are used here."""

    def buffer(self) -> torch.Tensor: ...
    def parameters(self) -> list[torch.Tensor]: ...
    def index(self) -> int: ...
    def is_last(self) -> bool: ...


def reduce(
    state: CGXState, bucket: Bucket, group: dist.ProcessGroup, overlaps: bool = True
) -> dist.Work:
    """Averages the bucket's buffer over the group, in place; see `cgx_hook`. After
    `state.group_of`. overlaps: whether the backward pass goes on before the caller waits.
    """
    from torch_cgx._backend import backend_of

    buffer, parameters = bucket.buffer(), bucket.parameters()
    try:
        backend = backend_of(group, buffer.device)
    except ValueError as error:
        raise ValueError(f"cgx_hook reduces over a cgx group only: {error}") from None
    if state.observer is not None:
        state.observer.before(bucket, parameters, buffer)
    exact = why_exact(parameters, buffer)
    if exact:
        state.keep_exact(parameters, exact)
        if is_for_engine(buffer):  # the view of complex64 values as float32
            whole = [(buffer.numel(), None)]
            work = backend.all_reduce_layers(buffer, dist.ReduceOp.AVG, whole, chosen_by="cgx_hook")
        else:
            work = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
    else:
        layers = state.plan(parameters, backend)
        planned = sum(numel for numel, _ in layers)
        if planned != buffer.numel():
            raise RuntimeError(
                f"bucket {bucket.index()} holds {buffer.numel()} values, but its {len(parameters)} "
                f"parameters have {planned}"
            )
        state.measure(parameters, buffer, backend)
        work = backend.all_reduce_layers(
            buffer,
            dist.ReduceOp.AVG,
            layers,
            tunable=True,
            chosen_by="cgx_hook",
            residual=state.residual(parameters, buffer, group),
            **state.keys(parameters, backend),
        )
        state.keep_residual(parameters, work)
    if bucket.is_last():
        state.end_step(backend, group)
    if state.observer is not None:
        state.observer.after(buffer, overlaps)
    return work


def why_exact(parameters: list[torch.Tensor], buffer: torch.Tensor) -> str:
    """The reason why no value of a bucket is compressed; empty if some may be. torch shows complex
    gradients as real ones, of twice the values.
    """
    global _warned_of_sparse
    if buffer.layout != torch.strided:
        if not _warned_of_sparse:
            _warned_of_sparse = True
            warn(
                f"cgx_hook: a bucket of shape {tuple(buffer.shape)} has {buffer.layout} gradients, "
                "which are reduced exactly; a layer without sparse=True is compressed"
            )
        return "sparse gradients"
    dtype = next((p.dtype for p in parameters if p.is_complex()), buffer.dtype)
    return "" if dtype in _ENGINE_DTYPES else f"dtype {dtype}"


def is_for_engine(buffer: torch.Tensor) -> bool:
    """Whether the engine reduces it; exact, too, as long as no layer says otherwise."""
    return buffer.layout == torch.strided and buffer.dtype in _ENGINE_DTYPES
