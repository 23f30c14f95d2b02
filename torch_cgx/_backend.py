"""Creates the engine of a process group for torch, and finds the engine behind a process group."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_cgx import _C, _config, _environment

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


def create(dist_opts: Any, options: Any) -> _C.ProcessGroupCGX:
    """Creates the backend of one group; torch calls this on every rank of the group.

    dist_opts: torch's DistributedBackendOptions. options: `pg_options` of init_process_group or
    new_group, a `torch_cgx.Options` or None.
    """
    if options is not None and not isinstance(options, _C.Options):
        raise TypeError(
            f"pg_options of a cgx group is of type {type(options).__qualname__}; "
            "allowed: torch_cgx.Options, None"
        )
    ranks = dist_opts.global_ranks_in_group  # empty: of the default group
    rank = ranks[dist_opts.group_rank] if ranks else dist_opts.group_rank
    _environment.warn_once_of_unknown(os.environ, rank)
    _warn_of_exact(options)
    from torch_cgx import _gloo_address

    return _C.ProcessGroupCGX(
        store=dist_opts.store,
        rank=dist_opts.group_rank,
        size=dist_opts.group_size,
        options=options,
        make_inner=make_inner,
        make_nccl=make_nccl if dist.is_nccl_available() else None,
        load_mpi=load_mpi,
        load_kernels=load_kernels,
        choose_address=_gloo_address.choose,
        report_addresses=functools.partial(_gloo_address.recent_report, dist_opts.store),
        timeout=dist_opts.timeout,
        group_name=dist_opts.group_id,
        # torch sets the description of a group later; the default group's is known.
        group_desc="" if dist.is_initialized() else "default_pg",
        global_ranks=list(dist_opts.global_ranks_in_group),
    )


def _warn_of_exact(options: _C.Options | None) -> None:
    given = {} if options is None else options.given()
    if "bits" in given:
        _config.warn_of_exact(given["bits"], "Options")
        return
    with contextlib.suppress(ValueError):  # the engine raises it, on all ranks
        _config.from_environment("bits")


def options_from_dict(given: dict[str, Any]) -> _C.Options:
    """Rebuilds pickled options."""
    return _C.Options(**given)


def make_inner(store: Store, rank: int, size: int, timeout: timedelta, address: str = "") -> Any:
    """Creates the backend over Gloo, which runs what the engine does not (docs/how_it_works.md).

    Collective over the ranks of `store`. address: where this host listens; empty: Gloo chooses.
    """
    if not dist.is_gloo_available():
        raise RuntimeError(
            "the cgx backend needs a torch that was built with Gloo; this one is not"
        )
    gloo: Any = dist.ProcessGroupGloo
    try:
        if not address:
            return gloo(store, rank, size, timeout)
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._threads = 2  # torch's default for one device
        options._timeout = timeout
        return gloo(store, rank, size, options)
    except RuntimeError as error:
        if os.strerror(errno.EAGAIN) in str(error):
            text = f"the system does not start the threads of Gloo ({error}); {_C.thread_limits()}"
            raise _C.ResourceError(text) from None
        if "connectFullMesh" not in str(error):
            raise
        from torch_cgx import _gloo_address

        raise type(error)(_gloo_address.hint(error, address)) from error


def make_nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Creates the NCCL backend, which sends CUDA tensors, and encoded bytes of CUDA tensors between
    hosts. Not collective: NCCL connects at its first call.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def load_kernels(major: int, minor: int) -> bytes:
    """The kernels for GPUs of compute capability major.minor. A group calls this when it first
    reduces a CUDA tensor.
    """
    from torch_cgx import _C, _kernels

    if _C.process_variable("cuda"):
        return _kernels.image(major, minor)
    return _kernels.hip_image(torch.cuda.get_device_properties().gcnArchName)


def load_mpi() -> Any:
    """The functions of the installed MPI, as a capsule, for groups with an MPI communicator."""
    from torch_cgx import _mpi_loader

    return _mpi_loader.load()


def check_group(group: Any, name: str = "group") -> None:
    """TypeError if `group` is not a process group."""
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{name}={group!r} is of type {type(group).__name__}; allowed: a ProcessGroup (of "
            "dist.new_group, or dist.group.WORLD), None. Settings are given by name: bits=4, or "
            "config=..."
        )


def group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The default group for None. RuntimeError if there is none; TypeError for anything else than a
    process group.
    """
    if group is None:
        if not dist.is_initialized():
            raise RuntimeError(
                'there is no process group yet: dist.init_process_group("cgx") first'
            )
        group = dist.distributed_c10d._get_default_group()
    check_group(group)
    return group


def check_op(op: Any) -> None:
    """TypeError if `op` is not a reduction."""
    if not isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        raise TypeError(
            f"op={op!r} is of type {type(op).__name__}; allowed: torch.distributed.ReduceOp. A "
            "configuration is given by name: config=..."
        )


def backend_of(
    group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"
) -> _C.ProcessGroupCGX:
    """The engine behind a process group (None: the default group) for tensors on `device`.

    RuntimeError if there is no process group yet; ValueError, which names the group's backend, if
    that is not cgx.
    """
    group = group_of(group)
    device = torch.device(device)
    try:
        backend = group._get_backend(device)
    except RuntimeError as error:
        raise ValueError(f"the group has no backend for {device.type} tensors: {error}") from error
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking backend in front.
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    if not isinstance(backend, _C.ProcessGroupCGX):
        raise ValueError(
            f"the group's backend for {device.type} tensors is {backend.name()!r}; needed: 'cgx', "
            'as in dist.init_process_group("cgx") or dist.new_group(backend="cgx")'
        )
    return backend
