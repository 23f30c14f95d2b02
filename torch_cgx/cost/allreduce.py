"""The time of one all-reduce between hosts; formulas: the package's docstring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cgx.cost.speeds import NONE, Speed

if TYPE_CHECKING:
    from torch_cgx import _C

# Bytes on the wire per byte of a message: headers of Ethernet, IP and TCP in frames of 1500 bytes,
# and acknowledgements (benchmarks/results/hosts_training.json: 1.06 for gloo and cgx).
FRAMES = 1.06
# Seconds of processor time that the kernel needs for a byte, to send it and to receive it.
KERNEL = 0.5e-9
LATENCY = 100e-6  # of a message between two hosts, with the threads that it wakes up


@dataclass(frozen=True)
class Payload:
    """Of one bucket. layers: values and codec of each, in the order of the bucket; None: exact.
    width: bytes of a value before it is encoded, 2 or 4.
    """

    layers: tuple[tuple[int, _C.Codec | None], ...]
    width: int = 4

    @property
    def values(self) -> int:
        """That are encoded."""
        return sum(numel for numel, codec in self.layers if codec is not None)

    @property
    def nbytes(self) -> int:
        """Of what is sent, exact values included."""
        import torch

        dtype = torch.float32 if self.width == 4 else torch.bfloat16
        return sum(
            numel * self.width if codec is None else codec.encoded_bytes(numel, dtype)
            for numel, codec in self.layers
        )


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
    carries an equal share between the hosts. speed: of the codecs of the payload.
    """
    from torch_cgx import _C

    if hosts < 2:
        return Cost(0.0, 0.0, Work(0.0, 0.0))
    labels = [f"host {rank // ranks_per_host}" for rank in range(hosts * ranks_per_host)]
    found = _C.predict_all_reduce(
        payload.layers,
        {4: 0, 2: 2}[payload.width],  # float32, bfloat16
        (latency, FRAMES * 8 / bits_per_second, 2 * KERNEL),
        (speed.encode, speed.decode),
        flat,
        **_C.simulated_group(labels),
    )
    return Cost(found["seconds"], found["host_bytes"], Work(found["wire"], found["processor"]))
