"""Seconds per value of a codec, measured here."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

_NUMEL = 1 << 20
_REPEATS = 7


@dataclass(frozen=True)
class Speed:
    """Seconds per value, on one core."""

    encode: float
    decode: float


NONE = Speed(0.0, 0.0)


@functools.cache
def _measured(setting: tuple[tuple[str, Any], ...]) -> Speed:
    import torch

    from torch_cgx import _config

    codec = _config.codec_of(dict(setting), _config.defaults())
    if codec is None:
        return NONE
    values = torch.Generator().manual_seed(0)
    x = torch.randn(_NUMEL, generator=values, dtype=torch.float32, device="cpu")
    payload, out = codec.encode(x), torch.zeros_like(x)
    best = [float("inf"), float("inf")]
    for _ in range(_REPEATS):  # the least: everything else is disturbance
        begin = time.perf_counter()
        codec.encode(x, out=payload)
        middle = time.perf_counter()
        codec.decode(payload, out=out, add=True)
        end = time.perf_counter()
        best = [min(best[0], middle - begin), min(best[1], end - middle)]
    return Speed(best[0] / _NUMEL, best[1] / _NUMEL)


def measure_speed(config: dict[str, Any]) -> Speed:
    """Of the codec of a configuration, on fp32; takes some milliseconds, once per process."""
    return _measured(tuple(sorted(config.items())))
