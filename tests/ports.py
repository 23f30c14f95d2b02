"""Ports for programs that a test starts later."""

from __future__ import annotations

import random
import socket

_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nobody listens. None of those that the system gives to connections: until the
    program takes it, another test's connection would, now and then.
    """
    with open(_RANGE) as file:
        given = int(file.read().split()[0])
    for port in random.SystemRandom().sample(range(10_000, given), 100):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port from 10000 to {given - 1} is free on {host}")
