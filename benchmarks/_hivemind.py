"""Measures hivemind's uniform 8-bit codec beside this project's, with the python of .venv-hivemind:

    python -m benchmarks._hivemind NUMEL ROUNDS RESULT

A process of its own, since hivemind 1.1.12 wants a NumPy before 2.4. Both codecs, and the roofs,
work on the same fp32 values in turns on one thread, so their ratio holds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
from hivemind.compression import Uniform8BitQuantization  # type: ignore[import-not-found]
from hivemind.compression.base import CompressionInfo  # type: ignore[import-not-found]

import torch_cgx


def main(numel: int, rounds: int, result: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    values = torch.randn(numel)
    target = torch.zeros(numel)
    theirs, ours = Uniform8BitQuantization(), torch_cgx.codecs.MaxMin(bits=8, bucket_size=512)
    info = CompressionInfo.from_tensor(values)
    message, payload = theirs.compress(values, info), ours.encode(values)
    indices, lookup = theirs.quantize(values)
    cases: dict[str, Callable[[], Any]] = {
        "torch aminmax": lambda: torch.aminmax(values),
        "memcpy": lambda: target.copy_(values),
        "cgx encode 8": lambda: ours.encode(values),
        "hivemind quantize 8": lambda: theirs.quantize(values),
        "hivemind compress 8": lambda: theirs.compress(values, info),
        "cgx decode 8": lambda: ours.decode(payload, numel=numel),
        "hivemind extract 8": lambda: theirs.extract(message),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if turn > 0:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)

    def error(restored: torch.Tensor) -> float:
        return float((restored - values).norm() / values.norm())

    document = {
        "versions": {
            "hivemind": version("hivemind"),
            "numpy": numpy.__version__,
            "torch": torch.__version__,
        },
        "seconds": seconds,
        "relative_error": {
            "cgx": error(ours.decode(payload, numel=numel)),
            "hivemind": error(theirs.extract(message)),
        },
        "encoded_bytes": {
            "cgx": payload.numel(),
            "hivemind": indices.nbytes + lookup.nbytes,
        },
    }
    Path(result).write_text(json.dumps(document))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
