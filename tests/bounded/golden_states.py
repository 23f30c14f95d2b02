"""States whose files are kept in golden_files.json, as version 1 of the formats wrote them."""

from __future__ import annotations

import collections
import math
from typing import Any

import torch


def wave(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that no generator of random numbers makes: any version of torch gives the same."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return (((i * i * 7) % 251 - 125) / 100 + i / 1000).view(shape).to(dtype)


def mixed() -> dict[Any, Any]:
    model = collections.OrderedDict(
        {
            "embedding.weight": wave(40, 8),
            "norm.weight": wave(30) + 1,
            "half": wave(20, 3, dtype=torch.bfloat16),
            "pairs": torch.complex(wave(25), -wave(25)),
            "count": torch.tensor(7),
            "flags": wave(20) > 0,
            "eighth": torch.arange(120, dtype=torch.uint8).view(torch.float8_e4m3fn),
        }
    )
    model["head.weight"] = model["embedding.weight"]
    model._metadata = collections.OrderedDict({"": {"version": 2}})  # type: ignore[attr-defined]
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": wave(40, 8) / 8, "empty": torch.empty(0)}}
    return {
        "model": model,
        "optimizer": {"state": moments, "param_groups": [{"betas": (0.9, 0.999), "params": [0]}]},
        "numbers": [0, -1, 2**70, True, 0.1, math.inf, None, "naïve", b"\x00\xff"],
        7: {(1, "a"): 1, None: 2, 2.5: 3},
    }


OPTIONS = {"max_error": 1e-2, "overrides": {r"norm": 0, r"exp_avg": {"pointwise": 1e-2}}}


def others() -> dict[str, Any]:
    """Two tensors of payloads of equal length, and an index that is mostly repetition."""
    return {
        "alike": {"a": wave(500), "b": wave(500).flip(0).contiguous()},
        "repeated": {"losses": [0.0] * 100_000},
        "number": 3,
        "nothing": {},
    }


def checkpoint() -> dict[str, Any]:
    """For torch.distributed.checkpoint."""
    return {
        "model": {
            "weight": wave(30, 20),
            "norm": wave(20),
            "half": wave(20, 3, dtype=torch.bfloat16),
            "count": torch.tensor(7),
            "eighth": torch.arange(20, dtype=torch.uint8).view(torch.float8_e4m3fn),
        },
        "step": 3,
        "text": "run",
    }
