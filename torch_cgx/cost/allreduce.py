"""The time of one all-reduce between hosts; formulas: the package's docstring."""

from __future__ import annotations

from dataclasses import dataclass

from torch_cgx.cost.speeds import NONE, Speed

# Bytes on the wire per byte of a message: headers of Ethernet, IP and TCP in frames of 1500 bytes,
# and acknowledgements (benchmarks/results/hosts_training.json: 1.06 for gloo and cgx).
FRAMES = 1.06
# Seconds of processor time that the kernel needs for a byte, to send it and to receive it.
KERNEL = 0.5e-9
SEGMENT_BYTES = 512 << 10  # the default of segment_kb
LATENCY = 100e-6  # of a message between two hosts, with the threads that it wakes up


@dataclass(frozen=True)
class Payload:
    """Of one bucket: values that are encoded, bytes of the encoding, exact values included."""

    values: int
    nbytes: int


@dataclass(frozen=True)
class Work:
    """wire: seconds that the link is busy. processor: seconds of a rank's core."""

    wire: float
    processor: float


@dataclass(frozen=True)
class Cost:
    """seconds: of the all-reduce. host_bytes: that leave a host, without frames."""

    seconds: float
    host_bytes: float
    work: Work


def all_reduce(
    payload: Payload,
    bits_per_second: float,
    hosts: int,
    ranks_per_host: int = 1,
    speed: Speed = NONE,
    latency: float = LATENCY,
    flat: bool = False,
) -> Cost:
    """flat: one ring over all ranks, as Gloo's; else the ranks of a host reduce first, and each
    carries an equal share between the hosts.
    """
    if hosts < 2:
        return Cost(0.0, 0.0, Work(0.0, 0.0))
    peers = hosts * ranks_per_host if flat else hosts
    host_bytes = 2 * (peers - 1) / peers * payload.nbytes
    wire = FRAMES * host_bytes * 8 / bits_per_second
    share = payload.values / ranks_per_host
    encoded = share * (1 if hosts == 2 else 1 + 1 / hosts)
    decoded = share * 2 * (hosts - 1) / hosts
    # Each byte is sent by one rank of the host and one is received.
    kernel = 2 * KERNEL * host_bytes / ranks_per_host
    work = encoded * speed.encode + decoded * speed.decode + kernel
    rounds = 1 if hosts == 2 else 2
    if flat:
        rounds = 2 * (peers - 1)
    segments = max(1.0, host_bytes / ranks_per_host / SEGMENT_BYTES)
    seconds = max(wire, work) + min(wire, work) / segments + rounds * latency
    return Cost(seconds, host_bytes, Work(wire, work))
