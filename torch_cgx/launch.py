"""Determines rank, world size and meeting point of processes that mpirun or srun started.

Scripts need not call anything: `init_process_group("cgx")`, or any backend with the default
`env://`, does it if RANK, WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set. `setup()` does the
same earlier, for scripts that read LOCAL_RANK before they create the group.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torch_cgx import _launch_mpi
from torch_cgx._launch_env import Launcher, LaunchError, find, number
from torch_cgx._launch_meeting import Meeting, meet_by_mpi, meet_by_nodes, meet_myself

__all__ = ["LaunchError", "Setup", "find", "main", "rendezvous", "setup"]

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST_PORT = 65535

HELP = """\
Prints launcher, rank, world size, local rank and meeting point of this process. Start it instead of
your script, with the same launcher. Status 1: no launcher found, or an error.

torchrun, one host and several (run the second on every host; it sets all variables itself):

    torchrun --standalone --nproc-per-node 2 train.py
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
        --rdzv-endpoint host1:29400 train.py

mpirun of Open MPI (needs `pip install mpi4py`); `-x NAME` passes a variable to all ranks:

    mpirun -np 2 python train.py
    mpirun -np 4 --host host1:2,host2:2 -x CGX_COMPRESSION_QUANTIZATION_BITS=4 python train.py

mpirun of MPICH or Intel MPI (the same):

    mpirun -np 2 python train.py
    mpirun -np 4 -ppn 2 -hosts host1,host2 -genv CGX_COMPRESSION_QUANTIZATION_BITS 4 \\
        python train.py

srun, in a job of SLURM or on its own; mpi4py is used if MPI can connect the ranks:

    srun --nodes 2 --ntasks-per-node 2 python train.py
    srun --mpi=pmix --nodes 2 --ntasks-per-node 2 python train.py

Variables that are set stay: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT. With MASTER_ADDR and MASTER_PORT set, MPI is not used. GLOO_SOCKET_IFNAME names the
network interface.
"""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Rank and meeting point of this process. `None`: unknown. `variables`: those set in
    os.environ.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    master_addr: str
    master_port: int
    launcher: str
    how: str
    variables: dict[str, str]


class _State:
    """State of this process. A fork inherits it, with a store that has no threads: see `pid`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.setup: Setup | None = None
        self.store: Any = None  # on rank 0: keeps the store's server, and so the port
        self.held = False  # whether rank 0 has such a store; the same on all ranks
        self.groups = 0  # rendezvous over that store
        self.forked_from: _State | None = None


_state = _State()


def _mine() -> _State:
    global _state
    if _state.pid != os.getpid():
        inherited, _state = _state, _State()
        _state.forked_from = inherited  # destroying its store would wait for threads of the parent
    return _state


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
    state = _mine()
    with state.lock:
        if state.setup is not None and _unchanged(state.setup):
            _put(state.setup.variables)
            return state.setup
        if _missing(os.environ, rank, world_size):
            return _work_out(state, timeout, rank, world_size)
        launcher = find(os.environ)
        if launcher is not None:  # only local rank and size may be absent
            _put(_places(launcher.local_rank, launcher.local_size))
        return _from_environment(rank, world_size)


def _missing(env: Mapping[str, str], rank: int | None, size: int | None) -> list[str]:
    given = {"RANK": rank, "WORLD_SIZE": size}
    return [name for name in NEEDED if not env.get(name) and given.get(name) is None]


def _unchanged(found: Setup) -> bool:
    """Whether the environment agrees with the variables that were determined before."""
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
    assert rank is not None and size is not None and port is not None  # _missing has seen to it
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


def _work_out(state: _State, timeout: float, rank: int | None, size: int | None) -> Setup:
    launcher = find(os.environ)
    if launcher is None:
        missing = ", ".join(_missing(os.environ, rank, size))
        raise LaunchError(
            f"{missing} not set, and no launcher found: start with torchrun, mpirun or srun "
            "(python -m torch_cgx.launch --help), or set them"
        )
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
    """The launcher's values, overridden by RANK and WORLD_SIZE if they are set."""
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
    if launcher.connects_mpi and _launch_mpi.available():
        word = _launch_mpi.Word(launcher, timeout)
        if word.size == launcher.size or launcher.size is None:
            return meet_by_mpi(word, launcher, address, port), f"over MPI ({word.library()})"
        if not launcher.nodes:
            raise LaunchError(_other_mpi(launcher, word))
    if launcher.nodes:
        return meet_by_nodes(launcher, address, port), "from SLURM's node list"
    raise _launch_mpi.missing(launcher)


def _other_mpi(launcher: Launcher, word: _launch_mpi.Word) -> str:
    return (
        f"rank {launcher.rank}: {launcher.name} started {launcher.size} ranks, but mpi4py sees a "
        f"world of {word.size}: it has loaded another MPI ({word.library()}). Use the mpirun of "
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


def rendezvous(
    original: Callable[..., Iterator[tuple[Any, int, int]]], url: str, *args: Any, **kwargs: Any
) -> Iterator[tuple[Any, int, int]]:
    """torch's handler of `env://`, after `setup` if a variable is absent and a launcher sets it.

    Without a launcher this is torch's own handler, with its errors.
    """
    rank, size = told(url)
    state = _mine()
    if _missing(os.environ, rank, size) and (state.setup or find(os.environ)):
        timeout = kwargs.get("timeout")
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 300.0
        setup(seconds, rank=rank, world_size=size)
        state = _mine()
    found = state.setup
    here = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    for store, my_rank, my_size in original(url, *args, **kwargs):
        if found is not None and state.held and here == (found.master_addr, str(found.master_port)):
            # Rank 0's server outlives a group to keep the port. A later group must not read the
            # keys of an earlier one.
            if state.groups > 0:
                from torch.distributed import PrefixStore  # type: ignore[attr-defined]

                store = PrefixStore(f"torch_cgx.launch/{state.groups}", store)
            state.groups += 1
        yield store, my_rank, my_size


def told(url: str) -> tuple[int | None, int | None]:
    """The arguments rank and world_size of init_process_group; None: not given, or -1."""
    query = dict(parse_qsl(urlparse(url).query))
    values: list[int | None] = [None, None]
    for place, name in enumerate(("rank", "world_size")):
        with contextlib.suppress(ValueError):
            value = int(query.get(name, "-1"))
            values[place] = value if value >= 0 else None
    return values[0], values[1]


def main(argv: list[str] | None = None) -> int:
    """`python -m torch_cgx.launch`: prints one line per rank. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_cgx.launch",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for all ranks")
    timeout = parser.parse_args(argv).timeout
    host = socket.gethostname()
    try:
        if len(_missing(os.environ, None, None)) == len(NEEDED) and find(os.environ) is None:
            print(f"{host}: no launcher found, and none of {', '.join(NEEDED)} set", flush=True)
            return 1
        found = setup(timeout)
    except LaunchError as error:
        print(f"{host}: {error}", file=sys.stderr, flush=True)
        return 1
    local = "local rank unknown"
    if found.local_rank is not None:
        local = f"local rank {found.local_rank} of {found.local_world_size or 'unknown'}"
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    # One write: lines of several ranks do not mix.
    print(
        f"rank {found.rank} of {found.world_size}, {local}, host {host}, "
        f"master {found.master_addr} port {found.master_port}, launcher: {found.launcher}, "
        f"determined: {found.how}" + (f", interface {interface}" if interface else "") + "\n",
        end="",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    # The module that init_process_group would use, not this second copy of it.
    from torch_cgx.launch import main as imported_main

    sys.exit(imported_main())
