"""Runs the real reducers on simulated ranks, straight through the extension module."""

from __future__ import annotations

import torch

from tests import _machinery
from tests.reduce.model import DTYPES, all_reduce, same_bits
from torch_cgx import _C

Layers = list[tuple[int, "_C.Codec | None"]]

# Encoded and exact ones, also empty and of one value, borders off the buckets'.
MIXED_LAYERS: Layers = [
    (700, _C.Codec(bits=4, bucket_size=64)),
    (33, None),
    (1, None),
    (5000, _C.Codec(bits=2, bucket_size=512)),
    (1000, _C.Codec(codec="fp16", bits=16)),
    (71, _C.Codec(codec="bf16", bits=16)),
    (0, None),
    (129, _C.Codec(bits=8, bucket_size=128, skip_incomplete_buckets=True)),
]


def run(
    inputs: list[torch.Tensor],
    layers: Layers,
    algorithm: str = "auto",
    *,
    average: bool = False,
    **group: object,
) -> tuple[list[torch.Tensor], dict]:
    """Outputs of all ranks and {"algorithm", "stats"}. group: hosts, slot_bytes, segment_bytes,
    sequence ... of `_C.simulate_all_reduce`.
    """
    outputs = [x.clone().contiguous() for x in inputs]
    info = _C.simulate_all_reduce(
        outputs,
        layers,
        average,
        ranks=len(inputs),
        algorithm=algorithm,
        **group,
    )
    return outputs, info


def check(
    inputs: list[torch.Tensor],
    layers: Layers,
    algorithm: str,
    average: bool = False,
    **group: object,
) -> torch.Tensor:
    """The output, which must be equal on all ranks and what the model says, to the bit."""
    outputs, info = run(inputs, layers, algorithm, average=average, **group)
    for output in outputs[1:]:
        assert same_bits(output, outputs[0])
    expected = all_reduce(inputs, layers, algorithm, average, **group)
    assert same_bits(outputs[0], expected), (inputs[0].numel(), layers, algorithm, group)
    assert info["algorithm"] == algorithm
    return outputs[0]


def run_shards(
    operation: str,
    inputs: list[torch.Tensor],
    spec: _C.Codec | None,
    *,
    average: bool = False,
    **group: object,
) -> tuple[list[torch.Tensor], dict]:
    """Outputs of all ranks of a reduce-scatter or an all-gather, and {"stats"}."""
    size = len(inputs)
    scatter = operation == "reduce_scatter"
    shard = inputs[0].numel() // size if scatter else inputs[0].numel()
    outputs = [torch.full((shard if scatter else shard * size,), 7.0).to(inputs[0].dtype)] * size
    outputs = [x.clone() for x in outputs]
    info = _machinery.simulate_shards(
        operation,
        [x.data_ptr() for x in inputs],
        [x.data_ptr() for x in outputs],
        DTYPES[inputs[0].dtype],
        shard,
        spec,
        average,
        ranks=size,
        **group,
    )
    return outputs, info


def gaussian(
    ranks: int, n: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed * 1000 + n % 997)
    return [torch.randn(n, generator=generator).to(dtype) for _ in range(ranks)]
