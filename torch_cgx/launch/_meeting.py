"""Chooses the address and port at which rank 0 serves the store: for one rank, over MPI, or from
SLURM's list of nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections import Counter
from typing import Any

from torch_cgx.launch import _network as net
from torch_cgx.launch._mpi import Failure, MpiWorld
from torch_cgx.launch._variables import Launcher, LaunchError

_REACH_SECONDS = 5.0  # two repetitions of a lost SYN


@dataclasses.dataclass(frozen=True)
class Meeting:
    """Rank, world size, local rank and size of this process, and the meeting point.

    `held`: rank 0 listens there already; `listener`: its socket, on rank 0 only. `interface`: the
    interface for Gloo, if Gloo would not find one by itself.
    """

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    address: str
    port: int
    held: bool = False
    listener: socket.socket | None = None
    interface: str | None = None


def meet_myself(launcher: Launcher, address: str | None, port: int | None) -> Meeting:
    """For a world of one rank: the loopback address, unless `address` is given."""
    listener = net.listen(port or 0, loopback_only=address is None)
    bound = int(listener.getsockname()[1])
    return Meeting(0, 1, 0, 1, address or net.LOOPBACK, bound, held=True, listener=listener)


def meet_by_nodes(launcher: Launcher, address: str | None, port: int | None) -> Meeting:
    """The first node of the step, and a port from the ids of job and step: no communication."""
    assert launcher.size is not None and launcher.port is not None
    several = len(launcher.nodes) > 1
    if address is None:
        address = launcher.nodes[0] if several else net.LOOPBACK
        here = os.environ.get("SLURMD_NODENAME")
        if several and launcher.rank == 0 and here not in (None, "", address):
            raise LaunchError(
                f"rank 0 is on {here}, not on the first node of the step, {address} (--distribution"
                "=arbitrary?); set MASTER_ADDR and MASTER_PORT"
            )
        try:
            socket.getaddrinfo(address, None)
        except OSError as error:
            raise LaunchError(
                f"rank {launcher.rank} on {socket.gethostname()} cannot resolve {address}, the "
                f"first node of the step ({error.strerror}); set MASTER_ADDR to its address"
            ) from error
    return Meeting(
        launcher.rank,
        launcher.size,
        launcher.local_rank,
        launcher.local_size,
        address,
        launcher.port if port is None else port,
    )


@dataclasses.dataclass(frozen=True)
class _Hello:
    rank: int
    size: int
    address: str | None
    port: int | None
    network: str


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The result of all ranks' hellos. Lists are by MPI rank."""

    master: int
    one_network: bool
    places: list[tuple[int, int]]  # rank and number of ranks on the host


@dataclasses.dataclass(frozen=True)
class _Offer:
    port: int
    addresses: list[str]
    token: bytes


def meet_by_mpi(
    world: MpiWorld, launcher: Launcher, address: str | None, port: int | None
) -> Meeting:
    """Rank 0 listens; the ranks choose the first of its addresses that all of them reach.

    Collective. LaunchError on all ranks if there is no such address, if ranks have different
    MASTER_ADDR or MASTER_PORT, or if their RANKs are not 0 to size - 1.
    """
    size = world.size if launcher.size is None else launcher.size
    hello = _Hello(launcher.rank, size, address, port, net.network_identity())
    plan: _Plan = world.agree(hello, lambda all_of: _make_plan(all_of, world.size))
    place = plan.places[world.rank]
    with contextlib.ExitStack() as serving:
        mine: Any = None
        listener = None
        if world.rank == plan.master:
            try:
                addresses = _addresses(plan, address)
                listener = net.listen(port or 0, loopback_only=addresses == [net.LOOPBACK])
                serving.callback(listener.close)
                token = serving.enter_context(net.answering(listener))
                mine = _Offer(int(listener.getsockname()[1]), addresses, token)
            except LaunchError as error:
                mine = Failure(f"rank 0: {error}")
        offer: _Offer = world.agree(mine, lambda offers: offers[plan.master])
        chosen, local = _choose(world, launcher.rank, offer)
        # The stack closes the first of the two.
        kept = None if listener is None else listener.dup()
    interface = None
    if not (plan.one_network or os.environ.get("GLOO_SOCKET_IFNAME") or net.name_is_usable()):
        interface = net.interface_of(local)
    return Meeting(
        launcher.rank,
        size,
        place[0] if launcher.local_rank is None else launcher.local_rank,
        place[1] if launcher.local_size is None else launcher.local_size,
        chosen,
        offer.port,
        held=True,
        listener=kept,
        interface=interface,
    )


def _make_plan(hellos: list[_Hello], mpi_size: int) -> _Plan:
    for rank, hello in enumerate(hellos):
        if hello.size != mpi_size:
            raise LaunchError(f"MPI rank {rank} has world size {hello.size}, MPI {mpi_size}")
        told, first = (hello.address, hello.port), (hellos[0].address, hellos[0].port)
        if told != first:
            raise LaunchError(
                f"(MASTER_ADDR, MASTER_PORT) is {told} on MPI rank {rank} and {first} on MPI rank "
                "0: must be equal, or absent, on all ranks"
            )
    twice = [rank for rank, count in Counter(h.rank for h in hellos).items() if count > 1]
    if twice:
        holders = [rank for rank, hello in enumerate(hellos) if hello.rank == twice[0]]
        raise LaunchError(
            f"MPI ranks {holders} all have RANK {twice[0]}: must be 0 to {mpi_size - 1}, each once "
            "(a RANK in the environment of mpirun? unset it)"
        )
    seen: Counter[str] = Counter()
    total = Counter(h.network for h in hellos)
    places = []
    for hello in hellos:
        places.append((seen[hello.network], total[hello.network]))
        seen[hello.network] += 1
    master = next(i for i, hello in enumerate(hellos) if hello.rank == 0)
    return _Plan(master, len(total) == 1, places)


def _addresses(plan: _Plan, address: str | None) -> list[str]:
    if address is not None:
        return [address]
    named = (os.environ.get("GLOO_SOCKET_IFNAME") or "").split(",")[0]
    if plan.one_network and not named:
        return [net.LOOPBACK]
    return net.candidates(named or None)


def _choose(world: MpiWorld, rank: int, offer: _Offer) -> tuple[str, str]:
    """The first address that all ranks reach, and this rank's own address on the route to it."""
    complaints = []
    for address in offer.addresses:
        local, wrong = net.reach(address, offer.port, offer.token, _REACH_SECONDS)
        mine = None if wrong is None else f"rank {rank} on {socket.gethostname()}: {wrong}"
        unreached = world.agree(mine, lambda all_of: [text for text in all_of if text])
        if not unreached:
            assert local is not None
            return address, local
        more = f" and {len(unreached) - 1} more ranks" if len(unreached) > 1 else ""
        complaints.append(f"{address} port {offer.port} ({unreached[0]}{more})")
    raise LaunchError(
        f"no address of rank 0 is reached by all ranks: {'; '.join(complaints)}. Set MASTER_ADDR "
        "to an address that all ranks reach, or GLOO_SOCKET_IFNAME to its interface"
    )
