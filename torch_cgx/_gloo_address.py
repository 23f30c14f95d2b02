"""Chooses the address that Gloo listens at, if this host's name resolves to no usable one.

Gloo listens at the interface that GLOO_SOCKET_IFNAME names, else at the address that the host's
name resolves to. On Debian and others that is 127.0.1.1, which no other host can reach, so the
ranks would wait for each other. Therefore the ranks of a new group exchange their addresses
(`report`). A host whose name resolves to no usable address listens at the address on the route to
the group's store; the host of the store listens at the address on the route to another host.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from torch_cgx.launch import _network as net
from torch_cgx.launch._variables import LaunchError

_recent: dict[tuple[int, int, str, str, str], str] = {}  # at most one, by what it depends on


def report(store: Any) -> str:
    """The addresses of this rank's host, for `choose` on all ranks: JSON in one line.

    network: equal for ranks that reach each other's loopback; host: its name; named: the value of
    GLOO_SOCKET_IFNAME; at: the address that Gloo chooses by itself; way: the address on the route
    to the server of `store`; any: the address of some interface. An address is empty if only a
    loopback address was found, or if an earlier field has one.
    """
    return json.dumps(_look(_server_of(store)))


def _look(store_host: str) -> dict[str, str]:
    host, named = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME") or ""
    at = _of_interface(named.split(",")[0]) if named else _of_name(host)
    way = "" if at or named else _own_address_towards(store_host)
    any_ = "" if at or named or way else _any_address()
    place = {"network": net.network_identity(), "host": host, "named": named}
    return {**place, "at": at, "way": way, "any": any_}


def recent_report(store: Any, clock: Callable[[], float] = time.monotonic) -> str:
    """`report`, at most 10 s old if it has an address: it asks for every interface, and programs
    make many groups in a row.
    """
    named = os.environ.get("GLOO_SOCKET_IFNAME") or ""
    key = (int(clock() / 10), os.getpid(), socket.gethostname(), named, _server_of(store))
    text = _recent.get(key)
    if text is None:
        found = _look(key[-1])
        text = json.dumps(found)
        _recent.clear()
        if found["at"] or found["way"] or found["any"]:
            _recent[key] = text
    return text


def choose(rank: int, reports: list[str]) -> str:
    """The address at which Gloo of `rank` listens; empty: Gloo chooses.

    RuntimeError, on all ranks, if the ranks are on several hosts and one host has no address that
    others could reach.
    """
    ranks: list[dict[str, str]] = [json.loads(text) for text in reports]
    mine = ranks[rank]
    if len({one["network"] for one in ranks}) == 1:
        return ""
    for number, one in enumerate(ranks):
        if one["at"] or one["way"] or one["any"]:
            continue
        why = (
            f"GLOO_SOCKET_IFNAME={one['named']} names no interface with an address that other "
            "hosts can reach"
            if one["named"]
            else "no interface has an address that other hosts can reach"
        )
        raise RuntimeError(
            f"rank {number} on host {one['host']}: {why}, and the group spans several hosts; set "
            "GLOO_SOCKET_IFNAME there to the interface that leads to the others"
        )
    if mine["at"] or mine["way"]:
        return "" if mine["at"] else mine["way"]
    for one in ranks:
        far = one["at"] or one["way"]
        if one["network"] != mine["network"] and far:
            return _own_address_towards(far) or mine["any"]
    return mine["any"]


def hint(error: BaseException, address: str) -> str:
    """The text of an error that Gloo raised at its start, with advice."""
    listened = address or _of_name(socket.gethostname()) or "the loopback interface"
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    what = f"GLOO_SOCKET_IFNAME={named}" if named else f"at {listened}"
    return (
        f"{error}\n(Gloo of this process listened on host {socket.gethostname()}, {what}. "
        "GLOO_SOCKET_IFNAME names the network interface that leads to the other hosts.)"
    )


def _is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_loopback


@functools.cache
def _of_name(name: str) -> str:
    """The address that Gloo finds by the host's name: the first that belongs to this host; empty if
    that is a loopback address, or if there is none.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind(address)
        except OSError:
            continue
        ip = str(address[0])
        return "" if _is_loopback(ip) else ip
    return ""


def _of_interface(name: str) -> str:
    found = [a.ip for a in net.addresses() if a.interface == name]
    return next((ip for ip in found if not _is_loopback(ip)), "")


def _any_address() -> str:
    try:
        return net.candidates(None)[0]
    except (LaunchError, OSError):
        return ""


def _server_of(store: Any) -> str:
    """The host of the server behind a store; empty if the store has no server."""
    for _ in range(16):  # wrappers of wrappers
        host = getattr(store, "host", None)
        if isinstance(host, str) and host:
            return host
        wrapped = getattr(store, "underlying_store", None)
        if wrapped is None:
            break
        store = wrapped
    return os.environ.get("MASTER_ADDR") or ""


def _own_address_towards(host: str) -> str:
    """This host's address on the route to another host; nothing is sent. Empty if there is no
    route, or if it stays on this host.
    """
    if not host:
        return ""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                ip = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        # The route to an own address goes through the loopback, from that address.
        if not _is_loopback(ip):
            return ip
    return ""
