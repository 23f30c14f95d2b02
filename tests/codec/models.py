"""Independent models of the families of codecs, for golden vectors: from a tensor to its payload
and to the values that come back. Written from docs/wire_format.md and docs/numerics.md, not from
the engine.

A new family adds its model to ``MODELS``, under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests import oracle
from tests.codec import format_model, rotation_model
from tests.codec.helpers import tensor_bytes
from tests.oracle import Spec


@dataclass(frozen=True)
class Key:
    """What stochastic rounding and rotations take from the call."""

    sequence: int = 2
    rank: int = 1
    index: int = 3


# Payload, and decoded values as bytes of float32.
Coded = tuple[bytes, bytes]
Model = Callable[[torch.Tensor, Mapping[str, Any], Key], Coded]


def maxmin(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    bucket_size = parameters["bucket_size"]
    coded = len(x)
    if parameters["skip_incomplete_buckets"]:
        coded = coded // bucket_size * bucket_size
    spec = Spec(
        parameters["bits"],
        # No bucket is longer than the run, and the model makes rows of this length.
        min(bucket_size, max(coded, 1)),
        parameters["rounding"] == "stochastic",
        parameters["seed"],
        sequence=key.sequence,
        rank=key.rank,
        index=key.index,
        exact_zeros=parameters.get("exact_zeros", False),
    )
    single = x.float().numpy()
    head = oracle.encode(single[:coded], spec)
    values = oracle.decode(head, coded, spec).tobytes() + single[coded:].tobytes()
    return head + tensor_bytes(x[coded:]).tobytes(), values


def half(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    wire = {"bf16": torch.bfloat16, "fp16": torch.float16}[parameters["format"]]
    sent = x
    if x.dtype == torch.float32:  # tensors of 16 bits travel as they are
        # To nearest even; a NaN becomes the quiet one of its sign, as the inputs' are.
        sent = x.to(wire)
        sent.view(torch.int16)[x.isnan()] = 0x7E00 if wire == torch.float16 else 0x7FC0
    return tensor_bytes(sent).tobytes(), sent.float().numpy().tobytes()


def raw(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    return tensor_bytes(x).tobytes(), x.float().numpy().tobytes()


def rotated(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    return _blocks(rotation_model.Rotated, x, parameters, key)


def trellis(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    return _blocks(rotation_model.Trellis, x, parameters, key)


def _blocks(family: Any, x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    call = rotation_model.Call(key.sequence, key.rank, key.index)
    payload, values = rotation_model.coded(family, x.float().numpy(), parameters, call)
    return payload, values.tobytes()


def float_(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    fmt = format_model.format_of(parameters)
    if fmt.bits == 16 and x.dtype != torch.float32:  # tensors of 16 bits travel as they are
        return raw(x, parameters, key)
    codes = format_model.codes_of(x.float().numpy(), fmt, parameters, _spec(parameters, key))
    values = format_model.values_of(codes, fmt)
    return format_model.packed(codes, fmt.bits), values.tobytes()


def block(x: torch.Tensor, parameters: Mapping[str, Any], key: Key) -> Coded:
    spec = _spec(parameters, key)
    payload, values = format_model.blocks(x.float().numpy(), parameters, spec)
    return payload, values.tobytes()


def _spec(parameters: Mapping[str, Any], key: Key) -> Spec:
    """Of the random numbers; the widths do not count."""
    seed = parameters["seed"] if parameters["rounding"] == "stochastic" else 0
    return Spec(8, 1, True, seed, sequence=key.sequence, rank=key.rank, index=key.index)


MODELS: dict[str, Model] = {
    "maxmin": maxmin,
    "rotated": rotated,
    "trellis": trellis,
    "half": half,
    "float": float_,
    "block": block,
    "raw": raw,
}


def same_values(a: bytes, b: bytes) -> bool:
    """A NaN is a NaN: its payload bits are not part of the format."""
    x, y = np.frombuffer(a, np.float32), np.frombuffer(b, np.float32)
    return bool(np.array_equal(x, y, equal_nan=True))
