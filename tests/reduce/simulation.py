"""Runs the real reducers on simulated ranks, straight through the extension module."""

from __future__ import annotations

import torch

from tests.reduce.model import DTYPES
from torch_cgx import _C

Layers = list[tuple[int, "_C.Spec | None"]]


def run(
    inputs: list[torch.Tensor],
    layers: Layers,
    algorithm: str = "auto",
    *,
    average: bool = False,
    slot_bytes: int = 1 << 20,
    sequence: int = 0,
    raise_nonfinite: bool = False,
) -> tuple[list[torch.Tensor], dict]:
    """Outputs of all ranks and {"algorithm", "stats"}."""
    outputs = [x.clone().contiguous() for x in inputs]
    info = _C.simulate_all_reduce(
        [x.data_ptr() for x in outputs],
        DTYPES[inputs[0].dtype],
        layers,
        average,
        algorithm,
        raise_nonfinite,
        sequence,
        slot_bytes,
    )
    return outputs, info


def gaussian(
    ranks: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed * 1000 + n % 997)
    return [torch.randn(n, generator=generator).to(dtype) for _ in range(ranks)]
