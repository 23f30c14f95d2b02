"""The network side of a launch: this host's addresses, a listening socket, and the check that a
peer can connect to it.

Standard library only; Linux (ioctl and /proc for the list of addresses).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import ipaddress
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from torch_cgx._threads import start_daemon
from torch_cgx.launch._variables import LaunchError

LOOPBACK = "127.0.0.1"
_TOKEN_BYTES = 16
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_UP = 1


@dataclasses.dataclass(frozen=True)
class Address:
    """An IP address (text) of a network interface of this host."""

    interface: str
    ip: str


def network_identity() -> str:
    """Machine and network namespace: equal for two processes if they share 127.0.0.1."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return f"host {socket.gethostname()}"


def addresses() -> list[Address]:
    """Addresses of the interfaces that are up, IPv4 first; no link-local ones."""
    names = [name for _, name in socket.if_nameindex()]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request)
                if not struct.unpack("H", answer[16:18])[0] & _IFF_UP:
                    continue
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # no IPv4 address
                continue
            found.append(Address(name, socket.inet_ntoa(answer[20:24])))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            found.append(Address(name, str(ipaddress.IPv6Address(bytes.fromhex(digits)))))
    return [a for a in found if not ipaddress.ip_address(a.ip).is_link_local]


def candidates(interface: str | None) -> list[str]:
    """Addresses of this host that others may reach, the likeliest first; no loopback address,
    unless `interface` (the first name of GLOO_SOCKET_IFNAME) is the loopback interface.

    LaunchError if there is none.
    """
    everything = addresses()
    if interface:
        named = [a.ip for a in everything if a.interface == interface]
        if not named:
            there = ", ".join(sorted({a.interface for a in everything})) or "none"
            raise LaunchError(
                f"GLOO_SOCKET_IFNAME={interface}: host {socket.gethostname()} has no such "
                f"interface that is up and has an address; it has {there}"
            )
        return named
    outside = [a for a in everything if not ipaddress.ip_address(a.ip).is_loopback]
    if not outside:
        raise LaunchError(
            f"host {socket.gethostname()} has only loopback addresses; set MASTER_ADDR and "
            "MASTER_PORT"
        )
    by_name, default = own_name_addresses(), _default_interface()

    def order(a: Address) -> tuple[bool, bool, bool]:
        return (a.ip not in by_name, a.interface != default, ":" in a.ip)

    return [a.ip for a in sorted(outside, key=order)]


def own_name_addresses() -> set[str]:
    """The addresses of this host's name, without loopback addresses (Debian's 127.0.1.1)."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    ips = {str(entry[4][0]).partition("%")[0] for entry in found}
    return {ip for ip in ips if not ipaddress.ip_address(ip).is_loopback}


def name_is_usable() -> bool:
    """True if this host's name resolves to an address of one of its interfaces, as Gloo needs."""
    return bool(own_name_addresses() & {a.ip for a in addresses()})


def interface_of(ip: str) -> str | None:
    """The interface that has the address."""
    return next((a.interface for a in addresses() if a.ip == ip), None)


def _default_interface() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            fields = line.split()
            if len(fields) > 1 and fields[1] == "00000000":
                return fields[0]
    return None


def listen(port: int, loopback_only: bool) -> socket.socket:
    """A listening TCP socket; port 0: any free port. Raises LaunchError."""
    families = [(socket.AF_INET, LOOPBACK)]
    if not loopback_only:
        families = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    errors = []
    for family, host in families:
        with contextlib.ExitStack() as undo:
            try:
                listener = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
                if family == socket.AF_INET6:  # serves IPv4 as well
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen(4096)
            except OSError as error:
                errors.append(f"{host}: {error.strerror or error}")
                continue
            undo.pop_all()
            return listener
    where = f"port {port} (MASTER_PORT)" if port else "any port"
    raise LaunchError(f"cannot listen on {where} of {socket.gethostname()}: {'; '.join(errors)}")


@contextlib.contextmanager
def answering(listener: socket.socket) -> Iterator[bytes]:
    """Sends a secret token to everyone who connects while the body runs, and yields the token.

    The listener still listens afterwards.
    """
    token = secrets.token_bytes(_TOKEN_BYTES)
    wake, stop = socket.socketpair()
    listener.setblocking(False)

    def serve() -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            ready.register(wake, selectors.EVENT_READ)
            while True:
                events = {key.fileobj for key, _ in ready.select()}
                if listener in events:
                    with contextlib.suppress(OSError):
                        peer, _ = listener.accept()
                        with peer:
                            peer.sendall(token)
                elif wake in events:
                    return

    thread = start_daemon(serve, "cgx-launch")
    try:
        yield token
    finally:
        stop.close()
        thread.join()
        wake.close()
        listener.setblocking(True)


def reach(host: str, port: int, token: bytes, seconds: float) -> tuple[str | None, str | None]:
    """Connects to `answering`: (own address of the connection, None), or (None, the problem)."""
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection((host, port), timeout=seconds) as link:
            got = b""
            while len(got) < len(token):
                link.settimeout(max(deadline - time.monotonic(), 0.001))
                received = link.recv(len(token) - len(got))
                if not received:
                    break
                got += received
            if got != token:
                return None, "another program answers there"
            # An IPv4 connection through a dual socket shows as ::ffff:a.b.c.d
            return str(link.getsockname()[0]).removeprefix("::ffff:"), None
    except OSError as error:
        return None, error.strerror or str(error) or type(error).__name__
