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

from cgx_utils.hook import is_for_engine, why_exact
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
    """A bucket on its way through the manager to the process group. exact: why nothing of it is
    compressed, or empty. mistake: what the manager would take for a lost peer.
    """

    state: CGXState
    parameters: list[torch.Tensor]
    buffer: torch.Tensor
    exact: str
    mistake: Exception | None = None
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

    options: a `torch_cgx.Options`; None: exact, unless the environment says otherwise. The
        `DistributedDataParallel` below takes from it what its state leaves open. All other
        all-reduces (of LocalSGD, DiLoCo and torchft's own DistributedDataParallel) compress whole
        tensors as it says, sensitive layers included.
    timeout: of a call, and of the making of a group.

    `torch_cgx.stats(group.parent)` has the counters since the last quorum with other replicas.
    TypeError names options of another type, ValueError a bad variable of the environment.
    """

    def __init__(
        self, options: _C.Options | None = None, *, timeout: timedelta = timedelta(seconds=60)
    ):
        if options is not None and not isinstance(options, _C.Options):
            raise TypeError(
                f"options of a ProcessGroupCGX are of type {type(options).__qualname__}; "
                "allowed: torch_cgx.Options, None"
            )
        _config.defaults()  # later torchft would take its error for a lost peer
        super().__init__(timeout)
        self._options = options
        self._engine: _C.ProcessGroupCGX | None = None

    def getBackendName(self) -> str:
        return "torchft-cgx"

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        self._engine = None  # the former one ends before the new one begins
        known = self._global_ranks or []
        ranks = list(known) if len(set(known)) == world_size else list(range(world_size))
        name = f"torchft_quorum_{self._quorum_id}_rank_{self._group_rank or 0}"
        place = _Place(store, rank, world_size, self._timeout, name, ranks)
        self._engine = create(place, self._options)
        group = dist.ProcessGroup(store, rank, world_size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            group._register_backend(torch.device(device), kind, self._engine)
        return group

    def abort(self, errored: bool = True) -> None:
        super().abort(errored)
        self._engine = None

    def shutdown(self) -> None:
        super().shutdown()
        self._engine = None

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        bucket = _reduction.get()
        if bucket is None or len(tensors) != 1 or tensors[0] is not bucket.buffer:
            return super().allreduce(tensors, opts)
        engine = bucket.engine = self._engine
        if engine is None or (bucket.exact and not is_for_engine(bucket.buffer)):
            return super().allreduce(tensors, opts)
        whole = [(bucket.buffer.numel(), None)]
        try:
            plan = whole if bucket.exact else bucket.state.plan(bucket.parameters, engine)
        except Exception as error:
            bucket.mistake = error
            raise
        op = getattr(opts, "reduceOp", opts)
        return engine.all_reduce_layers(bucket.buffer, op, plan, tunable=True, chosen_by="cgx_hook")


class DistributedDataParallel(torchft.DistributedDataParallel):
    """torchft's DistributedDataParallel, where layers that are sensitive stay exact, as with
    `cgx_hook`.

    manager: a torchft.Manager, whose process group is a `ProcessGroupCGX`.
    state: a CGXState, for rules by name. Or its settings as keywords: bits=4,
        bucket_size=512.
    options: further arguments of torchft.DistributedDataParallel.

    ValueError names what a state must not have. A step that torchft discards would leave a residual
    that belongs to no update, so `error_feedback` is refused; a replica that comes back knows no
    decisions and no number of a step, so `adaptive` and `schedule` are; the manager has the process
    group, so that of the state is; it has no exponents of layers, so `aps` is. The first step
    raises a TypeError if the manager has another process group, and what is wrong with the state's
    rules.
    """

    def __init__(
        self,
        manager: torchft.Manager,
        module: torch.nn.Module,
        state: CGXState | None = None,
        **options: Any,
    ):
        config = {name: options.pop(name) for name in _config.KEYS if name in options}
        self.cgx_state = state_of(state, config)
        for name in ("error_feedback", "adaptive", "schedule", "aps", "group"):
            if getattr(self.cgx_state, name):
                raise ValueError(f"a CGXState with {name}; allowed with torchft: one without it")
        # What torchft registers; a bound method would keep this instance alive.
        self._comm_hook = _hook(self.cgx_state)
        super().__init__(manager, module, **options)


def _hook(state: CGXState) -> Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]:
    """The hook for a manager; it waits for each bucket, as torchft's own does."""

    def cgx_hook(manager: Any, bucket: Any) -> Any:
        parameters, buffer = bucket.parameters(), bucket.buffer()
        group = state.group_of(parameters)  # a stand-in of torchft; also finds the names
        reduction = _Reduction(state, parameters, buffer, why_exact(parameters, buffer))
        if reduction.exact:
            state.keep_exact(parameters, reduction.exact)
        token = _reduction.set(reduction)
        try:
            work = manager.allreduce(buffer)
        finally:
            _reduction.reset(token)
        if reduction.mistake is not None:
            raise reduction.mistake
        engine = reduction.engine
        if engine is None and not manager.errored():
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
