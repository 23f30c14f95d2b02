"""Network namespaces joined by a bridge, with a rate on every link: built, read and torn down by
`ip` and `tc`.

    host 0: eth0 --- p0 \
    host 1: eth0 --- p1 - br0 in a namespace of its own (the switch)
    host 2: eth0 --- p2 /
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MTU = 1500
MAX_HOSTS = 250
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# A shaper saves up credit while idle, its burst, and lets that many bytes through at once. TCP
# passes packets of up to 64 KiB (segmentation offload), which have to fit into the burst, or the
# kernel cuts them at five times the CPU time. So that a slow link cannot pass a whole message at
# once, these packets are made no longer than the link carries in about an eighth of a millisecond.
_BURST_SECONDS = 131e-6
_OFFLOAD = (4096, 65536)
# The longest time that a packet may wait in a link's queue, and the least capacity of the queue.
_QUEUE_SECONDS = 0.05
_QUEUE_BYTES = 4 << 20


class BedError(RuntimeError):
    """A test bed could not be built, or something in it failed."""


@dataclass(frozen=True)
class Counters:
    """Traffic of a host's link since the bed was built, in whole Ethernet frames (with their
    headers, without preamble, checksum and gap), retransmissions included.
    """

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.sent_bytes - other.sent_bytes,
            self.sent_packets - other.sent_packets,
            self.received_bytes - other.received_bytes,
            self.received_packets - other.received_packets,
        )


def parse_rate(rate: str) -> int:
    """ "1gbit" -> 10**9 bits per second. ValueError unless it is a positive number of kbit, mbit or
    gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate.strip().lower())
    bits = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 64_000 <= bits <= 100 * 10**9:
        raise ValueError(f"rate {rate!r}; allowed: 64kbit to 100gbit, as 200mbit, 1gbit, 2.5gbit")
    return bits


def address(host: int) -> str:
    """Of host number `host`. Beds do not see each other, so all use the same addresses."""
    return f"10.77.0.{host + 1}"


def ip(*args: str, lines: Sequence[str] = ()) -> str:
    """Runs `ip ARGS`, or a batch of `lines`. Its output; BedError with what it said otherwise."""
    return _run("ip", args, lines)


def tc(*args: str, lines: Sequence[str] = ()) -> str:
    """Runs `tc ARGS`, or a batch of `lines`. Its output; BedError with what it said otherwise."""
    return _run("tc", args, lines)


def _run(tool: str, args: Sequence[str], lines: Sequence[str]) -> str:
    command = [tool, *args, *(["-batch", "-"] if lines else [])]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        said = (done.stderr + done.stdout).strip()
        raise BedError(f"{' '.join([*command, *lines[:1]])}: status {done.returncode}: {said}")
    return done.stdout


def build(switch: str, hosts: Sequence[str], rate: str | None) -> None:
    """Makes the namespaces `switch` and `hosts` and links them. BedError if that is not possible;
    namespaces made so far stay.
    """
    ip(lines=[f"netns add {name}" for name in (switch, *hosts)])
    ports = [f"p{i}" for i in range(len(hosts))]
    lines = [
        "link set lo up",
        # No spanning tree and no snooping: the bridge says nothing of its own.
        "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        "link set br0 addrgenmode none up",
    ]
    for port, host in zip(ports, hosts, strict=True):
        lines.append(f"link add {port} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {host}")
        # Without an IPv6 address of its own a link carries only the hosts' packets and ARP.
        lines.append(f"link set {port} addrgenmode none master br0{_offload(rate)} up")
    ip("-n", switch, lines=lines)
    tc("-n", switch, lines=[f"qdisc add dev {port} root {_discipline(rate)}" for port in ports])
    # By route: a namespace's default may only be one that unprivileged programs may use.
    control = congestion_control()
    by_route = f" congctl {control}" if control else ""
    for number, host in enumerate(hosts):
        lines = [
            "link set lo up",
            f"link set eth0 addrgenmode none{_offload(rate)}",
            f"address add {address(number)}/24 dev eth0 noprefixroute",
            "link set eth0 up",
            f"route add 10.77.0.0/24 dev eth0 src {address(number)}{by_route}",
        ]
        ip("-n", host, lines=lines)
        tc("-n", host, "qdisc", "add", "dev", "eth0", "root", *_discipline(rate).split())


def read_own() -> Counters:
    """The sent traffic of this host's link; for processes on a host. The received counters are 0:
    they are counted at the other end.
    """
    shown = json.loads(tc("-s", "-j", "qdisc", "show", "dev", "eth0"))[0]
    return Counters(shown["bytes"], shown["packets"], 0, 0)


def read(switch: str, hosts: Sequence[str]) -> list[Counters]:
    """The counters of all hosts.

    They come from the queueing disciplines at both ends of a link: an interface's own counters
    see a packet before it is cut into frames, and miss the headers of all frames but one.
    """
    ports = {one["dev"]: one for one in json.loads(tc("-n", switch, "-s", "-j", "qdisc", "show"))}
    counters = []
    for number, host in enumerate(hosts):
        shown = json.loads(tc("-n", host, "-s", "-j", "qdisc", "show", "dev", "eth0"))[0]
        port = ports[f"p{number}"]
        counters.append(Counters(shown["bytes"], shown["packets"], port["bytes"], port["packets"]))
    return counters


def _offload_bytes(rate: str) -> int:
    low, high = _OFFLOAD
    return min(max(int(parse_rate(rate) / 8 * _BURST_SECONDS), low), high)


def _offload(rate: str | None) -> str:
    return "" if rate is None else f" gso_max_size {_offload_bytes(rate)}"


def _discipline(rate: str | None) -> str:
    if rate is None:
        return "pfifo limit 10000"  # no shaping, but it counts
    per_second = parse_rate(rate) / 8
    # The frames' headers are added to the packet's length when it is weighed.
    burst = max(1.25 * _offload_bytes(rate) + MTU, 0.8 * per_second * _BURST_SECONDS)
    queue = max(per_second * _QUEUE_SECONDS, _QUEUE_BYTES)
    return f"tbf rate {parse_rate(rate)}bit burst {int(burst)} limit {int(queue)}"


def congestion_control() -> str | None:
    """TCP's congestion control between hosts: as on most machines, whatever the default here; None
    if the kernel has no choice.
    """
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return "cubic" if known.exists() and "cubic" in known.read_text().split() else None


@cache
def hosts_available() -> str | None:
    """The reason why `hosts` cannot work here, or None. Makes a namespace to find out, once."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, this is {sys.platform}"
    import os

    if os.geteuid() != 0:
        return f"network namespaces need root, this is user {os.geteuid()}"
    for tool, package in (
        ("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"),
        ("nsenter", "util-linux"), ("mount", "mount"),
    ):  # fmt: skip
        if shutil.which(tool) is None:
            return f"no {tool!r} on the PATH (apt-get install {package})"
    name = f"cgx-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
    except BedError as error:
        return str(error)
    try:
        ip("-n", name, "link", "add", "p0", "type", "veth", "peer", "name", "p1")
        ip("-n", name, "link", "add", "br0", "type", "bridge")
        tc("-n", name, "qdisc", "add", "dev", "p0", "root", *_discipline("1gbit").split())
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "mount", "--bind", "/", "/mnt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return None if done.returncode == 0 else f"{' '.join(command)}: {done.stderr.strip()}"
    except BedError as error:
        return str(error)
    finally:
        ip("netns", "del", name)
