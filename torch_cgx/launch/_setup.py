"""Works out rank, world size and meeting point, and puts them into the environment."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch_cgx.launch import _mpi, _state
from torch_cgx.launch._meeting import Meeting, meet_by_mpi, meet_by_nodes, meet_myself
from torch_cgx.launch._state import Setup
from torch_cgx.launch._variables import Launcher, LaunchError, VariablesAbsent, find, number

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_PORT = 65535


def setup(
    timeout: float = 300.0, *, rank: int | None = None, world_size: int | None = None
) -> Setup:
    """Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT if they are
    absent, and returns their values.

    Collective if MASTER_ADDR or MASTER_PORT is absent: all ranks call it within `timeout` seconds.
    A second call changes nothing. `rank`, `world_size`: used for variables that are absent. From
    here on rank 0 serves a store at the port: a TCPStore that the script creates there must be
    `multi_tenant=True`, like the stores of `env://` and `tcp://`.

    If ranks are on several hosts and this host's name resolves to no usable address,
    GLOO_SOCKET_IFNAME is set too. Raises LaunchError, on all ranks if the ranks exchange
    information.
    """
    state = _state.mine()
    with state.lock:
        if state.setup is not None and _unchanged(state.setup):
            _put(state.setup.variables)
            return state.setup
        if absent_variables(os.environ, rank, world_size):
            return _work_out(state, timeout, rank, world_size)
        launcher = find(os.environ)
        if launcher is not None:  # only local rank and size may be absent
            _put(_places(launcher.local_rank, launcher.local_size))
        return _from_environment(rank, world_size)


def absent_variables(env: Mapping[str, str], rank: int | None, size: int | None) -> list[str]:
    """Names of the variables that are absent; `rank`, `size`: stand for RANK and WORLD_SIZE."""
    given = {"RANK": rank, "WORLD_SIZE": size}
    return [name for name in NEEDED if not env.get(name) and given.get(name) is None]


def no_launcher(absent: Sequence[str]) -> VariablesAbsent:
    return VariablesAbsent(
        f"{', '.join(absent)} not set, and no launcher found: start with torchrun, mpirun or srun "
        "(python -m torch_cgx.launch --help), or set them"
    )


def _unchanged(found: Setup) -> bool:
    """True if the environment agrees with the variables that were determined before."""
    return all(os.environ.get(n) in (None, "", v) for n, v in found.variables.items())


def _put(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not os.environ.get(name):
            os.environ[name] = value


def _from_environment(rank: int | None, size: int | None) -> Setup:
    env = os.environ
    rank = number("RANK", env.get("RANK")) if rank is None else rank
    size = number("WORLD_SIZE", env.get("WORLD_SIZE"), 1) if size is None else size
    port = number("MASTER_PORT", env.get("MASTER_PORT"), 0, _MOST_PORT)
    assert rank is not None and size is not None and port is not None  # none of them is absent
    return Setup(
        rank,
        size,
        number("LOCAL_RANK", env.get("LOCAL_RANK")),
        number("LOCAL_WORLD_SIZE", env.get("LOCAL_WORLD_SIZE"), 1),
        env["MASTER_ADDR"],
        port,
        "torchrun" if "TORCHELASTIC_RUN_ID" in env else "the environment",
        "all variables were set",
        {},
    )


def _work_out(state: _state.State, timeout: float, rank: int | None, size: int | None) -> Setup:
    launcher = find(os.environ)
    if launcher is None:
        raise no_launcher(absent_variables(os.environ, rank, size))
    launcher = _with_given(launcher, rank, size)
    address = os.environ.get("MASTER_ADDR") or None
    port = number("MASTER_PORT", os.environ.get("MASTER_PORT"), 1, _MOST_PORT)
    meeting, how = _meet(launcher, address, port, timeout)
    variables = {
        "RANK": str(meeting.rank),
        "WORLD_SIZE": str(meeting.size),
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        **_places(meeting.local_rank, meeting.local_size),
    }
    if meeting.interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = meeting.interface
    state.store, state.held, state.groups = _serve(meeting, timeout), meeting.held, 0
    added = {n: v for n, v in variables.items() if not os.environ.get(n)}
    _put(added)
    state.setup = Setup(
        meeting.rank,
        meeting.size,
        number("LOCAL_RANK", os.environ.get("LOCAL_RANK")),
        number("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE"), 1),
        meeting.address,
        meeting.port,
        launcher.name,
        how,
        added,
    )
    return state.setup


def _places(local_rank: int | None, local_size: int | None) -> dict[str, str]:
    values = {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_size}
    return {name: str(value) for name, value in values.items() if value is not None}


def _with_given(launcher: Launcher, rank: int | None, size: int | None) -> Launcher:
    """The launcher's rank and size, replaced by RANK and WORLD_SIZE if these are given."""
    env = os.environ
    given_rank = number("RANK", env.get("RANK")) if rank is None else rank
    given_size = number("WORLD_SIZE", env.get("WORLD_SIZE"), 1) if size is None else size
    if given_size is not None and launcher.size not in (None, given_size):
        raise LaunchError(
            f"rank {launcher.rank}: the world size is set to {given_size}, but {launcher.name} "
            f"started {launcher.size}; set all four of RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT, or none"
        )
    use = launcher.rank if given_rank is None else given_rank
    whole = launcher.size if given_size is None else given_size
    if whole is not None and use >= whole:
        raise LaunchError(f"rank {use}: must be 0 to {whole - 1}, as the world size is {whole}")
    return dataclasses.replace(launcher, rank=use, size=whole)


def _meet(
    launcher: Launcher, address: str | None, port: int | None, timeout: float
) -> tuple[Meeting, str]:
    if launcher.size is not None and address is not None and port is not None:
        return (
            Meeting(
                launcher.rank,
                launcher.size,
                launcher.local_rank,
                launcher.local_size,
                address,
                port,
            ),
            "from the launcher's variables",
        )
    if launcher.size == 1:
        return meet_myself(launcher, address, port), "a single rank"
    if launcher.connects_mpi and _mpi.available():
        world = _mpi.MpiWorld(launcher, timeout)
        if world.size == launcher.size or launcher.size is None:
            return meet_by_mpi(world, launcher, address, port), f"over MPI ({world.library()})"
        if not launcher.nodes:
            raise LaunchError(_other_mpi(launcher, world))
    if launcher.nodes:
        return meet_by_nodes(launcher, address, port), "from SLURM's node list"
    raise _mpi.missing(launcher)


def _other_mpi(launcher: Launcher, world: _mpi.MpiWorld) -> str:
    return (
        f"rank {launcher.rank}: {launcher.name} started {launcher.size} ranks, but mpi4py sees a "
        f"world of {world.size}: it has loaded another MPI ({world.library()}). Use the mpirun of "
        f"that MPI, or make mpi4py load mpirun's, or set MASTER_ADDR and MASTER_PORT"
    )


def _serve(meeting: Meeting, timeout: float) -> Any:
    """On rank 0: a store on the listening socket, so no other program can take the port."""
    if meeting.listener is None:
        return None
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        host_name=meeting.address,
        port=meeting.port,
        world_size=meeting.size,
        is_master=True,
        timeout=datetime.timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=meeting.listener.detach(),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )
