"""The rows "Python" of benchmarks.codec: codecs as a program calls them, with what Python costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_cgx import codecs

FACE_BITS = (4, 8)  # of the rows "Python"
# Names of rows; {b}: the bits. L2 ends the names of rows that stay in the second-level cache, SHORT
# of those in which what a call costs outweighs the values.
NEAREST, L2, SHORT = "encode fp32 {b} nearest", ", 256 KiB", ", 1 KiB"


@dataclass
class Case:
    """One measurement: `run` moves `size` bytes of values; `roof` names the case that it is
    compared with."""

    name: str
    level: str
    size: int
    run: Callable[[], Any]
    roof: str = ""
    calls: int = 1  # per sample
    # The same call on one value, whose time is taken off: what Python costs.
    empty: Callable[[], Any] | None = None


def face_calls(
    codec: codecs.Codec, values: torch.Tensor, payload: torch.Tensor, target: torch.Tensor
) -> dict[str, Callable[[], Any]]:
    """How a program encodes `values` and decodes their `payload` into `target`; by the engine's row
    that does the same. The one place that knows the arguments of torch_cgx.codecs.
    """
    return {
        NEAREST: lambda: codec.encode(values, out=payload),
        "decode {b}": lambda: codec.decode(payload, out=target),
        "decode+add {b}": lambda: codec.decode(payload, out=target, add=True),
    }


def face_cases(
    values: torch.Tensor, bucket_size: int, level: str, size: str = "", calls: int = 1
) -> list[Case]:
    """Rows "Python"; `size`: what the names of the engine's rows end with."""
    cases = []
    target = torch.zeros_like(values)
    for bits in FACE_BITS:
        codec = codecs.MaxMin(bits=bits, bucket_size=bucket_size)
        payload = codec.encode(values)
        for row, run in face_calls(codec, values, payload, target).items():
            name = row.format(b=bits) + size
            cases.append(Case(f"Python {name}", level, values.nbytes, run, name, calls))
        two = f"Python encode, decode {bits}{size}"

        def both(codec: codecs.Codec = codec, payload: torch.Tensor = payload) -> None:
            codec.decode(codec.encode(values, out=payload), out=target)

        def roundtrip(codec: codecs.Codec = codec) -> None:
            codec.roundtrip(values, out=target)

        def in_place(codec: codecs.Codec = codec) -> None:
            codec.roundtrip(target, out=target)

        cases.append(Case(two, level, values.nbytes, both, NEAREST.format(b=bits) + size, calls))
        for what, run in (("roundtrip", roundtrip), ("roundtrip in place", in_place)):
            name = f"Python {what} {bits}{size}"
            cases.append(Case(name, level, values.nbytes, run, two, calls))
    return cases
