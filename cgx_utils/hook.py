"""The communication hook: one reduction per bucket, with every layer's own configuration in it."""

# No `from __future__ import annotations`: register_comm_hook() compares the annotations of the hook
# as objects.

from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from cgx_utils.state import CGXState
from torch_cgx._warnings import warn

_ENGINE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_warned_of_sparse = False


def cgx_hook(state: CGXState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients over the group: `ddp.register_comm_hook(CGXState(...),
    cgx_hook)`.

    The bucket's flat buffer is reduced in place: the sum in fp32, divided by the number of ranks
    before it is rounded to the buffer's dtype. Layers that `state` keeps exact travel in the same
    messages. With error feedback this rank's residual of the bucket is added first, and gets the
    new error. With APS, compressed layers are shifted before and after the reduction, and the hook
    waits for their exponents. In a group with the option `autotune`, a bucket may be sent with more
    bits if that is faster. Buckets of other dtypes (float64, complex) and sparse gradients are
    exact. Returns a future of the buffer. With `optimize_ddp="python_reducer"` torch has no
    buckets: each gradient is reduced by itself, and waited for.

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
    from torch_cgx import _C, _aps

    group: dist.ProcessGroup = state.group_of(bucket.parameters())
    work = reduce(state, bucket, group)
    if isinstance(work, _aps.ShiftedWork):
        return work.tensor_future(bucket.buffer())
    return _C.tensor_future(work, bucket.buffer())


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
    from torch_cgx import _aps
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
        residual = state.residual(parameters, buffer, group)
        keys = state.keys(parameters, backend)

        def start() -> dist.Work:
            return backend.all_reduce_layers(
                buffer,
                dist.ReduceOp.AVG,
                layers,
                tunable=True,
                chosen_by="cgx_hook",
                residual=residual,
                **keys,
            )

        if state.aps:
            work = _aps.all_reduce(buffer, layers, residual, group, backend.size(), start)
        else:
            work = start()
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
