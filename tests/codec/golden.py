"""Golden vectors of the format: `python -m tests.codec.golden` writes golden.json from the numpy
model.

Rewriting it is a change of the wire format: ranks with different versions would no longer
understand each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests import oracle
from tests.oracle import Spec

FILE = Path(__file__).with_name("golden.json")


def inputs() -> dict[str, oracle.Floats]:
    """Small inputs; float32 bit patterns, so that nothing depends on a generator of random
    numbers."""
    ramp = (np.arange(37, dtype=np.float32) * np.float32(0.37)) - np.float32(5)
    special = np.array(
        [0, -0.0, 1e-45, -1e-40, 1e-38, 1, 1, 1, 1, np.nan, 2, 3, np.inf, 4, 5, 6], np.float32
    )
    wide = np.array([-3e38, 3e38, 1e38, 0, -1, 3.4028235e38, -3.4028235e38, 1e30], np.float32)
    return {"ramp": ramp, "special": special, "wide": wide}


def spec_of(bits: int, bucket_size: int, stochastic: bool) -> Spec:
    return Spec(bits, bucket_size, stochastic, seed=bits, sequence=2, rank=1, index=3)


def vectors() -> list[dict[str, Any]]:
    rows = []
    for name, x in inputs().items():
        for bits in range(1, 9):
            for bucket_size in (5, 16):
                for stochastic in (False, True):
                    spec = spec_of(bits, bucket_size, stochastic)
                    payload = oracle.encode(x, spec)
                    rows.append(
                        {
                            "input": name,
                            "bits": bits,
                            "bucket_size": bucket_size,
                            "stochastic": stochastic,
                            "payload": payload.hex(),
                            "values": oracle.decode(payload, len(x), spec).tobytes().hex(),
                        }
                    )
    return rows


if __name__ == "__main__":
    bits = {name: x.tobytes().hex() for name, x in inputs().items()}
    rows = ",\n".join(json.dumps(row) for row in vectors())
    FILE.write_text(f'{{"inputs": {json.dumps(bits)},\n"vectors": [\n{rows}\n]}}\n')
