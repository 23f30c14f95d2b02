"""The communication hook: one reduction per bucket, with every layer's own configuration in it."""

# No `from __future__ import annotations`: register_comm_hook() compares the annotations of the hook
# as objects.

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from cgx_utils.state import CGXState

_ENGINE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def cgx_hook(state: CGXState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over the group: `ddp.register_comm_hook(CGXState(...),
    cgx_hook)`.

    The bucket's flat buffer is reduced in place: the sum in fp32, divided by the number of ranks
    before it is rounded to the buffer's dtype. Layers that `state` keeps exact travel in the same
    messages. In a group with the option `autotune`, a bucket may go with more bits, where that is
    faster. Buckets of other dtypes (float64, complex) are exact. Returns a future of the buffer.

    ValueError if the group's backend is not cgx or the state is not a CGXState; failures on the way
    (CgxError) come out of the backward pass.
    """
    if not isinstance(state, CGXState):
        raise TypeError(f"cgx_hook was registered with a {type(state).__name__}; allowed: CGXState")
    from torch_cgx._backend import backend_of

    buffer = bucket.buffer()
    parameters = bucket.parameters()
    group = state.group_of(parameters)
    try:
        backend = backend_of(group, buffer.device)
    except ValueError as error:
        raise ValueError(f"cgx_hook reduces over a cgx group only: {error}") from None
    if buffer.dtype not in _ENGINE_DTYPES:
        work = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
        return work.get_future().then(_first)
    layers = state.plan(parameters, backend)
    planned = sum(numel for numel, _ in layers)
    if planned != buffer.numel():
        raise RuntimeError(
            f"bucket {bucket.index()} holds {buffer.numel()} values, but its {len(parameters)} "
            f"parameters have {planned}"
        )
    work = backend.all_reduce_layers(buffer, dist.ReduceOp.AVG, layers, tunable=True)
    return work.get_future().then(_first)


def _first(future: torch.futures.Future[Any]) -> torch.Tensor:
    return future.value()[0]
