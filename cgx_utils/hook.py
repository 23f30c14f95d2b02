"""The communication hook: one reduction per bucket, with every layer's own configuration in it."""

# No `from __future__ import annotations`: register_comm_hook() compares the annotations of the hook
# as objects.

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from cgx_utils.reduction import reduce
from cgx_utils.state import CGXState


def cgx_hook(state: CGXState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over the group: `ddp.register_comm_hook(CGXState(...),
    cgx_hook)`.

    The bucket's flat buffer is reduced in place: the sum in fp32, divided by the number of ranks
    before it is rounded to the buffer's dtype. Layers that `state` keeps exact travel in the same
    messages. With error feedback this rank's residual of the bucket is added first, and gets the
    new error. In a group with the option `autotune`, a bucket may be sent with more bits if that is
    faster. Buckets of other dtypes (float64, complex) and sparse gradients are exact. Returns a
    future of the buffer. With `optimize_ddp="python_reducer"` torch has no buckets: each gradient
    is reduced by itself, and waited for.

    ValueError if the group's backend is not cgx, TypeError if the state is not a CGXState. Later
    failures (PeerLostError, TimeoutError, MismatchError, other CgxErrors) are raised by the
    backward pass with their own types.
    """
    if not isinstance(state, CGXState):
        raise TypeError(
            f"cgx_hook was registered with a {type(state).__name__}; allowed: CGXState, as in "
            "register_comm_hook(CGXState(), cgx_hook)"
        )
    if isinstance(bucket, tuple):
        from cgx_utils.python_reducer import reduce_gradient

        return reduce_gradient(state, *bucket)
    from torch_cgx import _C

    group: dist.ProcessGroup = state.group_of(bucket.parameters())
    return _C.tensor_future(reduce(state, bucket, group), bucket.buffer())
