"""Golden vectors of the format: `python -m tests.codec.golden` writes golden.json from the numpy
model.

Every codec, width, rounding, dtype, with and without `skip_incomplete_buckets`. Rewriting it is a
change of the wire format: ranks with different versions would no longer understand each other.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import oracle
from tests.codec.helpers import TORCH, tensor_bytes
from tests.oracle import Spec

FILE = Path(__file__).with_name("golden.json")
BUCKETS = (5, 16)
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def inputs() -> dict[str, dict[int, torch.Tensor]]:
    """Small inputs by name and dtype; no generator of random numbers."""
    ramp = (np.arange(37, dtype=np.float32) * np.float32(0.37)) - np.float32(5)
    special = np.array(
        [0, -0.0, 1e-45, -1e-40, 1e-38, 1, 1, 1, 1, np.nan, 2, 3, np.inf, 4, 5, 6], np.float32
    )
    wide = np.array([-3e38, 3e38, 1e38, 0, -1, 3.4028235e38, -3.4028235e38, 1e30], np.float32)
    half = np.array([-65504, 65504, 6e-8, -6e-5, 0, 1, 2, 3, np.inf, 7, np.nan, 9], np.float32)
    by_dtype = {
        "ramp": (ramp, tuple(TORCH)),
        "special": (special, tuple(TORCH)),
        "wide": (wide, (0, 2)),
        "half": (half, (1,)),
    }
    return {
        name: {code: torch.from_numpy(x).to(TORCH[code]) for code in codes}
        for name, (x, codes) in by_dtype.items()
    }


def spec_of(bits: int, bucket_size: int, stochastic: bool) -> Spec:
    return Spec(bits, bucket_size, stochastic, seed=bits, sequence=2, rank=1, index=3)


def narrowed(x: torch.Tensor, wire: torch.dtype) -> torch.Tensor:
    """To nearest even; a NaN becomes the quiet one of its sign, as the inputs' are."""
    y = x.to(wire)
    quiet = 0x7E00 if wire == torch.float16 else 0x7FC0
    y.view(torch.int16)[x.isnan()] = quiet
    return y


def _row(name: str, code: int, codec: str, payload: bytes, values: bytes) -> dict[str, Any]:
    return {
        "input": name,
        "dtype": code,
        "codec": codec,
        "payload": payload.hex(),
        "values": values.hex(),
    }


def vectors() -> list[dict[str, Any]]:
    rows = []
    for name, tensors in inputs().items():
        for code, x in tensors.items():
            single = x.float().numpy()
            rows.append(_row(name, code, "raw", tensor_bytes(x).tobytes(), single.tobytes()))
            for codec, wire in HALVES.items():
                # Tensors of 16 bits travel as they are.
                sent = narrowed(x, wire) if x.dtype == torch.float32 else x
                values = sent.float().numpy().tobytes()
                rows.append(_row(name, code, codec, tensor_bytes(sent).tobytes(), values))
            every = itertools.product(range(1, 9), BUCKETS, (False, True), (False, True))
            for bits, bucket_size, stochastic, skip in every:
                spec = spec_of(bits, bucket_size, stochastic)
                coded = len(x) // bucket_size * bucket_size if skip else len(x)
                if skip and coded == len(x):
                    continue
                head = oracle.encode(single[:coded], spec)
                values = oracle.decode(head, coded, spec).tobytes() + single[coded:].tobytes()
                payload = head + tensor_bytes(x[coded:]).tobytes()
                row = _row(name, code, "maxmin", payload, values)
                row |= {"bits": bits, "bucket_size": bucket_size}
                row |= {"stochastic": stochastic, "skip": skip}
                rows.append(row)
    return rows


def write() -> None:
    hexes = {
        name: {code: tensor_bytes(x).tobytes().hex() for code, x in tensors.items()}
        for name, tensors in inputs().items()
    }
    rows = ",\n".join(json.dumps(row) for row in vectors())
    FILE.write_text(f'{{"inputs": {json.dumps(hexes)},\n"vectors": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    write()
