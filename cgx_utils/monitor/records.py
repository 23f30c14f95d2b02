"""The records of a `Monitor`: what their keys mean, and how they are made from counters.

version: 1
step: steps since the Monitor was made, at the end of the record's window
steps: in the window
seconds_per_step: wall clock between the ends of steps, mean over the window
exposed_seconds: per step, communication that the backward pass did not hide; None without DDP
exposed: that by seconds_per_step, 0 to 1
bytes_raw, bytes_sent: per step, of this rank, over all its receivers
ratio: bytes of the gradients by bytes of their encodings, without headers; without DDP
    bytes_raw / bytes_sent (which counts each receiver); None where nothing was sent
seconds_encode, seconds_transfer, seconds_decode: per step, of this rank's engine; they overlap the
    backward pass
communicator: as in "shm"
errors: {name: relative L2 error of the reduced gradient}, of a sample of its values, against their
    exact mean; the last that was measured. With error feedback it includes what the feedback added
saved_errors: {module: relative L2 error of the floating tensor that it saved in the record's last
    step; its second tensor is MODULE#2, and so on}, of `saved` of the Monitor; {} without one
saved_bytes, kept_bytes: of the last forward pass that `saved` of the Monitor compressed, on this
    rank: bytes that nodes saved, and of the payloads that stood for them until the backward pass.
    What is kept as it is counts in neither. None without `saved`
formats: {LAYER/TENSOR: what a cast to an emulated format did to it in the record's last step}, of
    `formats` of the Monitor, of this rank; {} without it, and in the last record if that has fewer
    steps than the others. Names are as in "blocks.0.up/forward.input", "conv1/activations",
    "fc1.weight/optimizer_state.exp_avg"; what is known of each, as of emulate.Statistics:
    underflowed: share of the values that became zero, 0 to 1
    saturated: share that is beyond the format's largest number, 0 to 1
    sqnr: signal by quantization noise, dB; inf without an error, nan without a signal
    amax: greatest magnitude before the cast
    bits: per value, side information included
bits: {name: bits per value}, and codec: {name: as in "maxmin", "exact"}
rank, world_size

Records of a FormatMonitor have version, step, steps, seconds_per_step and formats only. Keys may be
added without a new version: a reader takes what it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 1
COUNTERS = ("bytes_raw", "bytes_sent", "seconds_encode", "seconds_transfer", "seconds_decode")


def counters_of(stats: Mapping[str, Any]) -> dict[str, float]:
    return {name: stats[name] for name in COUNTERS}


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What was counted in between; from zero if somebody has reset the counters."""
    if any(after[name] < before[name] for name in COUNTERS):
        return dict(after)
    return {name: after[name] - before[name] for name in COUNTERS}
