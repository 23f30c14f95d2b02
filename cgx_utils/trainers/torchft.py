"""torchft: replicas that may fail and come back, with compressed gradients between them.

import torchft
from cgx_utils.trainers.torchft import DistributedDataParallel, ProcessGroupCGX

manager = torchft.Manager(pg=ProcessGroupCGX(), ...)
model = DistributedDataParallel(manager, model, bits=4)
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, Store

from cgx_utils.hook import why_exact
from cgx_utils.state import CGXState
from cgx_utils.trainers.settings import state_of
from torch_cgx import _C, _config
from torch_cgx._backend import create

try:
    import torchft
    from torchft.process_group import ProcessGroupWrapper
except ModuleNotFoundError as error:
    raise ImportError(
        f"cgx_utils.trainers.torchft needs torchft ({error}): pip install torchft"
    ) from error


@dataclasses.dataclass
class _Reduction:
    """A bucket on its way through the manager to the process group."""

    state: CGXState
    parameters: list[torch.Tensor]
    buffer: torch.Tensor
    engine: _C.ProcessGroupCGX | None = None  # of the group that it has reached


_reduction: contextvars.ContextVar[_Reduction | None] = contextvars.ContextVar(
    "_reduction", default=None
)


@dataclasses.dataclass
class _Place:
    """A group as torch describes it to a backend."""

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: list[int]


class ProcessGroupCGX(ProcessGroupWrapper):
    """The process group of a `torchft.Manager`: a cgx group of the replicas that are there. Each
    quorum with other replicas makes a new one.

    options: a `torch_cgx.Options` with what all-reduces do that are not of the
        `DistributedDataParallel` below (LocalSGD, DiLoCo, torchft's own one); None: exact, unless
        the environment says otherwise. They compress a whole tensor, layers that are sensitive
        included.
    timeout: of a call and of the making of a group.

    `torch_cgx.stats(group.parent)` has the counters since the last quorum with other replicas.
    TypeError names options of another type.
    """

    def __init__(
        self, options: _C.Options | None = None, *, timeout: timedelta = timedelta(seconds=60)
    ):
        if options is not None and not isinstance(options, _C.Options):
            raise TypeError(
                f"options of a ProcessGroupCGX are of type {type(options).__qualname__}; "
                "allowed: torch_cgx.Options, None"
            )
        super().__init__(timeout)
        self._options = options
        self._engine: _C.ProcessGroupCGX | None = None

    def getBackendName(self) -> str:
        return "torchft-cgx"

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        replica, quorum = self._replica_id, self._quorum_id
        place = _Place(
            store,
            rank,
            world_size,
            self._timeout,
            f"torchft_quorum_{quorum}_replica_{replica}",
            list(range(world_size)),
        )
        self._engine = create(place, self._options)
        group = dist.ProcessGroup(store, rank, world_size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            group._register_backend(torch.device(device), kind, self._engine)
        return group

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        bucket = _reduction.get()
        if bucket is None or len(tensors) != 1 or tensors[0] is not bucket.buffer:
            return super().allreduce(tensors, opts)
        engine = bucket.engine = self._engine
        assert engine is not None
        plan = bucket.state.plan(bucket.parameters, engine)
        op = getattr(opts, "reduceOp", opts)
        return engine.all_reduce_layers(bucket.buffer, op, plan, tunable=True, chosen_by="cgx_hook")


class DistributedDataParallel(torchft.DistributedDataParallel):
    """torchft's DistributedDataParallel, where layers that are sensitive stay exact, as with
    `cgx_hook`.

    manager: a torchft.Manager, whose process group is a `ProcessGroupCGX`.
    state: a CGXState, for rules by name. Or its compression_params as keywords: bits=4,
        bucket_size=512.
    options: all other arguments of torch's DistributedDataParallel.

    A step that torchft discards would leave a residual that belongs to no update, and a replica
    that comes back knows no decisions: a state with `error_feedback` or `adaptive` is a ValueError.
    TypeError names a manager with another process group, at the first step.
    """

    def __init__(
        self,
        manager: torchft.Manager,
        module: torch.nn.Module,
        state: CGXState | None = None,
        **options: Any,
    ):
        params = {name: options.pop(name) for name in _config.KEYS if name in options}
        self.cgx_state = state_of(state, params)
        for name in ("error_feedback", "adaptive"):
            if getattr(self.cgx_state, name) is not None:
                raise ValueError(f"a CGXState with {name}; allowed with torchft: one without it")
        # What torchft registers; a bound method would keep this instance alive.
        self._comm_hook = _hook(self.cgx_state)
        super().__init__(manager, module, **options)


def _hook(state: CGXState) -> Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]:
    """The hook for a manager; it waits for each bucket, as torchft's own does."""

    def cgx_hook(manager: Any, bucket: Any) -> Any:
        parameters, buffer = bucket.parameters(), bucket.buffer()
        group = state.group_of(parameters)  # a stand-in of torchft; also finds the names
        exact = why_exact(buffer)
        reduction = None if exact else _Reduction(state, parameters, buffer)
        if exact:
            state.keep_exact(parameters, exact)
        token = _reduction.set(reduction)
        try:
            work = manager.allreduce(buffer)
        finally:
            _reduction.reset(token)
        engine = None if reduction is None else reduction.engine
        if reduction is not None and engine is None and not manager.errored():
            raise TypeError(
                "the process group of the manager is another one; needed: "
                "torchft.Manager(pg=cgx_utils.trainers.torchft.ProcessGroupCGX(...))"
            )
        work.wait()  # also divides by the number of replicas; the manager keeps an error
        if bucket.is_last() and engine is not None:
            state.end_step(engine, group)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    # torch compares annotations with these classes, not with their names.
    cgx_hook.__annotations__ = {
        "bucket": GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    return cgx_hook
