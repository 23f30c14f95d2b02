"""Hugging Face Accelerate: compressed gradients for the model that `prepare` wraps.

from accelerate import Accelerator
from cgx_utils.trainers.accelerate import compress

accelerator = Accelerator()
compress(accelerator, bits=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cgx_utils.hook import cgx_hook
from cgx_utils.state import CGXState
from cgx_utils.trainers.settings import load, save, state_of
from torch_cgx._warnings import warn

try:
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
except ModuleNotFoundError as error:
    raise ImportError(
        f"cgx_utils.trainers.accelerate needs Accelerate ({error}): pip install accelerate"
    ) from error

_ALLOWED = ("MULTI_CPU", "MULTI_GPU")


class _Handler:
    """In the place of the Accelerator's DistributedDataParallelKwargs: the same, with our hook."""

    def __init__(self, given: DistributedDataParallelKwargs, state: CGXState, number: int):
        self._given, self._state = given, state
        self._number = number  # of the models with a state of their own, from 0
        self._registered = False

    def to_kwargs(self) -> dict[str, Any]:
        return dict(self._given.to_kwargs())

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        if self._registered:
            raise RuntimeError(
                "accelerator.prepare wraps a second model, but a CGXState belongs to one; call "
                "compress(accelerator) again before the next accelerator.prepare(model)"
            )
        model.register_comm_hook(self._state, cgx_hook)
        self._registered = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._given, name)


def compress(accelerator: Accelerator, state: CGXState | None = None, **config: Any) -> CGXState:
    """Registers `cgx_hook` with the model that the next `accelerator.prepare` wraps into
    DistributedDataParallel; on all ranks. Returns the state.

    state: a CGXState; None: a new one with these settings (bits=4, bucket_size=512, ...).

    Accelerate refuses the backend "cgx", so that its own calls run over Gloo or NCCL; gradients get
    a second group of the same ranks. If dist.init_process_group("cgx") came before the Accelerator,
    that group carries everything. `accelerator.save_state` writes cgx_state_RANK.pt for each rank,
    and `load_state` reads it.

    TypeError: no Accelerator. ValueError: one that does not train by DDP, or has a communication
    hook. RuntimeError: after `prepare`. With one process Accelerate does not wrap the
    model, so that nothing is compressed, with a warning.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"compress of a {type(accelerator).__name__}; allowed: an Accelerator")
    state = state_of(state, config)
    kind = accelerator.distributed_type.value
    if kind == "NO":
        warn("cgx: compress(accelerator) does nothing with one process; start several by torchrun")
        return state
    if kind not in _ALLOWED:
        raise ValueError(
            f"compress of an Accelerator of type {kind}; allowed: {', '.join(_ALLOWED)} (for "
            "FSDP2: cgx_utils.fsdp.compress)"
        )
    given = accelerator.ddp_handler or DistributedDataParallelKwargs()
    former = isinstance(given, _Handler)
    models = accelerator._models
    trained = any(p.requires_grad for model in models for p in model.parameters())
    if trained and not former:
        raise RuntimeError("compress(accelerator) comes before accelerator.prepare(model)")
    if given.comm_hook != DDPCommunicationHookType.NO:
        raise ValueError(
            f"the Accelerator has the communication hook {given.comm_hook}; allowed: none beside "
            "cgx_hook"
        )
    if state.group is None:
        state.group = _group(accelerator.device)
    number = given._number + 1 if former else 0
    accelerator.ddp_handler = _Handler(given._given if former else given, state, number)
    rank, ranks = accelerator.process_index, accelerator.num_processes
    suffix = f"_{number}" if number else ""
    accelerator.register_save_state_pre_hook(
        lambda models, weights, folder: save(state, folder, rank, suffix)
    )
    accelerator.register_load_state_pre_hook(
        lambda models, folder: load(state, folder, rank, ranks, suffix)
    )
    return state


def _group(device: torch.device) -> dist.ProcessGroup:
    """The default group if it is one of cgx, else a second one of all ranks."""
    from torch_cgx._backend import backend_of

    default = dist.distributed_c10d._get_default_group()
    try:
        backend_of(default, device)
    except (TypeError, ValueError):
        return dist.new_group(backend="cgx")
    return default
